"""Checkpoints that each process stores on its own host, in memory or on a local disk."""

import dataclasses
import hashlib
import os
import shutil
from collections.abc import Mapping
from typing import Any

import jax
from absl import logging
from etils import epath

from t5x_like import checkpoint_paths, paths
from t5x_like.checkpoints import checksums
from t5x_like.checkpoints.checkpoint_store import ITEMS, CheckpointStore
from t5x_like.errors import UserError

# The file with the run directory that local checkpoints belong to, for the user who finds them.
_OWNER = "model_dir.txt"
# Keys of the item `about`.
LAYOUT, HAS_POSITIONS = "local_layout", "local_positions"


@dataclasses.dataclass(frozen=True)
class LocalTier:
    """Where and how often a run saves on each host.

    Args:
      directory: A directory of each host that outlives the process, such as a ramdisk or local SSD.
      save_period: Steps between two local checkpoints.
    """

    directory: str
    save_period: int = 100

    def check(self, model_dir: str | os.PathLike | None) -> str:
        """Checks what can be checked on any machine, and returns the directory as an absolute path.

        Raises:
          UserError: The directory is not a path, is a URL, has characters that Orbax cannot write to, or is in the run
            directory.
        """
        directory = self.directory
        if not isinstance(directory, str | os.PathLike) or not str(directory):
            raise UserError(f"LOCAL_DIRECTORY={directory!r} is not a path. Give a directory of each host.")
        if not paths.is_local(directory):
            raise UserError(
                f"LOCAL_DIRECTORY={directory} is not a local path. Give a directory of each host, such as a ramdisk; "
                "MODEL_DIR is the place for a bucket."
            )
        checkpoint_paths.check_checkpoint_directory("LOCAL_DIRECTORY", str(directory))
        absolute = os.path.abspath(paths.local(directory))
        if isinstance(model_dir, str | os.PathLike) and paths.is_local(model_dir):
            run = os.path.abspath(paths.local(model_dir))
            if os.path.commonpath([run, absolute]) == run:
                raise UserError(
                    f"LOCAL_DIRECTORY={directory} is in MODEL_DIR={model_dir}. Give a directory outside of it."
                )
        return absolute

    def saves_at(self, step: int) -> bool:
        """Returns whether a local checkpoint follows `step`."""
        return step % self.save_period == 0

    def check_writable(self) -> None:
        """Checks that the directory can be created or written to on this host.

        Raises:
          UserError: It cannot.
        """
        paths.check_writable("LOCAL_DIRECTORY", self.directory)


