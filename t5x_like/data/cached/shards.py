"""Rows by their number, from the files of a cache."""

import bisect
import itertools
import re
import time
from collections.abc import Sequence

from absl import logging
from array_record.python.array_record_module import ArrayRecordReader

from t5x_like import paths
from t5x_like.data.cached.manifest import Shard
from t5x_like.errors import RunFailed

# Of a disk, each row is read alone, without reading on behind it; of a bucket, all rows of a call at the same time.
_FROM_DISK = "readahead_buffer_size:0,max_parallelism:0"
_FROM_BUCKET = "readahead_buffer_size:0"
_BUFFER_BYTES = 4096
# Seconds between one try and the next, of a bucket that did not answer: half a minute in all.
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
# What ArrayRecord says of contents that are not what was written; all its errors are of one kind.
_DAMAGED = re.compile("corrupt|mismatch|should be at least|out of bound", re.IGNORECASE)


class CacheReadError(RunFailed):
    """Rows of a cache are damaged or cannot be read."""


class Shards:
    """The files of a cache as one sequence of records. A file is opened when it is first read."""

    def __init__(self, directory: str, shards: Sequence[Shard]):
        """Args:
        directory: of the cache.
        shards: its files.
        """
        self._directory, self._shards = directory, tuple(shards)
        self._ends = list(itertools.accumulate(shard.rows for shard in shards))
        self._options = _FROM_DISK if paths.is_local(directory) else _FROM_BUCKET
        self._readers: dict[int, ArrayRecordReader] = {}

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, rows: Sequence[int]) -> list[bytes]:
        """The records of these rows, in their order.

        One call a file: each costs as much as reading three rows. What a bucket does not give is asked for again, for
        half a minute.

        Raises:
          CacheReadError: a record is damaged, or its file cannot be reached; the message names the file.
        """
        records: list[bytes] = [b""] * len(rows)
        places: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            places.setdefault(bisect.bisect_right(self._ends, row), []).append(place)
        for number, wanted in places.items():
            first = self._ends[number] - self._shards[number].rows
            found = self._read_file(number, [rows[place] - first for place in wanted])
            for place, record in zip(wanted, found, strict=True):
                records[place] = record
        return records

    def _read_file(self, number: int, rows: Sequence[int]) -> list[bytes]:
        """The records of these rows of one file."""
        file, pauses = self._shards[number].file, () if paths.is_local(self._directory) else _PAUSES
        for tried, pause in enumerate((*pauses, None), 1):
            try:
                return self._reader(number).read(rows)
            except (RuntimeError, ValueError, OSError, IndexError) as error:
                self._readers.pop(number, None)  # one that has failed may go on failing
                if pause is None:
                    raise CacheReadError(self._explained(file, error, tried)) from error
                logging.warning(
                    "%s in the cache %s was not read at try %d of %d (%s): again in %g s",
                    *(file, self._directory, tried, len(pauses) + 1, error, pause),
                )
                time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _explained(self, file: str, error: Exception, tried: int) -> str:
        if _DAMAGED.search(str(error)):
            return (
                f"{file} in the cache {self._directory} is damaged: {error}. Copy that file again, or delete it and "
                "repeat the `t5x_like cache` command that wrote the cache, which writes it anew"
            )
        times = f" in {tried} tries over {sum(_PAUSES):.0f} s" if tried > 1 else ""
        return (
            f"{file} in the cache {self._directory} cannot be read{times}: {error}. See whether it is there and can be "
            "reached; the same command, started again, goes on from the last checkpoint"
        )

    def _reader(self, number: int) -> ArrayRecordReader:
        # Two threads may both open a file; one reader is kept then.
        if (reader := self._readers.get(number)) is None:
            path = paths.join(self._directory, self._shards[number].file)
            reader = ArrayRecordReader(path, self._options, file_reader_buffer_size=_BUFFER_BYTES)
            self._readers[number] = reader
        return reader
