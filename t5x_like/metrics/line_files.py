"""Files of JSON lines that one process extends and others read: appended on a disk, replaced as a whole in a store."""

import json
import os
import time
from typing import Any, Protocol

from t5x_like import own_files, paths
from t5x_like.errors import UserError

# An object in a store can only be replaced as a whole, so lines are uploaded at most this often.
_UPLOAD_SECONDS = 60.0


class LineFile(Protocol):
    """A file of lines that is open for writing. All methods raise `OSError` if the file cannot be written."""

    def append(self, line: str) -> None:
        """Adds a line, which ends with a newline."""

    def flush(self) -> None:
        """Blocks until all lines are durable."""

    def close(self) -> None:
        """Flushes and closes the file."""


def create(path: str, text: str = "") -> LineFile:
    """Replaces a file atomically by one with the lines `text`, and returns it, to add lines."""
    if paths.is_local(path):
        paths.write_atomic(path, text)
        return AppendedFile(path)
    return _StoredObject(path, text)


def read(path: str) -> list[tuple[int, Any]]:
    """Returns the number, from 1, and the value of each line. An incomplete last line of a killed process is ignored.

    Raises:
      UserError: A line is not valid JSON. The message names file and line.
    """
    *lines, _ = paths.read_text(path).split("\n")  # the last line is empty or incomplete
    values = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            values.append((number, json.loads(line)))
        except json.JSONDecodeError as error:
            raise damaged(path, number, f"not valid JSON ({error})") from error
    return values


def damaged(path: str, number: int, problem: str) -> UserError:
    """Returns the error for line `number` of a file, counted from 1."""
    return UserError(f"{path}, line {number}: {problem}. Restore the file from a copy, or delete the line.")


class AppendedFile:
    """A local file in an existing directory, to which lines are added. Each line is visible to readers immediately."""

    def __init__(self, path: str):
        self._path, self._file = path, None

    def append(self, line: str) -> None:
        """Adds a line, which ends with a newline."""
        if self._file is None:
            # Unbuffered, so that a failed write is not retried when the file is closed.
            self._file = own_files.open_own(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        own_files.write(self._file, line.encode())

    def flush(self) -> None:
        """Blocks until all lines are durable."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flushes and closes the file."""
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                os.fsync(file.fileno())


class _StoredObject:
    """An object in a store, whose lines are kept in memory to replace it."""

    def __init__(self, path: str, text: str):
        self._path, self._lines = path, [text]
        self.flush()

    def append(self, line: str) -> None:
        self._lines.append(line)
        if time.monotonic() - self._uploaded > _UPLOAD_SECONDS:
            self.flush()

    def flush(self) -> None:
        paths.write_atomic(self._path, "".join(self._lines))
        self._uploaded = time.monotonic()

    def close(self) -> None:
        self.flush()
