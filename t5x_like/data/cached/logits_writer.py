"""Writes teacher logits beside a cache: which shards there are, which of them are complete, and the manifest."""

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import logging
from array_record.python.array_record_module import ArrayRecordWriter

from t5x_like import paths
from t5x_like.data.cached import logits, shard_files, unfinished
from t5x_like.data.cached import manifest as manifests
from t5x_like.data.cached.logits import LogitsManifest
from t5x_like.data.cached.logits_rows import Stored
from t5x_like.data.cached.manifest import MANIFEST, Manifest, StoredFile
from t5x_like.errors import RunFailed, UserError
from t5x_like.version import __version__

# Bytes of a shard. It is computed as a whole, held in memory, and lost if the command is killed.
SHARD_BYTES = 256 * 2**20
# The fewest rows of a shard, so that its batches are full.
_FEWEST_ROWS = 256
_NAMED = 3  # maximum number of files that a message names


@dataclasses.dataclass(frozen=True)
class LogitsPlan:
    """What is written beside one cache.

    Attributes:
      directory: Directory of the teacher logits of this cache.
      cache: Manifest of the cache.
      spec: Digest of the feature spec that the teacher reads.
      teacher: `digest`, `vocabulary` and `dtype` of the teacher.
      teacher_path: Where the teacher was read, for messages.
      predictions: Prediction -> what is stored.
      temperature: Temperature at which the tail is summed.
    """

    directory: str
    cache: Manifest
    spec: str
    teacher: Mapping[str, Any]
    teacher_path: str
    predictions: Mapping[str, Stored]
    temperature: float

    @property
    def rows(self) -> int:
        """The number of rows of the cache."""
        return sum(shard.rows for shard in self.cache.shards)

    @property
    def rows_per_shard(self) -> int:
        """The number of rows of each shard but the last; the largest rows of these fit into `SHARD_BYTES`."""
        row_bytes = sum(stored.positions * stored.bytes_per_position for stored in self.predictions.values())
        return max(_FEWEST_ROWS, SHARD_BYTES // row_bytes)

    def settings(self) -> dict[str, Any]:
        """Returns what determines the contents, as JSON values."""
        return {
            "cache": self.cache.fingerprint,
            "spec": self.spec,
            "teacher": dict(self.teacher),
            "temperature": self.temperature,
            "rows": self.rows_per_shard,
        }

    def units(self) -> dict[str, range]:
        """Returns the name of each shard -> its rows."""
        size, rows = self.rows_per_shard, self.rows
        return {f"{first // size:05d}": range(first, min(first + size, rows)) for first in range(0, rows, size)}

    def file(self, unit: str) -> str:
        """Returns the path of a shard's file relative to the directory."""
        return f"rows/{unit}-of-{len(self.units()):05d}.array_record"

    def begin(self) -> list[str]:
        """Claims the directory, and returns the shards that are complete, of an earlier command or of this one.

        A complete directory whose files are missing or truncated becomes an incomplete one without these.

        Raises:
          UserError: the directory contains other teacher logits.
          RunFailed: the storage is full or cannot be written.
        """
        with self._explained():
            return self._begin()

    def _begin(self) -> list[str]:
        directory = self._unfinished()
        if paths.exists(paths.join(self.directory, MANIFEST)):
            manifest = LogitsManifest.read(self.directory)
            if found := directory.differences(
                {"settings": manifest.settings, "predictions": _json(manifest.predictions)}
            ):
                raise UserError(
                    f"{self.directory} contains {logits.KIND} with other settings ({'; '.join(found)}). Give another "
                    "TEACHER_LOGITS."
                )
            sizes = manifests.sizes(self.directory)
            if not (lost := [shard.file for shard in manifest.shards if sizes.get(shard.file) != shard.size]):
                return list(self.units())
            logging.warning(
                "%s: %d files of complete %s are missing or truncated (%s); writing them again",
                *(self.directory, len(lost), logits.KIND, ", ".join(lost[:_NAMED])),
            )
            written = {shard.file: dataclasses.asdict(shard) for shard in manifest.shards if shard.file not in lost}
            directory.reopen({unit: written[self.file(unit)] for unit in self.units() if self.file(unit) in written})
        directory.claim()
        return list(self._records())

    def write_shard(self, unit: str, records: Sequence[bytes]) -> StoredFile:
        """Writes the records of one shard atomically.

        Raises:
          RunFailed: the storage is full or cannot be written.
        """
        file = self.file(unit)
        target = paths.join(self.directory, file)
        with self._explained(), shard_files.local_file(target) as local:
            writer = ArrayRecordWriter(local, shard_files.WRITER_OPTIONS)
            for record in records:
                writer.write(record)
            writer.close()
            shard = StoredFile(file, len(records), os.path.getsize(local), manifests.checksum(local))
            shard_files.store(local, target)
            unfinished.record(self.directory, unit, dataclasses.asdict(shard))
        return shard

    def finish(self) -> LogitsManifest:
        """Writes the manifest, once all shards are complete, or returns the manifest of a complete directory.

        Raises:
          RunFailed: shards are missing or truncated, or the storage is full or cannot be written.
        """
        if paths.exists(paths.join(self.directory, MANIFEST)):
            return LogitsManifest.read(self.directory)
        done = self._records()
        if missing := [self.file(unit) for unit in self.units() if unit not in done]:
            raise RunFailed(
                f"{len(missing)} of {len(self.units())} shards of {self.directory} are missing or truncated "
                f"({', '.join(missing[:_NAMED])}{', …' if len(missing) > _NAMED else ''}). Repeat the command, which "
                "writes only these."
            )
        manifest = LogitsManifest(
            settings=self.settings(),
            predictions=dict(self.predictions),
            shards=tuple(StoredFile(**done[unit]) for unit in self.units()),
            teacher_path=self.teacher_path,
            versions={"t5x_like": __version__, "jax": jax.__version__},
        )
        with self._explained():
            manifest.write(self.directory)
            self._unfinished().remove()
        return manifest

    def _records(self) -> dict[str, dict[str, Any]]:
        return self._unfinished().shards({unit: self.file(unit) for unit in self.units()})

    def _explained(self) -> contextlib.AbstractContextManager:
        return paths.explain_storage_errors("TEACHER_LOGITS", self.directory, shard_files.ADVICE)

    def _unfinished(self) -> unfinished.Unfinished:
        settings = {"settings": self.settings(), "predictions": _json(self.predictions)}
        return unfinished.Unfinished(self.directory, settings, f"directory of {logits.KIND}", "TEACHER_LOGITS")


def _json(predictions: Mapping[str, Stored]) -> dict[str, Any]:
    return {name: dataclasses.asdict(stored) for name, stored in predictions.items()}
