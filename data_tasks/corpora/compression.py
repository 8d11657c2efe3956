"""Files that are decompressed while they are read."""

import bz2
import contextlib
import functools
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable
from typing import BinaryIO

import zstandard

# Bytes that are read at once to skip the beginning of a compressed file.
_SKIPPED_BYTES = 1 << 20
# The first bytes of a member of a gzip file, and the format for zlib.
_MEMBER, _GZIP = b"\x1f\x8b\x08", zlib.MAX_WBITS + 16
# Windows of `zstd --long=31` are read, too; the default of the library ends at 2^27 bytes.
_zstd = functools.partial(zstandard.ZstdDecompressor, max_window_size=1 << 31)


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
        self._frame = _zstd().decompressobj()
        self._is_complete = True
        self._data = memoryview(b"")

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer) -> int:
        """Decompresses into a buffer; see `io.RawIOBase`."""
        while not self._data:
            if self._frame.eof:
                rest, self._frame = self._frame.unused_data, _zstd().decompressobj()
                self._is_complete = True
            else:
                rest = b""
            if not (piece := rest or self._compressed.read(self._READ_BYTES)):
                if not self._is_complete:
                    raise EOFError("the last frame ends before its end marker")
                return 0
            self._is_complete = False
            self._data = memoryview(b"")  # frees the previous piece before the next one is decompressed
            self._data = memoryview(self._frame.decompress(piece))
        count = min(len(buffer), len(self._data))
        buffer[:count], self._data = self._data[:count], self._data[count:]
        return count


class GzipMembers(io.RawIOBase):
    """Decompresses the members of a gzip file. The member after a damaged one can be found.

    Before a member whose first bytes are damaged, the contents end, so that a reader which is ahead of its record reads
    the record before it. Damage behind them is an error.

    Args:
      compressed: the file, at the start of a member.

    Attributes:
      start: where the current member begins in the file.
      damage: the error of a member at which the contents have ended.
    """

    _READ_BYTES = 1 << 12  # at most 4 MiB when they are decompressed

    def __init__(self, compressed: BinaryIO):
        self._compressed, self.start = compressed, compressed.tell()
        self.damage: zlib.error | None = None
        self._member, self._stored, self._data = None, b"", memoryview(b"")
        self._has_begun = False

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer) -> int:
        """Decompresses into a buffer; see `io.RawIOBase`."""
        while not self._data and self.damage is None:
            if not self._stored and not (piece := self._compressed.read(self._READ_BYTES)):
                if self._member is not None:
                    raise EOFError("the last member ends before its end marker")
                return 0
            self._stored = self._stored or piece
            if self._member is None:
                self._stored = self._stored.lstrip(b"\0")  # padding, which the module gzip skips, too
                self.start = self._compressed.tell() - len(self._stored)
                self._member, self._has_begun = zlib.decompressobj(_GZIP) if self._stored else None, False
                continue
            try:
                self._data = memoryview(self._member.decompress(self._stored))
            except zlib.error as error:
                if self._has_begun:
                    raise
                self.damage = error
                return 0
            self._has_begun |= bool(self._data)
            self._stored = self._member.unused_data
            self._member = None if self._member.eof else self._member
        count = min(len(buffer), len(self._data))
        buffer[:count], self._data = self._data[:count], self._data[count:]
        return count


def next_member(compressed: BinaryIO, start: int, beginning: bytes) -> int | None:
    """Returns the offset of the next member of a gzip file whose contents have a known prefix; None without one.

    Args:
      compressed: the file.
      start: where a member begins; members after it are searched.
      beginning: the first bytes of the decompressed member.
    """
    position = start + 1
    while True:
        compressed.seek(position)
        if len(data := compressed.read(_SKIPPED_BYTES)) < len(_MEMBER):
            return None
        for match in re.finditer(_MEMBER, data):
            compressed.seek(position + match.start())
            with contextlib.suppress(zlib.error):
                if zlib.decompressobj(_GZIP).decompress(compressed.read(1 << 10), len(beginning)) == beginning:
                    return position + match.start()
        position += len(data) - len(_MEMBER) + 1


_OPEN: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda compressed: io.BufferedReader(_ZstdReader(compressed), 1 << 17),
}
COMPRESSIONS = tuple(_OPEN)
"""The suffixes of compressed files that are decompressed."""


def is_compressed(path: str) -> bool:
    """Returns whether the name of a file ends in the suffix of a compression."""
    return path.endswith(COMPRESSIONS)


def without_suffixes(path: str) -> str:
    """Returns the name of a file without the suffixes of compressions."""
    while is_compressed(path):
        path = path.rpartition(".")[0]
    return path


def decompress(stored: BinaryIO, path: str, offset: int = 0) -> BinaryIO:
    """Returns the contents of an open file, decompressed according to the suffix of its path.

    Args:
      stored: the open file.
      path: its path.
      offset: bytes of the contents to skip. The beginning of a compressed file is decompressed, other files seek.

    Raises:
      Exception: a compressed file is empty, or the skipped part is damaged; see `is_damage`.
    """
    opened = next((opened for suffix, opened in _OPEN.items() if path.endswith(suffix)), None)
    if opened is None:
        if offset:
            stored.seek(offset)
        return stored
    if not stored.read(1):  # the readers would return nothing, as for compressed empty text
        raise EOFError("the file is empty")
    stored.seek(0)
    contents = opened(stored)
    while offset and (skipped := len(contents.read(min(offset, _SKIPPED_BYTES)))):
        offset -= skipped
    return contents


def is_damage(error: Exception) -> bool:
    """Returns whether an error says that compressed data is invalid."""
    if isinstance(error, gzip.BadGzipFile | EOFError | zlib.error | lzma.LZMAError | zstandard.ZstdError):
        return True
    return type(error) is OSError and error.errno is None  # "Invalid data stream" of bz2; other errors have numbers
