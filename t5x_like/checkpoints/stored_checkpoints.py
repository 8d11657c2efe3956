"""Lists the checkpoints of a run without waiting for other processes, so that a single process may call it."""

import hashlib

from etils import epath
from orbax.checkpoint import path as orbax_path

from t5x_like import paths
from t5x_like.checkpoints import checksums
from t5x_like.errors import UserError
from t5x_like.metrics.checkpoint_evaluations import Best, CheckpointEvaluations
from t5x_like.runtime.run_files import COMMITTED

# Stores that Orbax reads and writes. Checkpoints in other stores are copied; see `checkpoint_mirror`.
NATIVE_SCHEMES = ("", "file", "gs")


def is_native(directory: str) -> bool:
    """Returns whether Orbax reads and writes a directory, a local path or URL."""
    return (directory.split("://", 1)[0] if "://" in directory else "") in NATIVE_SCHEMES


class StoredCheckpoints:
    """The complete checkpoints in a directory. Unlike `Checkpoints`, it reads no arrays, and copies no files.

    Orbax's manager, on which `Checkpoints` is built, waits for all processes when it is constructed.

    Args:
      directory: The directory `checkpoints` of a run, a local path or URL. It may be missing.
    """

    def __init__(self, directory: str):
        self.directory = directory
        self._evaluations = CheckpointEvaluations(directory)

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints in ascending order."""
        if not is_native(self.directory):
            names = paths.listdir(self.directory)
            return sorted(int(name.removesuffix(COMMITTED)) for name in names if name.endswith(COMMITTED))
        is_local = paths.is_local(self.directory)
        root = epath.Path(paths.local(self.directory).absolute() if is_local else self.directory)
        return sorted(found.step for found in orbax_path.step.standard_name_format().find_all(root))

    def latest(self) -> int | None:
        """Returns the step of the latest checkpoint, or None if there is none."""
        return max(self.steps(), default=None)

    def best(self) -> Best | None:
        """Returns the best checkpoint; see `CheckpointEvaluations.best`."""
        return self._evaluations.best(self.steps())

    def verify_evaluations(self) -> None:
        """Compares the files with the evaluations, which are small, with their checksums.

        Does nothing for stores that Orbax cannot read, whose checkpoints are verified when they are copied.

        Raises:
          UserError: A file does not match its checksum, so that another checkpoint may be the best.
        """
        for step in self.steps() if is_native(self.directory) else ():
            about = epath.Path(self.directory) / str(step) / "about"
            try:
                checksums.verify(about)
            except (checksums.DamagedFile, FileNotFoundError) as error:
                if step not in self.steps():  # the run has deleted it
                    continue
                raise UserError(
                    f"checkpoint {self.directory}/{step} is damaged, so the best checkpoint is not known: {error}. "
                    "Restore the file from a copy, or give the step of a checkpoint instead of `best`."
                ) from error

    def fingerprint(self, step: int) -> str | None:
        """Returns a hash of the checksums of the state of checkpoint `step`, or None if it has none."""
        manifest = paths.join(self.directory, str(step), "state", checksums.MANIFEST)
        if not paths.exists(manifest):
            return None
        return hashlib.blake2b(paths.read_bytes(manifest), digest_size=8).hexdigest()
