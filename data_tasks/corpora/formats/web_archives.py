"""Text of web archives (ISO 28500): the WET files of Common Crawl, and the WARC files of crawlers such as wget."""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import fsspec

from data_tasks.corpora import compression, text_lines
from data_tasks.corpora.formats import http_responses, warc_headers
from data_tasks.corpora.formats.base import BadRecord, Cursor, OtherRecord, Reading, Record, damaged, require
from data_tasks.corpora.formats.http_responses import HTML, PLAIN, Head
from data_tasks.corpora.text_lines import DamagedFile
from t5x_like import limits
from t5x_like.data import skipped_records

# Plain text: conversions, such as in WET files, and resources. Crawlers also store their logs and settings as
# resources, with these URLs: wget, wpull.
_TEXT_TYPES = ("conversion", "resource")
_LOGS = ("metadata:", "urn:x-")
_FIRST_BYTES = b"WARC/"
_HEADERS = {
    "url": "WARC-Target-URI",
    "timestamp": "WARC-Date",
    "content-type": "Content-Type",
    "content-length": "Content-Length",
}
"""Field -> header of a record."""


class ArchiveRecord(NamedTuple):
    """A record of an archive.

    Attributes:
      media_type: `HTML`, `PLAIN`, or None if it is not a page.
      content: its content, of a response without headers; None if it is too long, or not a page.
      headers: its headers, of warcio.
      head: the headers of a response, None for other records.
    """

    media_type: str | None
    content: bytes | None
    headers: Any
    head: Head | None = None


class WebArchive:
    """Plain text and HTML in the records of WARC and WET files."""

    description = "WARC and WET: .warc .wet"
    names = re.compile(r"\.(warc|wet)$")
    may_be_compressed = True
    first = 0
    place = "{path}, record {number} (from 0)"

    def check_installed(self) -> None:
        """Needs warcio; see `Format`."""
        require("warcio", f"reading {self.description}")

    def records(self, file: fsspec.core.OpenFile, start: Cursor, reading: Reading) -> Iterator[Record]:
        """Yields the records; records before `start` are skipped; see `Format`."""
        failures = require("warcio.exceptions", "WARC")
        count = readable = pages = position = 0
        try:
            with file as stored:
                for raw in _contents(stored, file.path):
                    position, content = stored.tell(), None
                    if not isinstance(raw, BadRecord):
                        content, is_html = raw.content, raw.media_type == HTML
                        pages += is_html
                        readable += raw.media_type == PLAIN or (is_html and reading.html_text is not None)
                    count += 1
                    if count > start.record:
                        yield Record(count - 1, Cursor(count), raw, len(content or b""))
        except Exception as error:
            if not compression.is_damage(error) and not isinstance(error, failures.ArchiveLoadFailed):
                raise
            raise DamagedFile(
                f"{file.path}: the archive is damaged or not complete at record {count:,} (from 0), "
                f"{text_lines.before_end(file, position)} ({error}). Copy the file again."
            ) from error
        if not readable:
            raise DamagedFile(f"{file.path}: {_unreadable(count, pages)}")

    def text(self, raw: ArchiveRecord | BadRecord, reading: Reading) -> bytes:
        """Returns the text of a record; see `Format`."""
        if isinstance(raw, BadRecord):
            raise raw
        if raw.media_type is None:
            raise OtherRecord(skipped_records.OTHER)
        if raw.media_type == HTML and reading.html_text is None:
            raise OtherRecord(skipped_records.HTML)
        if raw.content is None:
            raise BadRecord(text_lines.too_long("record"))
        content: str | bytes = raw.content
        if raw.head is not None:
            content = http_responses.decode(raw.head.charset, http_responses.body(raw.head, raw.content))
        if raw.media_type == HTML:
            content = reading.html_text(content, raw.headers.get_header("WARC-Target-URI", ""))
        return content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content

    def fields(self, raw: ArchiveRecord, reading: Reading) -> dict[str, str]:
        """Returns the headers `url`, `timestamp`, `content-type` and `content-length`; see `Format`."""
        found = {name: raw.headers.get_header(_HEADERS[name]) for name in reading.fields if name in _HEADERS}
        return {name: value.strip() for name, value in found.items() if value}


def _contents(stored: BinaryIO, path: str) -> Iterator[ArchiveRecord | BadRecord]:
    """Yields the records of an archive. Those after a damaged member of a .gz file are found, one member per record."""
    offset = 0
    while True:
        stored.seek(offset)
        members = compression.GzipMembers(stored) if path.endswith(".gz") else None
        contents = compression.decompress(stored, path) if members is None else io.BufferedReader(members)
        archive = require("warcio", "WARC").ArchiveIterator(_Stream(contents), no_record_parse=True)
        warc_headers.limit(archive)
        try:
            for record in archive:
                yield _read(archive, record)
            error = members and members.damage
            if error is None:
                return
        except zlib.error as found:
            error = found
        following = members and compression.next_member(stored, members.start, _FIRST_BYTES)
        if following is None:
            raise error
        offset = following
        yield damaged(error)


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


def _unreadable(records: int, pages: int) -> str:
    if not records:
        return "the archive has no records. Copy the file again."
    reason = f"none of its {records:,} records is plain text"
    if not pages:
        return f"{reason} or HTML. Give WET files, or WARC files with pages."
    return f"{reason}; {pages:,} are HTML, which `t5x_like clean` converts to text (HTML_TEXT). Give its output."


def _read(archive: Any, record: Any) -> ArchiveRecord:
    """Reads a record, and checks that it is complete.

    Raises:
      EOFError: the file ends before the record does, or its length is not known or wrong.
    """
    length = record.rec_headers.get_header("Content-Length")
    if not limits.is_count((length or "").strip()):
        raise EOFError(f"Content-Length {length!r:.80} of the record is not a number")
    media_type, head = _media_type(record)
    stream, content = record.raw_stream, None
    if media_type is not None and stream.limit <= text_lines.MAX_LINE_BYTES:
        content = b"".join(iter(lambda: stream.read(stream.limit), b""))
    archive.read_to_end()
    if stream.limit:
        raise EOFError(f"{int(length) - stream.limit:,} of {int(length):,} bytes of the record")
    if archive.err_count:
        raise EOFError(f"the record does not end after the {int(length):,} bytes of its Content-Length")
    return ArchiveRecord(media_type, content, record.rec_headers, head)


def _media_type(record: Any) -> tuple[str | None, Head | None]:
    """Returns the type of a page, None if a record is not a page; and the headers of a response, which are read."""
    if record.rec_type == "response" and "application/http" in (record.content_type or ""):
        head = http_responses.read_head(record.raw_stream)
        return head.media_type, head
    if record.rec_type not in _TEXT_TYPES:
        return None, None
    url, kind = record.rec_headers.get_header("WARC-Target-URI", ""), record.content_type or ""
    if url.lower().startswith(_LOGS):
        return None, None
    return next((known for known in (PLAIN, HTML) if known in kind), None), None


FORMATS = (WebArchive(),)
