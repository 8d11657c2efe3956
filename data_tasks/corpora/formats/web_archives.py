"""Text of web archives (ISO 28500), such as the WET files of Common Crawl."""

import gzip
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import fsspec

from data_tasks.corpora import text_lines
from data_tasks.corpora.compression import decompress, is_damage
from data_tasks.corpora.formats.base import BadRecord, Cursor, Reading, Record, require
from data_tasks.corpora.text_lines import DamagedFile

# Records with plain text: conversions, such as in WET files, and resources of this type. Others are HTML or metadata.
_TEXT_TYPES = ("conversion", "resource")
_PLAIN = "text/plain"
_HEADERS = {
    "url": "WARC-Target-URI",
    "timestamp": "WARC-Date",
    "content-type": "Content-Type",
    "content-length": "Content-Length",
}
"""Field -> header of a record."""


class TextRecord(NamedTuple):
    """The content of a record, None if it is too long, and its headers."""

    content: bytes | None
    headers: Any


class WebArchive:
    """Plain text in the records of WARC and WET files."""

    description = "WARC and WET: .warc .wet"
    names = re.compile(r"\.(warc|wet)$")
    may_be_compressed = True
    first = 0
    place = "{path}, record {number} (from 0)"

    def check_installed(self) -> None:
        """Needs warcio; see `Format`."""
        require("warcio", f"reading {self.description}")

    def records(self, file: fsspec.core.OpenFile, start: Cursor, reading: Reading) -> Iterator[Record]:
        """Yields the records of plain text; records before `start` are skipped; see `Format`."""
        warcio, failures = require("warcio", "WARC"), require("warcio.exceptions", "WARC")
        number = texts = position = 0
        try:
            with file as stored:
                archive = warcio.ArchiveIterator(_Stream(decompress(stored, file.path)), no_record_parse=True)
                for number, record in enumerate(archive):
                    position = stored.tell()
                    if record.rec_type not in _TEXT_TYPES or _PLAIN not in (record.content_type or ""):
                        continue
                    texts += 1
                    if number < start.record:
                        continue
                    raw = TextRecord(_content(record), record.rec_headers)
                    yield Record(number, Cursor(number + 1), raw, len(raw.content or b""))
        except Exception as error:
            if not is_damage(error) and not isinstance(error, failures.ArchiveLoadFailed):
                raise
            raise DamagedFile(
                f"{file.path}: the archive is damaged or not complete after record {number:,}, near byte {position:,} "
                f"of the file ({error}). Copy the file again."
            ) from error
        if not texts and number:
            raise DamagedFile(
                f"{file.path}: none of its {number + 1:,} records is plain text. Give WET files, or convert the "
                "pages to text."
            )

    def text(self, raw: TextRecord, reading: Reading) -> bytes:
        """Returns the text of a record; see `Format`."""
        if raw.content is None:
            raise BadRecord(text_lines.too_long("record"))
        return raw.content

    def fields(self, raw: TextRecord, reading: Reading) -> dict[str, str]:
        """Returns the headers `url`, `timestamp`, `content-type` and `content-length`; see `Format`."""
        found = {name: raw.headers.get_header(_HEADERS[name]) for name in reading.fields if name in _HEADERS}
        return {name: value.strip() for name, value in found.items() if value}


class _Stream:
    """Replaces the `EOFError` of a stream, which warcio treats as the end of the archive.

    It reads what one call of the decompressor returns, so that the records before a damaged place are read first.
    """

    def __init__(self, contents: BinaryIO):
        self._read = getattr(contents, "read1", contents.read)

    def read(self, size: int = -1) -> bytes:
        """Reads at most `size` bytes.

        Raises:
          BadGzipFile: the stream is not complete.
        """
        try:
            return self._read(size)
        except EOFError as error:
            raise gzip.BadGzipFile(str(error)) from error


def _content(record: Any) -> bytes | None:
    """Returns the content of a record, or None if it is too long.

    Raises:
      EOFError: the file ends before the record does, or its length is not known.
    """
    length = record.rec_headers.get_header("Content-Length")
    if not (length or "").strip().isdecimal():
        raise EOFError(f"Content-Length {length!r} of the record is not a number")
    size = int(length)
    if size > text_lines.MAX_LINE_BYTES:
        return None  # the iterator skips what is left of a record
    raw = record.raw_stream.read(size)
    while len(raw) < size and (piece := record.raw_stream.read(size - len(raw))):
        raw += piece
    if len(raw) < size:
        raise EOFError(f"{len(raw):,} of {size:,} bytes of the record")
    return raw
