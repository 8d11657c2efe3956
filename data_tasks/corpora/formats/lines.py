"""Text files and JSON lines."""

import json
import re
from collections.abc import Iterator
from typing import Any

import fsspec

from data_tasks.corpora import text_lines
from data_tasks.corpora.formats.base import BadRecord, Cursor, Reading, Record
from data_tasks.corpora.text_lines import BYTE_ORDER_MARK, Line, positioned_lines


class JsonLines:
    """Lines of JSON objects. Blank lines are not records."""

    description = "JSON lines: .jsonl .ndjson .json"
    names = re.compile(r"\.(jsonl|ndjson|json)$")
    may_be_compressed = True
    first = 1
    place = "{path}:{number}"

    def check_installed(self) -> None:
        """Needs no package."""

    def records(self, file: fsspec.core.OpenFile, start: Cursor, reading: Reading) -> Iterator[Record]:
        """Yields the lines that are not blank; see `Format`."""
        number = start.record
        for line in positioned_lines(file, offset=start.offset, number=number):
            number += 1
            if line.data is None or line.data.strip():
                yield Record(number - 1, Cursor(number, line.end), line.data, len(line.data or b""))

    def text(self, raw: bytes, reading: Reading) -> bytes:
        """Returns the text of a line; see `Format`."""
        record, column = self._parse(raw), reading.text_column
        if not isinstance(record, dict):
            raise BadRecord(f"the line has no field {column!r}, but is a JSON {type(record).__name__}")
        if column not in record:
            raise BadRecord(f"the line has no field {column!r} (TEXT_COLUMN), only {', '.join(map(repr, record))}")
        if not isinstance(record[column], str):
            raise BadRecord(f"the field {column!r} is {record[column]!r:.80}, not a string")
        text = record[column].removeprefix(BYTE_ORDER_MARK.decode()).replace("\r\n", "\n").replace("\r", "\n")
        # JSON may contain a lone surrogate, which is not valid UTF-8.
        return text.encode("utf-8", errors="surrogatepass")

    def fields(self, raw: bytes, reading: Reading) -> dict[str, str]:
        """Returns other fields of a line, with `?` for lone surrogates; see `Format`."""
        record = self._parse(raw) if reading.fields else {}
        found = {name: str(record[name]) for name in reading.fields if record.get(name) is not None}
        return {name: value.encode("utf-8", "replace").decode() for name, value in found.items()}

    @staticmethod
    def _parse(raw: bytes | None) -> Any:
        if raw is None:
            raise BadRecord(text_lines.too_long("line"))
        try:
            return json.loads(raw)
        except UnicodeDecodeError as error:
            raise BadRecord(f"the line is not valid UTF-8 (byte {error.start} of the line)") from error
        except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or thousands of brackets
            raise BadRecord(f"the line is not JSON: {error}") from error


class TextFiles:
    """Documents of a number of lines, or between blank lines."""

    description = "text: .txt"
    names = re.compile(r"\.txt$")
    may_be_compressed = True
    first = 1
    place = "{path}:{number}"

    def check_installed(self) -> None:
        """Needs no package."""

    def records(self, file: fsspec.core.OpenFile, start: Cursor, reading: Reading) -> Iterator[Record]:
        """Yields blocks of lines; see `Format`."""
        block = _Block(start.record)
        most = reading.lines_per_document
        for line in positioned_lines(file, offset=start.offset, number=start.record):
            block.add(line)
            is_blank = line.data is not None and not line.data.strip()
            if is_blank if most is None else block.lines >= most:
                yield block.record()
                block = _Block(block.first + block.lines)
        if block.lines:
            yield block.record()

    def text(self, raw: bytes, reading: Reading) -> bytes:
        """Returns the lines of a block; see `Format`."""
        if raw is None:
            raise BadRecord(text_lines.too_long("document"))
        return raw

    def fields(self, raw: bytes, reading: Reading) -> dict[str, str]:
        """Returns nothing: lines have no other fields."""
        return {}


class _Block:
    """Consecutive lines, whose text is not kept if it is too long.

    Args:
      first: number of the first line.
    """

    def __init__(self, first: int):
        self.first, self.lines, self._end, self._size = first, 0, 0, 0
        self._pieces: list[bytes] | None = []

    def add(self, line: Line) -> None:
        """Adds a line."""
        self.lines, self._end = self.lines + 1, line.end
        self._size += len(line.data or b"")
        if line.data is None or self._size > text_lines.MAX_LINE_BYTES:
            self._pieces = None
        if self._pieces is not None:
            self._pieces.append(line.data)

    def record(self) -> Record:
        """Returns the lines as a record."""
        raw = None if self._pieces is None else b"".join(self._pieces)
        return Record(self.first, Cursor(self.first + self.lines, self._end), raw, self._size)


FORMATS = (TextFiles(), JsonLines())
