"""The run directory MODEL_DIR: its location, stored configuration, parameter table and status."""

import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
from absl import logging

from t5x_like import metrics, parameters, partitioning, paths
from t5x_like.checkpoints.checkpointer import Checkpointer
from t5x_like.errors import UserError
from t5x_like.metrics.checkpoint_evaluations import Best
from t5x_like.runtime.run_files import (
    CHECKPOINTS,
    CONFIG,
    LOG,
    MODEL_INFO,
    RUN_ID,
    STARTS,
    STATUS,
    has_checkpoints,
    is_missing,
    read_status,
)
from t5x_like.version import __version__

if TYPE_CHECKING:
    from t5x_like.training.recipe import Recipe

RUNS = "runs"
# What launchers, the compilation cache and schedulers write to a run directory before the run.
_BEFORE_A_RUN = {"launch", "compilation_cache"}
_LOGS = (".out", ".err", ".log")
# Maximum length of the reason in a status, so that the file fits into one disk block.
_REASON_CHARACTERS = 2000


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The resolved configuration of a run and the flags of this start.

    Attributes:
      text: the configuration as gin text; written to `MODEL_DIR/config.gin`.
      override: whether to resume a run whose stored configuration differs.
      profile_steps: the first and the last step to trace into `MODEL_DIR/profile`.
      restore: `"latest"`, or `"previous"` to first delete damaged checkpoints newer than the newest intact one.
      words: the words of the command line after `t5x_like`; None for the words of the process.
    """

    text: str
    override: bool = False
    profile_steps: tuple[int, int] | None = None
    restore: str = "latest"
    words: tuple[str, ...] | None = None


def resolve(model_dir: str | None) -> str:
    """Returns the run directory as an absolute path or URL.

    Args:
      model_dir: the directory; None creates a new `./runs/<number>`.

    Raises:
      UserError: the directory is not writable, or it is None and the run has several processes, which cannot agree on
        a new one.
    """
    if model_dir is not None and not isinstance(model_dir, str | os.PathLike):
        raise UserError(f"MODEL_DIR={model_dir!r} has type {type(model_dir).__name__}. Give a path or URL as text.")
    if model_dir:
        if not paths.is_local(model_dir):
            return os.fspath(model_dir).rstrip("/")
        paths.check_writable("MODEL_DIR", model_dir)
        return str(paths.local(model_dir).absolute())
    if jax.process_count() > 1:
        raise UserError("MODEL_DIR: missing. Give a directory that all processes of the run share.")
    paths.check_writable("MODEL_DIR", RUNS)
    root = pathlib.Path(RUNS).absolute()
    root.mkdir(exist_ok=True)
    number = max((int(entry.name) for entry in root.iterdir() if entry.name.isdigit()), default=0) + 1
    while True:
        directory = root / str(number)
        try:
            directory.mkdir()
        except FileExistsError:  # another run has just created it
            number += 1
        else:
            return str(directory)


def warn_of_other_files(model_dir: str) -> None:
    """Logs a warning if a new run starts in a directory that has files, but none of a run."""
    names = set(paths.listdir(model_dir))
    others = {name for name in names if not name.startswith(".") and not name.endswith(_LOGS)} - _BEFORE_A_RUN
    if others and not names & {CONFIG, LOG, RUN_ID, STARTS, STATUS, CHECKPOINTS}:
        shown = ", ".join(sorted(others)[:3]) + (", …" if len(others) > 3 else "")
        logging.warning(
            "MODEL_DIR=%s is not empty, and not a run directory: it has %s. The run writes its files beside them; to "
            "keep them apart, stop it and give another MODEL_DIR",
            *(model_dir, shown),
        )


def may_resume(model_dir: Any) -> bool:
    """Returns whether a run directory has checkpoints, so that its initial weights are not read."""
    if not isinstance(model_dir, str | os.PathLike):
        return False
    with paths.explain_path_errors("MODEL_DIR", model_dir):
        return has_checkpoints(os.fspath(model_dir))


def resume_step(checkpointer: Checkpointer, model_dir: str, run_config: RunConfig | None) -> int:
    """Returns the step to resume from; 0 for a new run.

    Args:
      checkpointer: the checkpoints of the run.
      model_dir: the run directory, for error messages.
      run_config: its `restore` decides whether damaged checkpoints are deleted first.

    Raises:
      UserError: the latest checkpoint is damaged, or has only parameters, as `t5x_like convert` writes it.
    """
    if run_config is not None and run_config.restore == "previous":
        checkpointer.delete_damaged()
    newest = checkpointer.find_newest()
    if newest is None:
        return 0
    if "step" not in checkpointer.shapes(newest):
        raise not_resumable(model_dir)
    return newest


def not_resumable(model_dir: str) -> UserError:
    """Returns the error of a start that would resume a converted checkpoint."""
    return UserError(
        f"MODEL_DIR={model_dir} cannot be resumed: its checkpoint has parameters, but no optimizer state or data "
        "position, as `t5x_like convert` writes it. Give a new MODEL_DIR, and start from these parameters with "
        f"--gin.INITIAL_CHECKPOINT_PATH={model_dir}"
    )


def model_info(tree: Any, partitioner: partitioning.Partitioner) -> str:
    """Returns a table of the parameters: name, shape, logical axes and sharding. The last line has their number.

    Args:
      tree: parameters or their shapes.
      partitioner: the mesh and its rules.
    """
    axes = parameters.logical_axes(tree)
    rows = [("parameter", "shape", "logical axes", "mesh sharding")]
    for name, leaf in parameters.named_leaves(tree).items():
        spec = partitioner.spec(axes[name], leaf.shape, name)
        rows.append((name, _listed(leaf.shape), _listed(axes[name]), _listed(spec)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
    return "\n".join([*lines, "", describe_count(tree)]) + "\n"


def describe_count(tree: Any) -> str:
    """Describes the number of parameters, which are arrays or shapes."""
    return f"{parameters.count(tree):,} parameters in {len(parameters.named_leaves(tree))} arrays"


def _listed(entries) -> str:
    return "[" + " ".join("+".join(entry) if isinstance(entry, tuple) else str(entry or "-") for entry in entries) + "]"


def write_description(model_dir: str, info: str, run_config: RunConfig | None, recipe: "Recipe | None" = None) -> None:
    """Writes `model_info.txt` and `config.gin`.

    Args:
      model_dir: the run directory.
      info: the text of `model_info.txt`.
      run_config: the resolved configuration; None for a run started from Python.
      recipe: the recipe of a run started from Python, to derive `config.gin` from. If the run has checkpoints, its
        existing file is kept.
    """
    paths.write_atomic(paths.join(model_dir, MODEL_INFO), info)
    stored = paths.join(model_dir, CONFIG)
    if run_config is not None:
        paths.write_atomic(stored, run_config.text)
    elif recipe is not None and not (has_checkpoints(model_dir) and paths.exists(stored)):
        from t5x_like.config.derived import derive_recipe

        text, unknown = derive_recipe(recipe)
        if unknown:
            logging.info(
                "%s omits %s, which gin cannot express. If eval, infer or convert need them, give them in a --gin_file",
                *(stored, ", ".join(unknown)),
            )
        paths.write_atomic(stored, text)


def how_to_resume(model_dir: str, newest: int | None, step: int) -> str:
    """Describes what a run stopped after `step` has saved and how to resume it.

    Args:
      model_dir: the run directory.
      newest: the step of the latest checkpoint, or None.
      step: the last step of the run.
    """
    if newest is None:
        return f"step {step} is not saved, because SAVE_PERIOD=None. The same command starts from step 0"
    saved = f"saved step {step}" if newest == step else f"step {step} is not saved, the latest checkpoint is {newest}"
    return f"{saved}; the same command with --gin.MODEL_DIR={model_dir} resumes"


def describe_end(model_dir: str, step: int, reason: str | None, best: Best | None) -> str:
    """Describes a finished run.

    Args:
      model_dir: the run directory.
      step: the last step of the run.
      reason: why the run has finished before its last step, or None.
      best: the best checkpoint, or None if no checkpoint has an evaluation.
    """
    early = "" if reason is None else f", because {reason}"
    checkpoint = "" if best is None else f"; the best checkpoint is {best}"
    return f"{model_dir} finished at step {step}{early}{checkpoint}"


def how_to_train_longer(model_dir: str, step: int, *, is_early: bool) -> str:
    """Describes how to continue a finished run.

    Args:
      model_dir: the run directory.
      step: the last step of the run.
      is_early: whether the run has finished before its last step.
    """
    change = "a larger --gin.PATIENCE" if is_early else f"--gin.TRAIN_STEPS={2 * step} or more"
    override = "" if is_early else " (and --override_config if the learning rate depends on TRAIN_STEPS)"
    return f"to train longer, repeat the command with --gin.MODEL_DIR={model_dir} and {change}{override}"


def environment(partitioner: partitioning.Partitioner) -> dict[str, Any]:
    """Returns the properties of the environment that bit-exact resumption depends on, as JSON values."""
    return {
        "t5x_like": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": partitioner.mesh.devices.flat[0].device_kind,
        "mesh": {axis: int(size) for axis, size in partitioner.mesh.shape.items()},
        "rules": partitioner.rules_name,
        "cpu_threads": os.cpu_count(),
    }


def warn_if_environment_changed(about: Mapping[str, Any], partitioner: partitioning.Partitioner) -> None:
    """Logs a warning for each property of the environment that has changed since a checkpoint was written.

    Args:
      about: the result of `environment` that is stored with the checkpoint.
      partitioner: the mesh and its rules.
    """
    for name, now in environment(partitioner).items():
        if about.get(name) != now:
            logging.warning(
                "%s was %s when this checkpoint was written and is %s now: losses may differ in the last bits",
                name,
                about.get(name),
                now,
            )


@contextlib.contextmanager
def closing(resource: Any) -> Iterator[Any]:
    """Closes a resource on exit, like `contextlib.closing`, but only logs an error of `close` after one in the body."""
    try:
        yield resource
    except BaseException:
        try:
            resource.close()
        except Exception as error:
            logging.warning("closing %s failed: %s", type(resource).__name__, str(error).split("\n", 1)[0])
        raise
    resource.close()


@contextlib.contextmanager
def explain_storage_errors(model_dir: str) -> Iterator[None]:
    """Converts errors about an unwritable MODEL_DIR to `RunFailed`.

    Raises:
      RunFailed: instead of an error of the operating system or of a library that writes checkpoints.
    """
    advice = (
        "The checkpoints written so far are intact; free space or repair the storage, then run the same command to "
        "resume from the newest one."
    )
    with paths.explain_storage_errors("MODEL_DIR", model_dir, advice):
        yield


class Status:
    """Writes `MODEL_DIR/status.json`: whether a run is running, finished, preempted or failed.

    As a context manager it writes `failed` with the reason on an error, and `preempted` on a signal. A start that ends
    before it has written `running` keeps the status of a finished run.

    Args:
      model_dir: the run directory.
      enabled: whether to write; True only in process 0.
      goodput: what the run has spent its time on, which each status includes; None to omit it.

    Attributes:
      step: number of updates so far.
    """

    STATES = ("running", "finished", "preempted", "failed")

    def __init__(self, model_dir: str, *, enabled: bool = True, goodput: metrics.GoodputMonitor | None = None):
        self._model_dir, self._path, self._enabled = model_dir, paths.join(model_dir, STATUS), enabled
        self._goodput = goodput
        self._has_run = False
        self.step = 0

    def __enter__(self) -> "Status":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if error is None or not self._enabled or (not self._has_run and self._is_finished()):
            return
        if isinstance(error, KeyboardInterrupt):
            self.write("preempted", step=self.step, reason=str(error) or "interrupted")
        else:
            self.write("failed", step=self.step, reason=f"{kind.__name__}: {error}")

    def _is_finished(self) -> bool:
        with contextlib.suppress(Exception):
            return (read_status(self._model_dir) or {}).get("state") == "finished"
        return False

    def write(self, state: str, *, step: int, reason: str | None = None) -> None:
        """Replaces the status. If it cannot be written, a warning is logged and the run continues.

        Args:
          state: one of `STATES`.
          step: number of updates so far.
          reason: the reason for `failed` or `preempted`, or for `finished` before the last step.

        Raises:
          ValueError: `state` is unknown.
        """
        if state not in self.STATES:
            raise ValueError(f"state={state!r}: unknown state. Give one of {self.STATES}")
        is_moved = self._has_run and is_missing(self._model_dir)
        self._has_run = True
        if not self._enabled or is_moved:  # a directory that was renamed is not created again
            return
        status = {
            "state": state,
            "step": step,
            "reason": reason and reason[:_REASON_CHARACTERS],
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "process": os.getpid(),
        }
        if self._goodput and (spent := self._goodput.summary()):
            status["goodput"] = spent.as_json()
        try:
            paths.write_despite_full_disk(self._path, json.dumps(status, indent=2) + "\n")
        except Exception as error:  # each store raises its own errors
            logging.warning("%s cannot be written: %s", self._path, error)

    def report_hang(self, report: str) -> None:
        """Writes `failed` with the report of a hang, before the process exits."""
        self.write("failed", step=self.step, reason=report)
