"""Limits the headers of web archives, whose lines warcio joins piece by piece, in quadratic time."""

from typing import Any

from data_tasks.corpora.formats.base import require
from t5x_like import limits

_FIRST_LINE = b"WARC/"


class Lines:
    """The headers of a response at the start of the content of a record.

    Args:
      stream: The content, of warcio.
    """

    def __init__(self, stream: Any):
        self._stream, self._left = stream, limits.HEADER_BYTES

    def readline(self) -> bytes:
        """Reads a line.

        Raises:
          ArchiveLoadFailed: The headers are too long.
        """
        line = self._stream.readline(self._left)
        self._left -= len(line)
        if not self._left:
            raise _too_long()
        return line


def limit(archive: Any) -> None:
    """Limits the lines between the contents of two records to `limits.HEADER_BYTES`.

    Args:
      archive: A `warcio.ArchiveIterator`, which then raises `ArchiveLoadFailed` for longer ones.
    """
    read, size = archive.reader.readline, 0

    def readline(length: int | None = None) -> bytes:
        nonlocal size
        line = read(length or limits.HEADER_BYTES)
        if length is None:  # otherwise a line of the content
            size = len(line) + (0 if line.startswith(_FIRST_LINE) else size)
            if size >= limits.HEADER_BYTES:
                raise _too_long()
        return line

    archive.reader.readline = readline


def _too_long() -> Exception:
    failures = require("warcio.exceptions", "WARC")
    return failures.ArchiveLoadFailed(f"headers of more than {limits.HEADER_BYTES:,} bytes")
