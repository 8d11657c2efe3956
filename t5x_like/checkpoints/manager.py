"""Saves and restores checkpoints: one Orbax step directory with model, optimizer, data position and dropout key.

On disk every stack of layers is one `[layers, …]` array, whatever the layout at run time (see `parameters.stack`). A
checkpoint of an unrolled run on CPU therefore restores into a scanned run on TPU, also on another mesh.

A step directory has three items, each with checksums of its files (see `checkpoint_items`):

- `state`: the arrays by nested name.
- `feed`: the data position, one file per process.
- `about`: the environment that wrote the checkpoint and its evaluation, as JSON.

The directory appears under its final name only when it is complete.
"""

import concurrent.futures
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers as policies

from t5x_like import checkpoint_paths, parameters, partitioning
from t5x_like.checkpoints import checksums, replica_restore
from t5x_like.checkpoints.array_files import ArrayFiles
from t5x_like.checkpoints.checkpoint_layout import copy_for_save, stacked_shapes, to_layout
from t5x_like.checkpoints.checkpoint_mirror import CheckpointMirror
from t5x_like.checkpoints.checkpoint_store import ITEMS, CheckpointStore
from t5x_like.checkpoints.keep_best import KeepBest
from t5x_like.checkpoints.stored_checkpoints import is_native
from t5x_like.errors import RunFailed, UserError
from t5x_like.metrics.best import BestMetric
from t5x_like.metrics.checkpoint_evaluations import Best, CheckpointEvaluations


class DamagedCheckpoint(UserError):
    """A file of a checkpoint is missing or does not match its checksum."""


