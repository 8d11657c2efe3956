"""Rows by their number, from the files of a cache."""

import bisect
import itertools
from collections.abc import Sequence

from array_record.python.array_record_module import ArrayRecordReader

from t5x_like import paths
from t5x_like.data.cached.manifest import Shard

# Of a disk, each row is read alone, without reading on behind it; of a bucket, all rows of a call at the same time.
_FROM_DISK = "readahead_buffer_size:0,max_parallelism:0"
_FROM_BUCKET = "readahead_buffer_size:0"
_BUFFER_BYTES = 4096


class Shards:
    """The files of a cache as one sequence of records. A file is opened when it is first read."""

    def __init__(self, folder: str, shards: Sequence[Shard]):
        """Args:
        folder: of the cache.
        shards: its files.
        """
        self._folder, self._shards = folder, tuple(shards)
        self._ends = list(itertools.accumulate(shard.rows for shard in shards))
        self._options = _FROM_DISK if paths.is_local(folder) else _FROM_BUCKET
        self._readers: dict[int, ArrayRecordReader] = {}

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, rows: Sequence[int]) -> list[bytes]:
        """The records of these rows, in their order.

        One call a file: each costs as much as reading three rows.

        Raises:
          ValueError: a record is damaged, or its file gone; the message names the file.
        """
        records: list[bytes] = [b""] * len(rows)
        places: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            places.setdefault(bisect.bisect_right(self._ends, row), []).append(place)
        for number, wanted in places.items():
            first = self._ends[number] - self._shards[number].rows
            try:
                found = self._reader(number).read([rows[place] - first for place in wanted])
            except (RuntimeError, ValueError, OSError, IndexError) as error:
                raise ValueError(
                    f"{self._shards[number].file} in the cache {self._folder} cannot be read: {error}. Copy the cache "
                    "again, or write it again with `t5x_like cache`"
                ) from error
            for place, record in zip(wanted, found, strict=True):
                records[place] = record
        return records

    def _reader(self, number: int) -> ArrayRecordReader:
        # Two threads may both open a file; one reader is kept then.
        if number not in self._readers:
            path = paths.join(self._folder, self._shards[number].file)
            self._readers[number] = ArrayRecordReader(path, self._options, file_reader_buffer_size=_BUFFER_BYTES)
        return self._readers[number]
