"""Step directories: Orbax writes and reads them, and each of their items has checksums."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from flax.traverse_util import flatten_dict, unflatten_dict
from orbax.checkpoint import checkpoint_managers as policies

from t5x_like.checkpoints import checkpoint_items as items
from t5x_like.checkpoints import checksums
from t5x_like.checkpoints.array_files import ArrayFiles
from t5x_like.checkpoints.shared_outcome import SharedOutcome

ITEMS = ("state", "feed", "about")


class CheckpointStore:
    """The step directories in one directory. Saves are asynchronous, and a step directory appears when it is complete.

    Args:
      directory: The directory.
      preserve: A checkpoint is kept after a save if any of these policies keeps it; None keeps all.
      read_only: Whether to only read; the directory is then neither created nor cleaned up.
      process: The only process that uses the directory, by its index. It stores the arrays that its own devices hold,
        and never waits for other processes. By default, all processes of the run share the directory.
      files: The sizes of the files of arrays.

    Attributes:
      directory: The directory.
    """

    def __init__(
        self,
        directory: epath.Path,
        *,
        preserve: Sequence[policies.PreservationPolicy] | None = None,
        read_only: bool = False,
        process: int | None = None,
        files: ArrayFiles | None = None,
    ):
        self.directory, self._files = directory, files or ArrayFiles()
        self._share = (0, 1) if process is not None else (jax.process_index(), jax.process_count())
        options: dict[str, Any] = {}
        state: dict[str, Any] = {}
        about: dict[str, Any] = {}
        if preserve is not None:
            options["preservation_policy"] = policies.AnyPreservationPolicy(list(preserve))
        self._outcome = None
        if process is None:
            state["outcome"] = self._outcome = SharedOutcome()
            if jax.process_count() > 1:
                options["async_options"] = ocp.AsyncOptions(barrier_sync_fn=self._outcome.exchange)
        else:
            alone = only_processes([process], f"process_{process}")
            options["multiprocessing_options"] = about["multiprocessing_options"] = alone
            # Only process 0 would wait for directories that are created in the background.
            options["async_options"] = ocp.AsyncOptions(create_directories_asynchronously=False)
            # Without a replica id, an array that several processes hold is stored by each of them.
            arrays = ocp.type_handlers.ArrayHandler(primary_host=process, replica_id=None, use_replica_parallel=False)
            state["multiprocessing_options"] = alone
            state["type_handler_registry"] = ocp.type_handlers.create_type_handler_registry((jax.Array, arrays))
            directory.mkdir(parents=True, exist_ok=True)  # Orbax only creates directories that all processes share
        self._manager = ocp.CheckpointManager(
            directory,
            options=ocp.CheckpointManagerOptions(
                # With both off, reading writes nothing. Orbax's own `read_only` logs a warning per directory.
                create=not read_only and process is None,
                cleanup_tmp_directories=not read_only,
                **options,
            ),
            item_handlers={
                "state": items.StateHandler(**state),
                "feed": items.FeedHandler(),
                "about": items.AboutHandler(**about),
            },
        )

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints in ascending order."""
        return sorted(self._manager.all_steps())

    def save(
        self, step: int, leaves: Mapping[str, jax.Array], positions: Mapping[int, bytes], about: Mapping[str, Any]
    ) -> None:
        """Starts to save a checkpoint.

        Args:
          step: Its step, after all earlier checkpoints.
          leaves: The arrays by stored name.
          positions: Data positions by the index of their process; at least the position of this process.
          about: JSON values.
        """
        tree = unflatten_dict(leaves, sep="/")
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=items.StateSave(tree, **self._files.save_args(tree)),
                feed=items.FeedSave(positions),
                about=items.AboutSave(dict(about)),
            ),
            force=True,
        )

    def read(self, step: int, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Reads arrays by stored name, with the given shapes and shardings."""
        state = items.StateRestore(**restore_arguments(shapes))
        return flatten_dict(self._manager.restore(step, args=ocp.args.Composite(state=state))["state"], sep="/")

    def read_position(self, step: int, process: int | None = None) -> bytes:
        """Returns the data position of a process, by default of this one."""
        return self._manager.restore(step, args=ocp.args.Composite(feed=items.FeedRestore(process)))["feed"]

    def read_about(self, step: int) -> dict[str, Any]:
        """Returns the JSON values of a checkpoint."""
        return self._manager.restore(step, args=ocp.args.Composite(about=items.AboutRestore()))["about"]

    def shapes(self, step: int) -> dict[str, tuple[int, ...]]:
        """Returns the shape of every array by stored name."""
        return {name: tuple(leaf.shape) for name, leaf in self._arrays(step).items()}

    def sizes(self, step: int) -> dict[str, int]:
        """Returns the bytes of every array before compression by stored name."""
        return {name: math.prod(leaf.shape) * leaf.dtype.itemsize for name, leaf in self._arrays(step).items()}

    def _arrays(self, step: int) -> dict[str, Any]:
        metadata = self._manager.item_metadata(step)["state"]
        return flatten_dict(getattr(metadata, "tree", metadata), sep="/")

    def verify(self, step: int, item: str) -> bool:
        """Compares the files of an item with their checksums. Processes that share the directory divide the work.

        Returns:
          Whether the item has checksums.

        Raises:
          DamagedFile: A file is missing or does not match its checksum.
        """
        directory = self.directory / str(step) / item
        if checksums.verify(directory, *self._share):
            return True
        # A checkpoint of an earlier version has no checksums in any item.
        if any((self.directory / str(step) / other / checksums.MANIFEST).exists() for other in ITEMS):
            raise checksums.DamagedFile(f"{directory / checksums.MANIFEST} is missing")
        return False

    def delete(self, step: int) -> None:
        """Deletes a checkpoint, after the save in progress. All processes that share the directory must call it."""
        self.wait()
        self._manager.delete(step)

    @property
    def has_failed(self) -> bool:
        """Whether a process could not write its part of a checkpoint; `wait` raises the error."""
        return self._outcome is not None and self._outcome.has_failed

    def wait(self) -> None:
        """Blocks until the save in progress has committed."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the save in progress and releases all resources."""
        self._manager.close()


def restore_arguments(shapes: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Any]:
    """Returns the arguments with which Orbax reads arrays by stored name, with the given shapes and shardings."""
    restore_args = {
        name: ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype)
        for name, leaf in shapes.items()
    }
    return {
        "item": unflatten_dict(shapes, sep="/"),
        "restore_args": unflatten_dict(restore_args, sep="/"),
        "partial_restore": True,
    }


def only_processes(processes: Collection[int], name: str) -> ocp.options.MultiprocessingOptions:
    """Returns the options with which Orbax reads or writes in some processes, which do not wait for the others.

    Args:
      processes: Their indices.
      name: A name for their barriers.
    """
    return ocp.options.MultiprocessingOptions(
        primary_host=min(processes), active_processes=set(processes), barrier_sync_key_prefix=name
    )