class Checkpoints:
    """The checkpoints of one run.

    Saves are asynchronous. A checkpoint is kept if it is among the latest `keep_latest`, if its step is a multiple of
    `keep_every` or one of `keep_steps`, or if it is among the `keep_best` best by `best_metric`. All others are
    deleted. The latest checkpoint is always kept. With `keep_best`, a run saves a checkpoint after every evaluation.

    Args:
      directory: A local path, `gs://…`, or another URL that fsspec opens. The last kind is mirrored in a local
        directory.
      keep_latest: Number of latest checkpoints to keep; positive.
      keep_every: Keep the checkpoints whose step is a multiple of it; None for no such rule.
      keep_steps: Keep the checkpoints of these steps.
      keep_best: Number of best checkpoints to keep.
      best_metric: Name of the evaluation metric that decides which checkpoints are best, such as `loss`,
        `task/accuracy`, or `evaluation/loss` with several evaluations.
      best_is_larger: Whether larger values of `best_metric` are better. By default, smaller values are better for
        metrics whose name contains loss, perplexity, error, distance or entropy, and larger ones for all others.
      restore_one_replica: Whether only the first replica of the mesh reads a checkpoint, and broadcasts it to the
        others, such as other slices; see `replica_restore`.
      files: The sizes of the files that checkpoints consist of.
      read_only: Whether to only read; the directory is then neither created nor cleaned up.

    Raises:
      UserError: Orbax cannot write to a path like `directory`, `keep_latest` is not positive, or `keep_best` is
        negative.

    Attributes:
      directory: The directory that Orbax reads and writes; the local mirror if there is one.
      keep_best: Number of best checkpoints to keep.
      best_metric: The metric that decides which checkpoints are best.
    """

    def __init__(
        self,
        directory: str,
        *,
        keep_latest: int = 2,
        keep_every: int | None = None,
        keep_steps: Sequence[int] = (),
        keep_best: int = 0,
        best_metric: str = "loss",
        best_is_larger: bool | None = None,
        restore_one_replica: bool = False,
        files: ArrayFiles | None = None,
        read_only: bool = False,
    ):
        if not read_only:
            checkpoint_paths.check_checkpoint_directory("directory", directory)
        if keep_latest < 1:
            raise UserError(f"KEEP_CHECKPOINTS={keep_latest} is not positive. Give a positive integer.")
        if keep_best < 0:
            raise UserError(f"KEEP_BEST={keep_best} is negative. Give a number of checkpoints, or 0 for none.")
        self._mirror = None if is_native(directory) else CheckpointMirror(directory)
        self._uploader = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self._uploading: concurrent.futures.Future | None = None
        self._verified: set[tuple[int, str]] = set()
        self._shapes: dict[int, dict[str, tuple[int, ...]]] = {}
        self._restore_one_replica = restore_one_replica
        self.keep_best, self.best_metric = keep_best, BestMetric(best_metric, best_is_larger)
        root = epath.Path(self._mirror.local if self._mirror else directory)
        if "://" not in str(root):
            root = epath.Path(os.path.abspath(root))
        self.directory = root
        self._evaluations = CheckpointEvaluations(str(root), self.best_metric)
        preserve: list[Any] = [policies.LatestN(keep_latest)]
        if keep_every:
            preserve.append(policies.EveryNSteps(keep_every))
        if keep_steps:
            preserve.append(policies.CustomSteps(tuple(keep_steps)))
        if keep_best:
            preserve.append(KeepBest(self._evaluations, self.best_metric, keep_best))
        self._store = CheckpointStore(root, preserve=preserve, read_only=read_only, files=files)

    def prepare(self, like: Any, partitioner: partitioning.Partitioner) -> None:
        """Checks that the state of a run can be restored onto its mesh.

        Args:
          like: The state of the run, as arrays or shapes; only other checkpointers need it.
          partitioner: The mesh and rules of the run.

        Raises:
          UserError: With `restore_one_replica`, a process belongs to several replicas, or there is only one replica.
        """
        if self._restore_one_replica:
            replica_restore.check_mesh(partitioner.mesh)

    def find_newest(self) -> int | None:
        """Returns the step of the latest checkpoint after verifying it, or None if there is none.

        Raises:
          DamagedCheckpoint: A file does not match its checksum.
        """
        newest = self.latest()
        if newest is not None:
            # A store takes as long to tell the shapes, which the caller needs next, as to list the files.
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                shapes = pool.submit(self._store.shapes, newest)
                self.verify(newest)
            self._shapes[newest] = shapes.result()
        return newest

    def begin(self) -> None:
        """Called in all processes once a run has restored its state. Does nothing, as all checkpoints are kept."""

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints in ascending order."""
        return self._store.steps()

    def latest(self) -> int | None:
        """Returns the step of the latest complete checkpoint, or None if there is none."""
        return max(self.steps(), default=None)

    def save(
        self,
        step: int,
        tree: Any,
        *,
        feed: bytes = b"",
        about: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Starts to save `tree` as checkpoint `step`.

        The caller may donate or change the arrays as soon as the method returns. The first save of a run waits for the
        checkpoint and reads an array of it.

        Args:
          step: A step after all earlier checkpoints.
          tree: Any pytree, such as a `TrainState`. Its leaves are stored by name, each stack of layers as one array.
          feed: The data position after the last batch that `tree` was updated with.
          about: Properties of the run to store, as JSON values.
          metrics: Results of the evaluation of `tree` by name. They are stored with the checkpoint.

        Raises:
          RunFailed: The first checkpoint was written but cannot be read.
          UserError: `keep_best` is set, and `metrics` does not have `best_metric`.
        """
        self.wait()
        leaves = copy_for_save(parameters.named_leaves(tree))
        about = dict(about or {}) | self._evaluations.add(step, metrics, required=self.keep_best > 0)
        is_first = self.latest() is None
        self._store.save(step, leaves, {jax.process_index(): feed}, about)
        if is_first:
            self._store.wait()
            self._read_back(step, leaves)
        if self._mirror:
            self._uploading = self._uploader.submit(self._upload)

    def save_locally(self, step: int, tree: Any, *, feed: bytes, about: Mapping[str, Any]) -> None:
        """Does nothing, because these checkpoints are only in MODEL_DIR; see `TieredCheckpoints`."""

    def evaluation(self, step: int) -> dict[str, float] | None:
        """Returns the evaluation that `save` stored with checkpoint `step`, or None. Non-finite values are NaN."""
        self._require(step)
        return self._evaluations.get(step)

    def best(self) -> Best | None:
        """Returns the best complete checkpoint; see `CheckpointEvaluations.best`."""
        return self._evaluations.best(self.steps())

    def _read_back(self, step, leaves):
        """Reads the smallest array of the first checkpoint, to detect unreliable storage early."""
        name = min(leaves, key=lambda name: leaves[name].size)
        leaf = leaves[name]
        try:
            self._store.read(step, {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)})
        except Exception as error:
            raise RunFailed(
                f"checkpoint {self.directory}/{step} was written but cannot be read: {error}. Check the storage, or "
                "give another MODEL_DIR."
            ) from error

    def _upload(self):
        self._store.wait()
        self._mirror.upload()

    def restore(self, step: int, like: Any, partitioner: partitioning.Partitioner) -> Any:
        """Restores the tree saved at `step`, in the layout of `like`.

        Args:
          step: One of `steps()`.
          like: A pytree of arrays or shapes with the names that were saved, scanned or unrolled.
          partitioner: The mesh and rules that place the arrays.

        Returns:
          A pytree of the structure of `like`.

        Raises:
          DamagedCheckpoint: A file does not match its checksum.
          UserError: A tensor of `like` is missing in the checkpoint or has another shape there.
        """
        return to_layout(self.read(step, stacked_shapes(like, partitioner)), like, partitioner)

    def read(self, step: int, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Reads arrays of checkpoint `step`, by stored name and with the given shapes and shardings.

        Raises:
          DamagedCheckpoint: A file does not match its checksum.
          UserError: An array is missing in the checkpoint or has another shape there.
        """
        self._check(step, shapes)
        if not self._restore_one_replica:
            return self._store.read(step, shapes)
        replicated = {name: leaf for name, leaf in shapes.items() if replica_restore.is_replicated(leaf)}
        others = {name: leaf for name, leaf in shapes.items() if name not in replicated}
        read = self._store.read(step, others) if others else {}
        return read | replica_restore.read(self.directory / str(step) / "state", replicated)

    def verify(self, step: int, *names: str) -> None:
        """Compares the files of checkpoint `step` with their checksums. Several processes divide the work.

        Args:
          step: One of `steps()`.
          *names: The items to verify; all by default.

        Raises:
          DamagedCheckpoint: Raised in every process. Only the process that found the damage names the file.
          OSError: A file could not be read; also raised in every process.
        """
        self._require(step)
        if wanted := [name for name in names or ITEMS if (step, name) not in self._verified]:
            self._verify(step, wanted)
            self._verified.update((step, name) for name in wanted)

    def _verify(self, step, names):
        damage, unreadable = "", None
        try:
            with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
                verified = list(pool.map(lambda name: self._store.verify(step, name), names))
            if "state" in names and not verified[names.index("state")]:
                logging.info("checkpoint %s/%d is not verified: checksums not found", self.directory, step)
        except checksums.DamagedFile as error:
            damage = str(error)
        except OSError as error:
            unreadable = error
        if jax.process_count() > 1:
            # Every process raises the same type of error, because none may wait for another that has ended.
            here = np.array([bool(damage), unreadable is not None])
            damaged, failed = np.asarray(multihost_utils.process_allgather(here)).reshape(-1, 2).T.tolist()
            if any(failed) and unreadable is None:
                unreadable = OSError(
                    f"process {failed.index(True)} could not read checkpoint {self.directory}/{step}; see its message"
                )
            if any(damaged) and not damage:
                damage = f"see the message of process {damaged.index(True)}"
        if unreadable is not None:
            raise unreadable
        if damage:
            raise DamagedCheckpoint(
                f"checkpoint {self.directory}/{step} is damaged: {damage}. Restore the file from a copy, or use an "
                f"earlier checkpoint (available: {self.steps()}); `t5x_like train --restore=previous` resumes from the "
                "newest intact one."
            )

    def delete_damaged(self) -> None:
        """Deletes the damaged checkpoints that are newer than the newest intact one.

        Raises:
          DamagedCheckpoint: Every checkpoint is damaged. None is deleted.
        """
        damaged: list[int] = []
        for step in reversed(self.steps()):
            try:
                self.verify(step)
                break
            except DamagedCheckpoint as error:
                logging.warning("%s", error)
                damaged.append(step)
        else:
            if damaged:
                raise DamagedCheckpoint(
                    f"{self.directory}: every checkpoint is damaged ({damaged}), and none was deleted. Restore the "
                    "files from a copy, or start a new run in another MODEL_DIR."
                )
        for step in damaged:
            self.delete(step)

    def delete(self, step: int) -> None:
        """Deletes checkpoint `step`. All processes of a run must call it."""
        logging.warning("deleting checkpoint %s/%d", self.directory, step)
        self.wait()
        self._store.delete(step)
        self._shapes.pop(step, None)

    def restore_feed(self, step: int) -> bytes:
        """Returns the data position of this process at `step`."""
        self.verify(step, "feed")
        return self._store.read_position(step)

    def about(self, step: int) -> dict[str, Any]:
        """Returns the properties that `save` stored with checkpoint `step`."""
        self.verify(step, "about")
        return self._store.read_about(step)

    def shapes(self, step: int, *, verify: bool = True) -> dict[str, tuple[int, ...]]:
        """Returns the shape of every tensor of checkpoint `step` by stored name.

        Args:
          step: One of `steps()`.
          verify: Whether to compare all files of the tensors with their checksums first.
        """
        if verify:
            self.verify(step, "state")
        if step not in self._shapes:
            self._shapes[step] = self._store.shapes(step)
        return self._shapes[step]

    def sizes(self, step: int) -> dict[str, int]:
        """Returns the bytes of every tensor of checkpoint `step`, before compression, by stored name."""
        return self._store.sizes(step)

    def _check(self, step, wanted):
        stored = self.shapes(step)
        missing = sorted(set(wanted) - set(stored))
        if missing:
            raise UserError(
                f"checkpoint {self.directory}/{step}: tensor {missing[0]!r} not found ({len(missing)} of {len(wanted)} "
                "tensors are missing). Give the model and optimizer that wrote the checkpoint, or another MODEL_DIR."
            )
        for name, leaf in wanted.items():
            if stored[name] != tuple(leaf.shape):
                raise UserError(
                    f"checkpoint {self.directory}/{step}: {name} has shape {stored[name]} instead of {leaf.shape}. "
                    "Give the configuration that wrote the checkpoint, or another MODEL_DIR."
                )

    def _require(self, step):
        if step not in self.steps():
            raise UserError(f"{self.directory}: checkpoint {step} not found. Give one of {self.steps()}.")

    @property
    def has_failed(self) -> bool:
        """Whether a process could not write its part of a checkpoint; `wait` and `save` raise the error."""
        return self._store.has_failed

    def wait(self) -> None:
        """Blocks until the save in progress has committed."""
        self._store.wait()
        if self._uploading:
            self._uploading.result()

    def close(self) -> None:
        """Waits for the save in progress and releases all resources."""
        self.wait()
        self._store.close()
        if self._mirror:
            self._mirror.close()
