"""Finds the checkpoints that a path and the setting CHECKPOINT refer to.

A path is a run directory, its directory `checkpoints`, one checkpoint in it (`checkpoints/400`), its best checkpoint
(`checkpoints/best`), a Hugging Face directory, or a T5X checkpoint.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import jax
from absl import logging

from t5x_like import paths
from t5x_like.checkpoints import weight_files
from t5x_like.checkpoints.stored_checkpoints import StoredCheckpoints
from t5x_like.errors import RunFailed, UserError
from t5x_like.runtime import distributed
from t5x_like.runtime.run_files import CHECKPOINTS

T = TypeVar("T")
LATEST, BEST, ALL = "latest", "best", "all"
# How often a checkpoint is chosen again because its run has deleted the last one.
_ATTEMPTS = 5
# How long the deletion of a checkpoint may take, whose first files are missing.
_DELETION_SECONDS, _POLL_SECONDS = 1.0, 0.1


def locate(path: str) -> tuple[str, int | None]:
    """Returns the `checkpoints` directory that `path` refers to, and the step if `path` names one.

    Args:
      path: A run directory, its `checkpoints` directory, or one checkpoint in it.

    Raises:
      UserError: `path` names the best checkpoint, and no checkpoint has an evaluation.
    """
    directory, name = _split(path)
    if name == BEST:
        return directory, _choose_step(directory, BEST, path)
    return directory, None if name is None else int(name)


def run_of(path: str) -> str:
    """Returns the run directory of a run directory, or of a checkpoint in it."""
    return locate(path)[0].rpartition("/")[0]


def choose(
    path: str, checkpoint: str | int = LATEST, *, several: bool = False, setting: str = "CHECKPOINT"
) -> list[str]:
    """Returns the paths of the chosen checkpoints in ascending order of their steps.

    The chosen checkpoint of a run is logged, and that another one is better.

    Args:
      path: See the description of this module.
      checkpoint: `latest`, `best` (by the evaluation that it was saved with), a step, or `all`.
      several: Whether `all` is allowed.
      setting: Name of the setting `checkpoint`, for messages.

    Raises:
      UserError: The checkpoint is not found. The message lists the steps that exist.
    """
    allowed = (LATEST, BEST, ALL) if several else (LATEST, BEST)
    if not isinstance(checkpoint, int) and not str(checkpoint).isdigit() and checkpoint not in allowed:
        raise UserError(f"{setting}={checkpoint!r} is unknown. Give {', '.join(allowed)}, or a step.")
    is_run = not weight_files.is_of_other_library(path)
    directory, name = _split(path) if is_run else (path, None)
    if not is_run or name is not None:
        if checkpoint != LATEST:
            check_is_run(path, checkpoint)
        return [path if name != BEST else paths.join(*map(str, locate(path)))]
    if checkpoint == ALL:
        return [paths.join(directory, str(step)) for step in _steps(directory, path)]
    step = _choose_step(directory, checkpoint, path, setting)
    logging.info("%s", _describe_choice(directory, step, setting))
    return [paths.join(directory, str(step))]


def _describe_choice(directory: str, step: int, setting: str) -> str:
    best = StoredCheckpoints(directory).best()
    run = directory.rpartition("/")[0]
    if best is None or best.step == step:
        return f"reading {run}, checkpoint {step if best is None else best}"
    return f"reading {run}, checkpoint {step}; checkpoint {best} is better, and {setting}=best selects it"


def choose_together(path: str, checkpoint: str | int = LATEST) -> str:
    """Returns the path of the chosen checkpoint, the same in every process although a run may save another meanwhile.

    Args:
      path: See the description of this module.
      checkpoint: `latest`, `best`, or a step; see `choose`.

    Raises:
      UserError: The checkpoint is not found.
      RunFailed: Instead, in all processes but the first.
    """
    (chosen,) = distributed.compute_in_main(lambda: choose(path, checkpoint))
    return chosen


def _is_replaced(path: str, checkpoint: str | int, chosen: str) -> bool:
    """Returns whether the run has deleted a chosen checkpoint, in whose place another one can be chosen.

    Runs of several processes do not choose again, because the others may be reading it.
    """
    if checkpoint not in (LATEST, BEST) or chosen.rstrip("/") == path.rstrip("/") or jax.process_count() > 1:
        return False
    return is_deleted(chosen)


def is_deleted(chosen: str) -> bool:
    """Returns whether a checkpoint is missing, or a run deletes it now."""
    deadline = time.monotonic() + _DELETION_SECONDS
    while paths.exists(chosen):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def read(path: str, checkpoint: str | int, function: Callable[[str], T], *, chosen: str | None = None) -> tuple[str, T]:
    """Chooses a checkpoint, and reads it. Chooses again if its run deletes it in the meantime.

    Args:
      path: See the description of this module.
      checkpoint: `latest`, `best`, or a step; see `choose`.
      function: Reads the checkpoint at a path.
      chosen: A checkpoint that was chosen before, which is read if it still exists.

    Returns:
      The path of the checkpoint, and the result of the function.

    Raises:
      UserError: The checkpoint is not found.
      RunFailed: The run deletes each chosen checkpoint before it is read.
    """
    for _ in range(_ATTEMPTS):
        chosen = chosen or choose_together(path, checkpoint)
        try:
            return chosen, function(chosen)
        except Exception:
            if not _is_replaced(path, checkpoint, chosen):
                raise
        logging.warning("%s has been deleted by its run, choosing again", chosen)
        chosen = None
    raise RunFailed(
        f"CHECKPOINT={checkpoint}: {path} deletes its checkpoints before they are read. Keep more of them with "
        "KEEP_CHECKPOINTS, or repeat the command when the run has finished."
    )


def check_is_run(path: str, checkpoint: str | int) -> None:
    """Checks that a path is not one checkpoint, but a run directory, which may have several.

    Args:
      path: See the description of this module.
      checkpoint: The setting CHECKPOINT, for the message.

    Raises:
      UserError: `path` is one checkpoint of a run, a Hugging Face directory, or a T5X checkpoint.
    """
    if weight_files.is_of_other_library(path):
        kind = "is not a run directory"
    elif _split(path)[1] is not None:
        kind = "is a single checkpoint"
    else:
        return
    raise UserError(f"CHECKPOINT={checkpoint}: {path} {kind}. Give a run directory, or omit CHECKPOINT.")


def existing(path: str) -> list[str]:
    """Returns the paths of all complete checkpoints of a run in ascending order of their steps; it may have none."""
    directory, _ = _split(path)
    return [paths.join(directory, str(step)) for step in StoredCheckpoints(directory).steps()]


def find_step(path: str) -> int | None:
    """Returns the step of the checkpoint at `path`, or None for a Hugging Face directory or a T5X checkpoint.

    A run directory stands for its latest checkpoint; None if it has no checkpoint.
    """
    if weight_files.is_of_other_library(path):
        return None
    directory, step = locate(path)
    if step is not None:
        return step
    return StoredCheckpoints(directory).latest()


def _split(path: str) -> tuple[str, str | None]:
    """Returns the `checkpoints` directory, and the last part of a path to a checkpoint in it."""
    directory = path.rstrip("/")
    parent, _, last = directory.rpartition("/")
    if (last.isdigit() or last == BEST) and parent.endswith(CHECKPOINTS):
        return parent, last
    return directory if last == CHECKPOINTS else f"{directory}/{CHECKPOINTS}", None


def _steps(directory: str, path: str) -> list[int]:
    steps = StoredCheckpoints(directory).steps()
    if not steps:
        raise UserError(weight_files.explain_missing(path))
    return steps


def _choose_step(directory: str, checkpoint: str | int, path: str, setting: str = "CHECKPOINT") -> int:
    steps = _steps(directory, path)
    if checkpoint == LATEST:
        return steps[-1]
    if checkpoint == BEST:
        StoredCheckpoints(directory).verify_evaluations()
        best = StoredCheckpoints(directory).best()
        if best is None:
            raise UserError(
                f"{setting}=best: no checkpoint in {directory} was saved with an evaluation (checkpoints: {steps}). "
                "Give one of these steps, or train with KEEP_BEST."
            )
        return best.step
    if int(checkpoint) not in steps:
        raise UserError(f"{setting}={checkpoint}: not found in {directory}. Give one of {steps}, latest or best.")
    return int(checkpoint)
