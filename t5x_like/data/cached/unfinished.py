"""Directories of shards that are not complete: their settings, and a record of each complete shard.

Both are in `unfinished/` of the directory, until its manifest is written and they are removed.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import fsspec
from absl import logging

from t5x_like import paths
from t5x_like.data.cached import manifest as manifests
from t5x_like.data.cached import shard_files
from t5x_like.data.cached.manifest import PLAN, UNFINISHED
from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class Unfinished:
    """The settings and the complete shards of a directory that is being written.

    Attributes:
      directory: Directory of the shards.
      settings: Part -> settings that determine the contents of the shards, as JSON values.
      kind: What the directory is, for messages: `cache`.
      setting: The setting that the directory comes from, for messages.
    """

    directory: str
    settings: Mapping[str, Mapping[str, Any]]
    kind: str
    setting: str

    def claim(self) -> None:
        """Stores the settings, and removes the temporary files of processes that were killed.

        Raises:
          UserError: the directory is unfinished with other settings.
        """
        path = paths.join(self.directory, UNFINISHED, PLAN)
        if paths.exists(path):
            if found := self.differences(json.loads(paths.read_text(path))):
                raise UserError(
                    f"{self.directory} is an incomplete {self.kind} with other settings ({'; '.join(found)}). Delete "
                    f"it, or give another {self.setting}."
                )
        else:
            self._store()
        shard_files.remove_stale(self.directory)

    def differences(self, stored: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Describes the stored settings that differ from the settings of this command."""
        wanted = self.settings
        return [line for part in stored for line in manifests.differences(stored[part], wanted.get(part, {}))]

    def shards(self, names: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Returns the records of complete shards: each has a record, and its file has the recorded size.

        Args:
          names: Name of each shard -> its file, relative to the directory.

        Returns:
          Name -> record.
        """
        done, sizes = {}, manifests.sizes(self.directory)
        recorded = [name for name in names if f"{UNFINISHED}/{name}.json" in sizes]
        for name, shard in zip(recorded, self._read(recorded), strict=True):
            if shard["rows"] and sizes.get(names[name]) != shard["size"]:
                logging.warning("%s in %s is missing or truncated; writing it again", names[name], self.directory)
                continue
            done[name] = shard
        return done

    def _read(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the records of shards, which are read concurrently from a bucket: there may be thousands."""
        if not names:
            return []
        filesystem, root = fsspec.core.url_to_fs(paths.join(self.directory, UNFINISHED))
        files = [f"{root}/{name}.json" for name in names]
        contents = filesystem.cat(files, recursive=False)
        contents = contents if isinstance(contents, dict) else dict.fromkeys(files, contents)
        return [json.loads(contents[file]) for file in files]

    def reopen(self, shards: Mapping[str, Mapping[str, Any]]) -> None:
        """Makes a complete directory unfinished again: records these shards, then removes the manifest."""
        self._store()
        for name, shard in shards.items():
            record(self.directory, name, shard)
        paths.remove(paths.join(self.directory, manifests.MANIFEST))

    def remove(self) -> None:
        """Removes the settings and the records, once the manifest is written."""
        filesystem, inner = fsspec.core.url_to_fs(paths.join(self.directory, UNFINISHED))
        filesystem.rm(inner, recursive=True)

    def _store(self) -> None:
        paths.write_atomic(paths.join(self.directory, UNFINISHED, PLAN), json.dumps(self.settings, indent=1))


def record(directory: str, name: str, shard: Mapping[str, Any]) -> None:
    """Records that a shard of an unfinished directory is complete."""
    paths.write_atomic(_path(directory, name), json.dumps(shard))


def _path(directory: str, name: str) -> str:
    return paths.join(directory, UNFINISHED, f"{name}.json")
