"""Checkpoints in two tiers: often on each host, and less often in MODEL_DIR.

Orbax's `experimental.emergency` has such tiers, too. It needs several replicas of the arrays to restore from a local
tier, stores arrays only, cannot delete a single step, and has no checksums. Here both tiers are the same step
directories, see `checkpoint_store`.
"""

import base64
import dataclasses
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from absl import logging

from t5x_like import parameters, partitioning, paths
from t5x_like.checkpoints import local_checkpoints, replica_restore
from t5x_like.checkpoints.checkpoint_layout import copy_for_save, stacked_shapes, to_layout
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import UserError
from t5x_like.metrics.best import BestMetric
from t5x_like.metrics.checkpoint_evaluations import Best
from t5x_like.runtime import distributed
from t5x_like.runtime.run_files import RUN_ID

# Data positions of all processes are stored in each of them if they are at most this long together, so that a process
# can get its position from another one. Positions of live tasks are longer if they hold a shuffle buffer.
_MAX_POSITION_BYTES = 1 << 17


@dataclasses.dataclass(frozen=True)
class _Source:
    """Where to restore a step from: the local checkpoints of all processes, or of the processes of one replica."""

    step: int
    about: Mapping[str, Any]
    replica: int | None = None
    positions: Mapping[int, bytes] = dataclasses.field(default_factory=dict)


