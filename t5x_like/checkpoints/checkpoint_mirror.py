"""Copies checkpoints between a local directory and a store that Orbax cannot write to."""

import pathlib
import tempfile

import fsspec
import jax
from absl import logging

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.runtime.run_files import COMMITTED


class CheckpointMirror:
    """A local directory with the checkpoints of a store that Orbax cannot write to.

    `<url>/<step>/…` has the files of a checkpoint. The marker object `<url>/<step>.committed` is written last, so a
    checkpoint with a marker is complete.

    Args:
      url: A URL that fsspec opens. Its complete checkpoints are downloaded.

    Raises:
      UserError: The run has several processes.

    Attributes:
      local: The path of the local directory.
    """

    def __init__(self, url: str):
        if jax.process_count() > 1:
            raise UserError(
                f"MODEL_DIR={url}: a run of several processes cannot write there. Give a shared local path or gs://…"
            )
        self._url = url
        self._filesystem, root = fsspec.core.url_to_fs(url)
        self._root = root.rstrip("/")
        self._directory = tempfile.TemporaryDirectory(prefix="t5x_like_checkpoints_")
        self.local = self._directory.name
        for step in self._steps():
            self._filesystem.get(f"{self._root}/{step}/", f"{self.local}/{step}/", recursive=True)
            logging.info("copied checkpoint %d from %s", step, url)

    def _steps(self) -> set[int]:
        return {int(name.removesuffix(COMMITTED)) for name in paths.listdir(self._url) if name.endswith(COMMITTED)}

    def upload(self) -> None:
        """Uploads new checkpoints and deletes those that the local directory no longer has."""
        local = {int(entry.name) for entry in pathlib.Path(self.local).iterdir() if entry.name.isdigit()}
        stored = self._steps()
        for step in sorted(local - stored):
            self._filesystem.makedirs(f"{self._root}/{step}", exist_ok=True)
            self._filesystem.put(f"{self.local}/{step}/", f"{self._root}/{step}/", recursive=True)
            paths.write_atomic(paths.join(self._url, f"{step}{COMMITTED}"), "complete\n")
        for step in sorted(stored - local):
            paths.remove(paths.join(self._url, f"{step}{COMMITTED}"))
        for name in paths.listdir(self._url):  # checkpoints without a marker: deleted above, or left by a killed run
            if name.isdigit() and int(name) not in local:
                self._filesystem.rm(f"{self._root}/{name}", recursive=True)

    def close(self) -> None:
        """Deletes the local directory."""
        self._directory.cleanup()
