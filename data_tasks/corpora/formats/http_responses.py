"""HTTP responses in web archives, as crawlers such as wget record them."""

import codecs
import io
import zlib
from typing import Any, BinaryIO, NamedTuple

from data_tasks.corpora import text_lines
from data_tasks.corpora.formats import warc_headers
from data_tasks.corpora.formats.base import BadRecord, require

HTML, PLAIN = "text/html", "text/plain"
_TYPES = {HTML: HTML, "application/xhtml+xml": HTML, PLAIN: PLAIN}
"""Type of a page in its headers -> type as which it is read."""
# The labels of these encodings are used for Windows-1252 on the web (https://encoding.spec.whatwg.org/#names-and-labels).
_WINDOWS_1252 = ("iso8859-1", "ascii")


class Head(NamedTuple):
    """What the headers of a response say.

    Attributes:
      media_type: `HTML` or `PLAIN`; None if the response is not a page, or not successful.
      charset: the name of the encoding of the text, None if it is not given or not known to Python.
      headers: the headers, of warcio.
    """

    media_type: str | None
    charset: str | None
    headers: Any


def read_head(stream: BinaryIO) -> Head:
    """Reads the headers of a response, and leaves the stream at its body."""
    parser = require("warcio.statusandheaders", "WARC").StatusAndHeadersParser(["HTTP/"], verify=False)
    try:
        headers = parser.parse(warc_headers.Lines(stream))
    except EOFError:
        return Head(None, None, None)
    media_type, _, parameters = headers.get_header("Content-Type", "").partition(";")
    is_page = headers.get_statuscode() == "200"
    return Head(_TYPES.get(media_type.strip().lower()) if is_page else None, _charset(parameters), headers)


def body(head: Head, content: bytes) -> bytes:
    """Returns the body of a response without the encodings of the transfer.

    Args:
      head: its headers.
      content: the content of the record after the headers.

    Raises:
      BadRecord: the body is compressed in a way that cannot be read, or is damaged.
    """
    if head.headers.get_header("Transfer-Encoding", "").strip().lower() == "chunked":
        content = require("warcio.bufferedreaders", "WARC").ChunkedDataReader(io.BytesIO(content)).read()
    encoding = head.headers.get_header("Content-Encoding", "").strip().lower()
    if not encoding or encoding == "identity":
        return content
    # Some crawlers store the decompressed body with the headers of the compressed one.
    if encoding not in ("gzip", "x-gzip", "deflate"):
        if _is_text(content):
            return content
        raise BadRecord(f"the response is compressed by {encoding!r}, which is not read")
    for window in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):  # with a header of gzip or zlib, and without one
        try:
            return _decompress(content, window)
        except zlib.error as error:
            reason = error
    if _is_text(content):
        return content
    raise BadRecord(f"the compressed response is damaged ({reason})")


def _decompress(content: bytes, window: int) -> bytes:
    stream = zlib.decompressobj(window)
    found = stream.decompress(content, text_lines.MAX_LINE_BYTES)
    if stream.unconsumed_tail:
        raise BadRecord(text_lines.too_long("response"))
    if not stream.eof:
        raise zlib.error("incomplete")
    return found


def decode(charset: str | None, content: bytes) -> str | bytes:
    """Returns the text of a body by the encoding of its headers; the body itself if there is none, or a wrong one."""
    try:
        return content.decode(charset) if charset else content
    except (LookupError, UnicodeDecodeError):  # also the encoding of something else than text, such as base64
        return content


def _charset(parameters: str) -> str | None:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            try:
                found = codecs.lookup(value.strip().strip("\"'")).name
            except LookupError:
                return None
            return "cp1252" if found in _WINDOWS_1252 else found
    return None


def _is_text(content: bytes) -> bool:
    return b"\0" not in content and content.lstrip()[:1] == b"<"