class TieredCheckpoints:
    """The checkpoints of one run in MODEL_DIR, and newer ones on each host.

    A start resumes from the newest step that MODEL_DIR or the hosts have. A local checkpoint counts if every process
    has its part, verified and for the same mesh; or if all processes of one replica have theirs, from where it is
    broadcast. Otherwise the log says which process lacks it. `begin` deletes the local checkpoints that the run does
    not resume from. Without any checkpoint in MODEL_DIR, a run starts from the beginning.

    Each host needs space for two
    local checkpoints. If a host cannot write them, the run continues without. Except for `save_locally`, `find_newest`
    and what they affect, `Checkpoints` documents the methods.

    Args:
      persistent: The checkpoints in MODEL_DIR. They are closed with these.
      local: Where local checkpoints are.
      model_dir: The run directory.

    Raises:
      UserError: The local directory is not a writable directory outside of MODEL_DIR.

    Attributes:
      keep_best: Number of best checkpoints to keep in MODEL_DIR.
      best_metric: The metric that decides which checkpoints are best.
    """

    def __init__(self, persistent: Checkpoints, local: local_checkpoints.LocalTier, model_dir: str):
        self._persistent, self._local_directory = persistent, local.check(model_dir)
        self.keep_best: int = self._persistent.keep_best
        self.best_metric: BestMetric = self._persistent.best_metric
        run_id = distributed.compute_in_main(lambda: _run_id(model_dir))

        def open_local():
            self._local = local_checkpoints.LocalCheckpoints(self._local_directory, run_id, model_dir)

        distributed.compute_everywhere(open_local)
        self._source: _Source | None = None
        self._shapes: dict[str, jax.ShapeDtypeStruct] = {}
        self._failure = ""
        self._is_disabled = False

    def prepare(self, like: Any, partitioner: partitioning.Partitioner) -> None:
        """Sets which state will be saved and restored; see `Checkpoints.prepare`."""
        self._persistent.prepare(like, partitioner)
        self._shapes = stacked_shapes(like, partitioner)

    # ---- Resuming ---------------------------------------------------------------------------------------------------

    def find_newest(self) -> int | None:
        """Decides which checkpoint to resume from. All processes must call it.

        Returns:
          The step; None if there is no checkpoint.

        Raises:
          DamagedCheckpoint: The checkpoint is in MODEL_DIR, and a file does not match its checksum.
        """
        newest = self._persistent.latest()
        layout = local_checkpoints.digest(self._shapes)
        reports = distributed.compute_everywhere(
            lambda: {
                "host": socket.gethostname(),
                "steps": {str(step): self._local.describe(step, layout) for step in self._local.steps()},
            }
        )
        steps = {int(step) for report in reports for step in report["steps"]}
        for step in sorted(steps, reverse=True):
            if newest is None or step < newest:
                break
            self._source = self._find_source(step, reports)
            if self._source is not None:
                break
        if self._source is not None:
            return self._source.step
        found = self._persistent.find_newest()
        if found is not None:
            logging.info(
                "restoring step %d from %s (local checkpoints in %s: %s)",
                *(found, self._persistent.directory, self._local_directory, sorted(steps) or "none"),
            )
        return found

    def _find_source(self, step: int, reports: Sequence[Mapping[str, Any]]) -> _Source | None:
        """Returns where to restore a local checkpoint from, or None. Logs which processes lack it."""
        absent = {"problem": "not found", "has_positions": False}
        local_states = [report["steps"].get(str(step), absent) for report in reports]
        problem = local_states[jax.process_index()]["problem"] or self._local.damage(step)
        problems = distributed.compute_everywhere(lambda: problem)
        missing = [process for process, problem in enumerate(problems) if problem]
        described = _shorten(
            [f"process {process} ({reports[process]['host']}): {problems[process]}" for process in missing]
        )
        replica = None
        if missing:
            replica = self._find_replica(missing, local_states)
            if replica is None:
                logging.warning("local checkpoint %d in %s is not used: %s", step, self._local_directory, described)
                return None
        main = 0 if replica is None else self._replicas()[replica][0]
        stored = distributed.compute_everywhere(
            lambda: self._read_metadata(step, replica) if jax.process_index() == main else None
        )[main]
        if replica is None:
            logging.info("restoring step %d from the local checkpoints in %s", step, self._local_directory)
            return _Source(step, stored["about"])
        logging.warning(
            "restoring step %d from the local checkpoints of the processes %s in %s, which broadcast it, because not "
            "all processes have it: %s",
            *(step, self._replicas()[replica], self._local_directory, described),
        )
        positions = {int(process): base64.b64decode(text) for process, text in stored["positions"].items()}
        return _Source(step, stored["about"], replica, positions)

    def _read_metadata(self, step: int, replica: int | None) -> dict[str, Any]:
        """Returns what a process without the checkpoint needs besides its arrays."""
        positions = {}
        if replica is not None:
            for process in range(jax.process_count()):
                positions[process] = base64.b64encode(self._local.read_position(step, process)).decode()
        return {"about": self._local.read_about(step), "positions": positions}

    def _replicas(self) -> list[list[int]]:
        return replica_restore.separate_replicas(next(iter(self._shapes.values())).sharding.mesh)

    def _find_replica(self, missing: Sequence[int], local_states: Sequence[Mapping[str, Any]]) -> int | None:
        """Returns the first replica whose processes all have a checkpoint, with the data positions of the others."""
        if not all(map(replica_restore.is_replicated, self._shapes.values())):
            return None
        for index, processes in enumerate(self._replicas()):
            if not set(processes) & set(missing) and local_states[processes[0]]["has_positions"]:
                return index
        return None

    def restore(self, step: int, like: Any, partitioner: partitioning.Partitioner) -> Any:
        """Restores the tree saved at `step`, in the layout of `like`; see `Checkpoints.restore`."""
        source = self._local_source(step)
        if source is None:
            return self._persistent.restore(step, like, partitioner)
        if source.replica is None:
            stacked = self._local.read(step, self._shapes)
        else:
            stacked = replica_restore.broadcast(
                lambda shapes: self._local.read(step, shapes), self._shapes, source.replica
            )
        return to_layout(stacked, like, partitioner)

    def restore_feed(self, step: int) -> bytes:
        """Returns the data position of this process at `step`."""
        source, process = self._local_source(step), jax.process_index()
        if source is None:
            return self._persistent.restore_feed(step)
        return source.positions[process] if source.positions else self._local.read_position(step, process)

    def about(self, step: int) -> Mapping[str, Any]:
        """Returns the properties that were stored with checkpoint `step`."""
        source = self._local_source(step)
        return self._persistent.about(step) if source is None else source.about

    def shapes(self, step: int, *, verify: bool = True) -> dict[str, tuple[int, ...]]:
        """Returns the shape of every tensor of checkpoint `step` by stored name; see `Checkpoints.shapes`."""
        if self._local_source(step) is None:
            return self._persistent.shapes(step, verify=verify)
        return {name: tuple(leaf.shape) for name, leaf in self._shapes.items()}

    def _local_source(self, step: int) -> _Source | None:
        return self._source if self._source is not None and self._source.step == step else None

    def begin(self) -> None:
        """Deletes the local checkpoints that the run does not resume from. All processes must call it.

        Before, the same start can be repeated. Afterwards, no later start resumes from a step that this one drops.
        """
        step = self._source.step if self._source else None
        distributed.compute_everywhere(lambda: self._local.delete_others(step))

    # ---- Saving -----------------------------------------------------------------------------------------------------

    def save(self, step: int, tree: Any, **kwargs: Any) -> None:
        """Starts to save `tree` in MODEL_DIR; see `Checkpoints.save`."""
        self._persistent.save(step, tree, **kwargs)

    def save_locally(self, step: int, tree: Any, *, feed: bytes, about: Mapping[str, Any]) -> None:
        """Starts to save `tree` on each host. All processes must call it.

        The caller may donate or change the arrays as soon as the method returns. It deletes the checkpoint before the
        last one, because all processes have the last one by now.

        Args:
          step: A step after all earlier checkpoints.
          tree: The state.
          feed: The data position of this process.
          about: Properties of the run, as JSON values.
        """
        if self._is_disabled:
            return
        self._try(self._local.wait)
        position = base64.b64encode(feed).decode() if len(feed) * jax.process_count() <= _MAX_POSITION_BYTES else None
        everyone = distributed.compute_everywhere(lambda: {"failure": self._failure, "position": position})
        failures = [f"process {process}: {each['failure']}" for process, each in enumerate(everyone) if each["failure"]]
        if failures:
            self._is_disabled = True
            logging.warning(
                "no more local checkpoints are saved in this start, because %s cannot be written: %s",
                *(self._local_directory, _shorten(failures)),
            )
            return
        positions = {process: each["position"] for process, each in enumerate(everyone)}
        if None in positions.values():
            decoded = {jax.process_index(): feed}
        else:
            decoded = {process: base64.b64decode(text) for process, text in positions.items()}
        shardings = {name: leaf.sharding for name, leaf in self._shapes.items()}
        leaves = copy_for_save(parameters.named_leaves(tree), shardings)
        self._try(lambda: self._write(step, leaves, decoded, about))

    def _write(self, step, leaves, positions, about):
        self._local.keep_only(max(self._local.steps(), default=None))
        self._local.save(step, leaves, positions, about)

    def _try(self, write: Callable[[], None]) -> None:
        """Calls a function that writes. Its error ends local saves in all processes at the next one, not the run."""
        try:
            write()
        except Exception as error:  # Orbax and the file system raise various errors
            self._failure = f"{type(error).__name__}: {error}".split("\n", 1)[0][:300]

    @property
    def has_failed(self) -> bool:
        """Whether a process could not write its part of a checkpoint in MODEL_DIR; see `Checkpoints.has_failed`."""
        return self._persistent.has_failed

    def wait(self) -> None:
        """Blocks until the saves in progress have committed."""
        self._persistent.wait()
        self._try(self._local.wait)

    def close(self) -> None:
        """Waits for the saves in progress and releases all resources."""
        self._try(self._local.close)
        self._persistent.close()

    # ---- All checkpoints --------------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, in MODEL_DIR and of this host, in ascending order."""
        return sorted({*self._persistent.steps(), *self._local.steps()})

    def latest(self) -> int | None:
        """Returns the step of the latest complete checkpoint, or None if there is none."""
        return max(self.steps(), default=None)

    def best(self) -> Best | None:
        """Returns the best checkpoint in MODEL_DIR; see `Checkpoints.best`."""
        return self._persistent.best()

    def delete(self, step: int) -> None:
        """Deletes checkpoint `step` in both tiers. All processes of a run must call it."""
        if step in self._persistent.steps():
            self._persistent.delete(step)
        if step in self._local.steps():
            logging.warning("deleting local checkpoint %s/%d", self._local.directory, step)
            self._local.delete(step)

    def delete_damaged(self) -> None:
        """Deletes the damaged checkpoints in MODEL_DIR that are newer than the newest intact one there."""
        self._persistent.delete_damaged()


def _shorten(problems: Sequence[str]) -> str:
    """Joins the problems of processes for a log line. Many processes often have the same one."""
    others = f"; and {len(problems) - 5} other processes" if len(problems) > 5 else ""
    return "; ".join(problems[:5]) + others


def _run_id(model_dir: str) -> str:
    """Returns the identifier of the run in a directory. A new run has a new one."""
    path = paths.join(model_dir, RUN_ID)
    if not paths.exists(path):
        paths.write_atomic(path, secrets.token_hex(8) + "\n")
    run = paths.read_text(path).strip()
    if not run.isalnum():
        raise UserError(f"{path}: {run!r} is not an identifier. Delete the file.")
    return run
