r"""Lines of text files, decompressed while they are read, with an error that names the file and the line."""

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import fsspec

from data_tasks.corpora.compression import COMPRESSIONS, decompress, is_compressed, is_damage
from t5x_like.errors import UserError

BYTE_ORDER_MARK = "\N{BYTE ORDER MARK}".encode()
MAX_LINE_BYTES = 1 << 27
"""A longer line is an error. The longest line of a public corpus, text8, has 100 MB."""

# A long line is read in pieces of this many bytes, so that its size is known before all of it is in memory.
_PIECE_BYTES = 1 << 20
# The first bytes of compressed files.
_COMPRESSED = re.compile(rb"\x1f\x8b\x08|BZh[1-9]1AY&SY|\xfd7zXZ\x00|\x28\xb5\x2f\xfd")
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")  # UTF-32 begins with the same bytes on most systems


class DamagedFile(UserError):
    """A file that cannot be read, or only in part."""


class Line(NamedTuple):
    r"""A line of a file.

    Attributes:
      data: the line, which ends in \n unless it is the last one; None if it is longer than `MAX_LINE_BYTES`.
      end: bytes of the decompressed file up to the end of the line.
    """

    data: bytes | None
    end: int


def lines(file: fsspec.core.OpenFile, count_bytes: Callable[[int], None]) -> Iterator[bytes]:
    r"""Yield the lines of a file; all kinds of line ends become \n, and a byte-order mark is removed.

    Args:
      file: a file, which is decompressed according to the suffix of its path.
      count_bytes: called with the number of bytes of each line, or piece of a long line, before the next is read. It
        may raise to end the reading, so that a small compressed file cannot fill the memory.

    Raises:
      DamagedFile: the file cannot be decompressed, or has compressed text under the name of a text file.
      UserError: a line is longer than `MAX_LINE_BYTES`.
    """
    for number, line in enumerate(positioned_lines(file, count_bytes=count_bytes), 1):
        if line.data is None:
            raise UserError(f"{file.path}:{number}: {too_long('line')}. Break the text into shorter lines.")
        yield line.data


def too_long(record: str) -> str:
    """Returns what is wrong with a line or another record without data."""
    return f"the {record} is longer than {MAX_LINE_BYTES >> 20} MiB"


def positioned_lines(
    file: fsspec.core.OpenFile,
    *,
    offset: int = 0,
    number: int = 0,
    count_bytes: Callable[[int], None] = lambda number_of_bytes: None,
) -> Iterator[Line]:
    """Yields the lines of a file with their positions.

    Args:
      file: see `lines`.
      offset: bytes of the decompressed file to skip: the end of a line.
      number: number of the lines before, for messages.
      count_bytes: see `lines`.

    Raises:
      DamagedFile: see `lines`.
    """
    position = 0
    try:
        with file as stored:
            try:
                for line in _lines(decompress(stored, file.path, offset), file.path, offset, count_bytes):
                    offset, number = line.end, number + 1
                    yield line
            finally:
                position = stored.tell()
    except Exception as error:
        if not (is_compressed(file.path) and is_damage(error)):
            raise
        raise DamagedFile(
            f"{file.path}:{number + 1}: the compressed file is damaged or not complete after {offset:,} bytes of text, "
            f"{before_end(file, position)} ({error}). Copy the file again."
        ) from error


def before_end(file: fsspec.core.OpenFile, position: int) -> str:
    """Returns how many bytes of a damaged file are not read, for messages.

    Args:
      file: the file.
      position: bytes of the stored file that were read. Readers are ahead of the place of the damage.
    """
    return f"at least {max(file.fs.size(file.path) - position, 0):,} bytes before its end"


def _lines(contents: BinaryIO, path: str, offset: int, count_bytes: Callable[[int], None]) -> Iterator[Line]:
    """Yields the lines of the contents of a file from `offset` on."""
    while raw := _raw_line(contents, count_bytes):
        if not offset:
            _check_encoding(raw[0], path)
        if raw[1] > MAX_LINE_BYTES:
            offset += raw[1]
            yield Line(None, offset)
            continue
        for line in raw[0].splitlines(keepends=True):
            text = line.rstrip(b"\r\n") + b"\n" * line.endswith((b"\r", b"\n"))
            text = text if offset else text.removeprefix(BYTE_ORDER_MARK)
            offset += len(line)
            yield Line(text, offset)


def _raw_line(contents: BinaryIO, count_bytes: Callable[[int], None]) -> tuple[bytes, int] | None:
    r"""Returns a line up to \n with its size, or None at the end. Of a line that is too long, the beginning."""
    pieces: list[bytes] = []
    size = 0
    while piece := contents.readline(_PIECE_BYTES):
        size += len(piece)
        count_bytes(len(piece))
        if size <= MAX_LINE_BYTES:
            pieces.append(piece)
        else:
            del pieces[1:]
        if piece.endswith(b"\n"):
            break
    return (b"".join(pieces), size) if size else None


def _check_encoding(line: bytes, path: str) -> None:
    if _COMPRESSED.match(line):
        raise DamagedFile(
            f"{path}: the text is compressed in a way that the name does not end in. Rename the file so that it ends "
            f"in one of {' '.join(COMPRESSIONS)}, or decompress it."
        )
    if line.startswith(_UTF_16_MARKS):
        raise DamagedFile(
            f"{path}: the text is UTF-16. Convert it to UTF-8, for example with iconv -f UTF-16 -t UTF-8."
        )
