"""Orbax handlers for the items of a checkpoint. They store checksums of their files before the checkpoint commits."""

import dataclasses
from collections.abc import Mapping

import jax
import orbax.checkpoint as ocp
from etils import epath

from t5x_like.checkpoints import checksums
from t5x_like.checkpoints.shared_outcome import SharedOutcome


class _Checksummed:
    """Stores checksums in `finalize`.

    Orbax calls `finalize` in one process, after all processes have written their files and before the commit.
    """

    def finalize(self, directory: epath.Path) -> None:
        """Stores the checksums of all files that have none yet."""
        super().finalize(directory)
        checksums.write(directory)


class StateHandler(_Checksummed, ocp.PyTreeCheckpointHandler):
    """Stores the arrays; each process computes the checksums of its own files.

    Args:
      outcome: Where the processes exchange whether they could write; None if it never waits for other processes.
    """

    def __init__(self, *args, outcome: SharedOutcome | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self._outcome = outcome

    async def async_save(self, directory: epath.Path, *args, **kwargs):
        """Starts to write. The returned futures complete once this process has written arrays and checksums."""
        written = await super().async_save(directory, *args, **kwargs) or []
        process = jax.process_index()
        # If another version of Orbax writes to other directories, `finalize` covers the files instead.
        checksummed = ocp.future.ChainedFuture(
            written, cb=lambda: checksums.write_part(directory, f"ocdbt.process_{process}", process)
        )
        return [self._outcome.of(checksummed) if self._outcome else checksummed]


@ocp.args.register_with_handler(StateHandler, for_save=True)
class StateSave(ocp.args.PyTreeSave):
    """The arrays to save."""


@ocp.args.register_with_handler(StateHandler, for_restore=True)
class StateRestore(ocp.args.PyTreeRestore):
    """The arrays to restore, with their shapes and shardings."""


class AboutHandler(_Checksummed, ocp.JsonCheckpointHandler):
    """Stores a dictionary as JSON."""


@ocp.args.register_with_handler(AboutHandler, for_save=True)
class AboutSave(ocp.args.JsonSave):
    """The dictionary to save."""


@ocp.args.register_with_handler(AboutHandler, for_restore=True)
class AboutRestore(ocp.args.JsonRestore):
    """Requests the dictionary."""


class _FeedFiles(ocp.CheckpointHandler):
    def save(self, directory: epath.Path, args: "FeedSave"):
        for process, position in args.positions.items():
            (directory / f"process_{process}_of_{jax.process_count()}.bin").write_bytes(position)

    def restore(self, directory: epath.Path, args: "FeedRestore | None" = None) -> bytes:
        """Returns the position of a process, or of process 0 if the number of processes has changed.

        A source with one global order, such as a cache, resumes from the position of any process. A live feed detects
        the mismatch and raises an error.
        """
        process = jax.process_index() if args is None or args.process is None else args.process
        path = directory / f"process_{process}_of_{jax.process_count()}.bin"
        if not path.exists():
            # `directory.glob` would interpret brackets in the whole path as a pattern.
            first = (entry for entry in directory.iterdir() if entry.name.startswith("process_0_of_"))
            path = min(first, default=path)
        return path.read_bytes()

    def finalize(self, directory: epath.Path):
        pass

    def close(self):
        pass


class FeedHandler(_Checksummed, _FeedFiles):
    """Stores the data position of each process, as opaque bytes, in a separate file."""


@ocp.args.register_with_handler(FeedHandler, for_save=True)
@dataclasses.dataclass
class FeedSave(ocp.args.CheckpointArgs):
    """The data positions to save, by the index of their process."""

    positions: Mapping[int, bytes]


@ocp.args.register_with_handler(FeedHandler, for_restore=True)
@dataclasses.dataclass
class FeedRestore(ocp.args.CheckpointArgs):
    """Requests the data position of a process, by default of this one."""

    process: int | None = None