class LocalCheckpoints:
    """The local checkpoints of one process: the arrays that its devices hold.

    They are in `directory/<run_id>/process_<i>_of_<n>/<step>`. Another run, or another number of processes, therefore
    never reads them. A process never waits for others.

    Args:
      directory: An absolute path of this host.
      run_id: An identifier that no other run has.
      model_dir: The run directory, for messages.

    Raises:
      UserError: The directory cannot be created or written to.

    Attributes:
      directory: The directory of this process.
    """

    def __init__(self, directory: str, run_id: str, model_dir: str):
        paths.check_writable("LOCAL_DIRECTORY", directory)
        root = epath.Path(directory)
        process, count = jax.process_index(), jax.process_count()
        self.directory = root / run_id / f"process_{process}_of_{count}"
        with paths.explain_path_errors("LOCAL_DIRECTORY", directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            paths.write_atomic(root / run_id / f"{process}.{_OWNER}", model_dir + "\n")
        _warn_of_other_runs(root, run_id)
        self._store = CheckpointStore(self.directory, process=process)

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints in ascending order."""
        return self._store.steps()

    def describe(self, step: int, layout: str) -> dict[str, Any]:
        """Describes a checkpoint to other processes.

        Args:
          step: One of `steps()`.
          layout: The result of `digest` for the arrays to restore.

        Returns:
          `problem`, which is empty if this process can restore the arrays, and `has_positions`, which says whether the
          checkpoint has the data positions of all processes.
        """
        try:
            self._store.verify(step, "about")
            about = self._store.read_about(step)
        except Exception as error:  # a damaged file may raise any error
            return {"problem": f"damaged: {error}", "has_positions": False}
        problem = "" if about.get(LAYOUT) == layout else "saved with another mesh, other processes or other arrays"
        return {"problem": problem, "has_positions": bool(about.get(HAS_POSITIONS))}

    def damage(self, step: int) -> str:
        """Compares the files of a checkpoint with their checksums, and returns the first problem; empty if none."""
        try:
            for item in ITEMS:
                if not self._store.verify(step, item):
                    return f"damaged: {self.directory / str(step) / item} has no checksums"
        except checksums.DamagedFile as error:
            return f"damaged: {error}"
        except Exception as error:  # a bad disk may raise any error, and the other processes wait for the result
            return f"cannot be read: {error}"
        return ""

    def save(
        self, step: int, leaves: Mapping[str, jax.Array], positions: Mapping[int, bytes], about: Mapping[str, Any]
    ) -> None:
        """Starts to save a checkpoint.

        Args:
          step: Its step.
          leaves: The arrays by stored name.
          positions: Data positions by the index of their process: of all processes, or of this one.
          about: Properties of the run, as JSON values.
        """
        about = {**about, LAYOUT: digest(leaves), HAS_POSITIONS: len(positions) == jax.process_count()}
        self._store.save(step, leaves, positions, about)

    def keep_only(self, step: int | None) -> None:
        """Deletes all checkpoints except `step`."""
        for other in self.steps():
            if other != step:
                self._store.delete(other)

    def delete_others(self, step: int | None) -> None:
        """Deletes all checkpoints except `step`, and checkpoints of other numbers of processes."""
        self.keep_only(step)
        for other in self.directory.parent.iterdir():
            if other.is_dir() and not other.name.endswith(f"_of_{jax.process_count()}"):
                shutil.rmtree(other, ignore_errors=True)  # another process of this host may delete it, too

    def delete(self, step: int) -> None:
        """Deletes a checkpoint."""
        self._store.delete(step)

    def read(self, step: int, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Reads arrays by stored name. The devices of this process must need the parts that they held."""
        return self._store.read(step, shapes)

    def read_position(self, step: int, process: int) -> bytes:
        """Returns the data position of a process."""
        return self._store.read_position(step, process)

    def read_about(self, step: int) -> dict[str, Any]:
        """Returns the properties that `save` stored."""
        return self._store.read_about(step)

    def wait(self) -> None:
        """Blocks until the save in progress has committed."""
        self._store.wait()

    def close(self) -> None:
        """Waits for the save in progress and releases all resources."""
        self._store.close()


def digest(arrays: Mapping[str, jax.Array | jax.ShapeDtypeStruct]) -> str:
    """Returns a digest of the names, shapes and types of arrays, and of the parts that this process holds."""
    lines = [f"process {jax.process_index()} of {jax.process_count()}"]
    for name, array in sorted(arrays.items()):
        indices = array.sharding.addressable_devices_indices_map(array.shape).values()
        parts = {
            tuple(part.indices(size)[:2] for part, size in zip(index, array.shape, strict=True)) for index in indices
        }
        lines.append(f"{name} {tuple(array.shape)} {array.dtype} {sorted(parts)}")
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def _warn_of_other_runs(root: epath.Path, run_id: str) -> None:
    for other in sorted(root.iterdir()):
        if other.name != run_id and (owners := sorted(other.glob(f"*.{_OWNER}")) if other.is_dir() else []):
            logging.warning(
                "%s has local checkpoints of another run, MODEL_DIR=%s, which are not used here. If that run has ended "
                "or starts from its bucket, delete them to free space",
                *(other, owners[0].read_text().strip()),
            )
