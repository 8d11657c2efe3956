"""Orbax handlers for the items of a checkpoint, which store checksums of their files before the checkpoint commits."""

import dataclasses

import jax
import orbax.checkpoint as ocp
from etils import epath

from t5x_like.training import checksums


class _Checksummed:
    """Stores checksums in `finalize`, which Orbax calls in one process after all have written, before the commit."""

    def finalize(self, directory: epath.Path) -> None:
        super().finalize(directory)
        checksums.write(directory)


class StateHandler(_Checksummed, ocp.PyTreeCheckpointHandler):
    """Stores the arrays; each process computes the checksums of its own files."""

    async def async_save(self, directory: epath.Path, *args, **kwargs):
        """Starts writing; the returned futures complete once this process has written arrays and checksums."""
        written = await super().async_save(directory, *args, **kwargs) or []
        process = jax.process_index()
        # If another version of Orbax writes to other directories, `finalize` covers the files instead.
        return [
            ocp.future.ChainedFuture(
                written, cb=lambda: checksums.write_part(directory, f"ocdbt.process_{process}", process)
            )
        ]


@ocp.args.register_with_handler(StateHandler, for_save=True)
class StateSave(ocp.args.PyTreeSave):
    pass


@ocp.args.register_with_handler(StateHandler, for_restore=True)
class StateRestore(ocp.args.PyTreeRestore):
    pass


class AboutHandler(_Checksummed, ocp.JsonCheckpointHandler):
    """Stores a dictionary as JSON."""


@ocp.args.register_with_handler(AboutHandler, for_save=True)
class AboutSave(ocp.args.JsonSave):
    pass


@ocp.args.register_with_handler(AboutHandler, for_restore=True)
class AboutRestore(ocp.args.JsonRestore):
    pass


class _FeedFiles(ocp.CheckpointHandler):
    def save(self, directory: epath.Path, args: "FeedSave"):
        (directory / f"process_{jax.process_index()}_of_{jax.process_count()}.bin").write_bytes(args.position)

    def restore(self, directory: epath.Path, args: "FeedRestore | None" = None) -> bytes:
        """Returns the position of this process, or of process 0 if another number of processes wrote it.

        Sources with one global order, such as caches, can resume from any process's position. A live feed detects the
        mismatch and raises.
        """
        path = directory / f"process_{jax.process_index()}_of_{jax.process_count()}.bin"
        if not path.exists():
            # Not `directory.glob`: it reads brackets in the whole path as a pattern.
            first = (entry for entry in directory.iterdir() if entry.name.startswith("process_0_of_"))
            path = min(first, default=path)
        return path.read_bytes()

    def finalize(self, directory: epath.Path):
        pass

    def close(self):
        pass


class FeedHandler(_Checksummed, _FeedFiles):
    """Stores the opaque data position of each process in a separate file."""


@ocp.args.register_with_handler(FeedHandler, for_save=True)
@dataclasses.dataclass
class FeedSave(ocp.args.CheckpointArgs):
    position: bytes


@ocp.args.register_with_handler(FeedHandler, for_restore=True)
@dataclasses.dataclass
class FeedRestore(ocp.args.CheckpointArgs):
    pass
