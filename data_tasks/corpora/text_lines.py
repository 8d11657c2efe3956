r"""Lines of text files, decompressed while they are read, with an error that names the file and the line."""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import fsspec
import zstandard

from t5x_like.errors import UserError

BYTE_ORDER_MARK = "\N{BYTE ORDER MARK}".encode()
MAX_LINE_BYTES = 1 << 28
"""A longer line is an error. The longest line of a public corpus, text8, has 100 MB."""

# A long line is read in pieces of this many bytes, so that its size is known before all of it is in memory.
_PIECE_BYTES = 1 << 20
# The first bytes of compressed files.
_COMPRESSED = re.compile(rb"\x1f\x8b\x08|BZh[1-9]1AY&SY|\xfd7zXZ\x00|\x28\xb5\x2f\xfd")


class _ZstdReader(io.RawIOBase):
    """Decompresses all frames of a zstd file, and raises an error if the last one is not complete.

    The readers of zstandard end at an incomplete frame as if it were complete.

    Args:
      compressed: the file.
    """

    # A block of 4 bytes may stand for 128 KiB, so this many bytes are at most 32 MiB when they are decompressed.
    _READ_BYTES = 1 << 10

    def __init__(self, compressed: BinaryIO):
        self._compressed = compressed
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._is_complete = True
        self._data = memoryview(b"")

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer) -> int:
        """Decompresses into a buffer; see `io.RawIOBase`."""
        while not self._data:
            if self._frame.eof:
                rest, self._frame = self._frame.unused_data, zstandard.ZstdDecompressor().decompressobj()
                self._is_complete = True
            else:
                rest = b""
            if not (piece := rest or self._compressed.read(self._READ_BYTES)):
                if not self._is_complete:
                    raise EOFError("the last frame ends before its end marker")
                return 0
            self._is_complete = False
            self._data = memoryview(self._frame.decompress(piece))
        count = min(len(buffer), len(self._data))
        buffer[:count], self._data = self._data[:count], self._data[count:]
        return count


_OPEN: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda compressed: io.BufferedReader(_ZstdReader(compressed)),
}
COMPRESSIONS = tuple(_OPEN)
"""The suffixes of compressed files that are decompressed."""


def lines(file: fsspec.core.OpenFile, count_bytes: Callable[[int], None]) -> Iterator[bytes]:
    r"""Yield the lines of a file; all kinds of line ends become \n, and a byte-order mark is removed.

    Args:
      file: a file, which is decompressed according to the suffix of its path.
      count_bytes: called with the number of bytes of each line, or piece of a long line, before the next is read. It
        may raise to end the reading, so that a small compressed file cannot fill the memory.

    Raises:
      UserError: the file cannot be decompressed, has compressed text under the name of a text file, or has a line
        longer than `MAX_LINE_BYTES`.
    """
    number = 0
    decompress = next((opened for suffix, opened in _OPEN.items() if file.path.endswith(suffix)), None)
    try:
        with file as stored:
            # Latin-1 preserves every byte, and the wrapper converts all kinds of line ends.
            text = io.TextIOWrapper(decompress(stored) if decompress else stored, encoding="latin-1", newline=None)
            while line := _line(text, count_bytes, f"{file.path}:{number + 1}"):
                if not number:
                    _check_decompressed(line, file.path)
                    line = line.removeprefix(BYTE_ORDER_MARK)
                yield line
                number += 1
    except Exception as error:
        if decompress is None or not _is_damage(error):
            raise
        raise UserError(
            f"{file.path}:{number + 1}: the compressed file is damaged or not complete ({error}). Copy the file again."
        ) from error


def _line(text: io.TextIOWrapper, count_bytes: Callable[[int], None], where: str) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := text.readline(_PIECE_BYTES):
        size += len(piece)
        count_bytes(len(piece))
        if size > MAX_LINE_BYTES:
            raise UserError(
                f"{where}: the line is longer than {MAX_LINE_BYTES >> 20} MiB. Break the text into shorter lines."
            )
        pieces.append(piece.encode("latin-1"))
        if piece.endswith("\n"):
            break
    return b"".join(pieces)


def _check_decompressed(line: bytes, path: str) -> None:
    if _COMPRESSED.match(line):
        raise UserError(
            f"{path}: the text is compressed in a way that the name does not end in. Rename the file so that it ends "
            f"in one of {' '.join(COMPRESSIONS)}, or decompress it."
        )


def _is_damage(error: Exception) -> bool:
    """Returns whether an error says that compressed data is invalid."""
    if isinstance(error, gzip.BadGzipFile | EOFError | zlib.error | lzma.LZMAError | zstandard.ZstdError):
        return True
    return type(error) is OSError and error.errno is None  # "Invalid data stream" of bz2; other errors have numbers
