"""Reads rows by number from the files of a cache."""

import bisect
import collections
import contextlib
import itertools
import re
import resource
import threading
import time
from collections.abc import Sequence

from absl import logging
from array_record.python.array_record_module import ArrayRecordReader

from t5x_like import paths
from t5x_like.data.cached.manifest import StoredFile
from t5x_like.errors import RunFailed

# From a disk, each row is read alone and without readahead; from a bucket, all rows of a call are read in parallel.
_FROM_DISK = "readahead_buffer_size:0,max_parallelism:0"
_FROM_BUCKET = "readahead_buffer_size:0"
_BUFFER_BYTES = 4096
# The limit of open files that is asked for if the default is too low.
_OPEN_FILES = 2**16
# Seconds between attempts to read from a bucket that did not respond: half a minute in total.
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
# Messages of ArrayRecord for damaged contents; all its errors have the same type.
_DAMAGED = re.compile("corrupt|truncated|mismatch|should be at least|out of bound", re.IGNORECASE)


class CacheReadError(RunFailed):
    """Rows of a cache are damaged or cannot be read."""


class Shards:
    """The files of a cache as one sequence of records. A file is opened when it is first read.

    Args:
      directory: Directory of the cache.
      shards: Files of the cache.
      kind: What the directory is, for messages.
      command: Command that writes it, for messages.
    """

    def __init__(self, directory: str, shards: Sequence[StoredFile], *, kind: str = "cache", command: str = "cache"):
        self._directory, self._shards, self._kind, self._command = directory, tuple(shards), kind, command
        self._ends = list(itertools.accumulate(shard.rows for shard in shards))
        self._options = _FROM_DISK if paths.is_local(directory) else _FROM_BUCKET
        self._readers: collections.OrderedDict[int, ArrayRecordReader] = collections.OrderedDict()
        self._lock, self._most_open = threading.Lock(), allow_open_files(len(self._shards))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, rows: Sequence[int]) -> list[bytes]:
        """Reads the records of rows, in the given order.

        Each file is read by one call, because a call costs as much as reading three rows. A failed read from a bucket
        is retried for half a minute.

        Args:
          rows: Numbers of rows.

        Raises:
          CacheReadError: a record is damaged, or its file cannot be reached; the message names the file.
        """
        records: list[bytes] = [b""] * len(rows)
        indices_by_file: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            indices_by_file.setdefault(bisect.bisect_right(self._ends, row), []).append(index)
        for number, indices in indices_by_file.items():
            first = self._ends[number] - self._shards[number].rows
            found = self._read_file(number, [rows[index] - first for index in indices])
            for index, record in zip(indices, found, strict=True):
                records[index] = record
        return records

    def _read_file(self, number: int, rows: Sequence[int]) -> list[bytes]:
        """Reads the records of rows of one file."""
        file, pauses = self._shards[number].file, () if paths.is_local(self._directory) else _PAUSES
        for tried, pause in enumerate((*pauses, None), 1):
            try:
                records = self._reader(number).read(rows)
                # For a file that was truncated after it was opened, ArrayRecord returns empty records without an error.
                if empty := [row for row, record in zip(rows, records, strict=True) if not record]:
                    raise ValueError(f"row {empty[0]} is truncated")
                return records
            except (RuntimeError, ValueError, OSError, IndexError) as error:
                with self._lock:
                    self._readers.pop(number, None)  # a reader that has failed may keep failing
                if pause is None:
                    raise CacheReadError(self._error_message(file, error, tried)) from error
                logging.warning(
                    "%s in the %s %s could not be read in attempt %d of %d (%s); retrying in %g s",
                    *(file, self._kind, self._directory, tried, len(pauses) + 1, error, pause),
                )
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _error_message(self, file: str, error: Exception, tried: int) -> str:
        where = f"{file} in the {self._kind} {self._directory}"
        if _DAMAGED.search(str(error)):
            return (
                f"{where} is damaged: {error}. Copy the file again, or delete it and "
                f"repeat the `t5x_like {self._command}` command of the {self._kind}, which writes the file again."
            )
        attempts = f" in {tried} attempts over {sum(_PAUSES):.0f} s" if tried > 1 else ""
        return (
            f"{where} cannot be read{attempts}: {error}. Check that the file exists and "
            "is reachable, then repeat the command; it resumes from the last checkpoint."
        )

    def _reader(self, number: int) -> ArrayRecordReader:
        with self._lock:
            if (reader := self._readers.get(number)) is not None:
                self._readers.move_to_end(number)
                return reader
        # If two threads open the same file, only one of the readers is kept.
        path = paths.join(self._directory, self._shards[number].file)
        reader = ArrayRecordReader(path, self._options, file_reader_buffer_size=_BUFFER_BYTES)
        with self._lock:
            self._readers[number] = reader
            while len(self._readers) > self._most_open:
                self._readers.popitem(last=False)  # another thread that reads from it has a reference
        return reader


def allow_open_files(number: int) -> int:
    """Raises the limit of open files of this process if a cache has many, and returns how many files it may open.

    Many systems allow 1,024 open files by default, and more on request. Half of them are left to the other parts of the
    process. Opening a file again reads its index, which takes longer than reading hundreds of rows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return number
    if 2 * number > soft:
        wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
        with contextlib.suppress(ValueError, OSError):  # some systems have a lower limit than they state
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
            soft = max(soft, wanted)
    return max(soft // 2, 1)
