"""The interface of a format of files with documents."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import fsspec

from data_tasks.corpora.text_lines import DamagedFile
from t5x_like import packages


class Cursor(NamedTuple):
    """A position between two records of a file.

    Attributes:
      record: number of the next record, from 0; of a text file, the number of its first line.
      offset: bytes of the decompressed file before the record; 0 in formats that find records by their number.
    """

    record: int = 0
    offset: int = 0


class Record(NamedTuple):
    """A record of a file, before its text is read.

    Attributes:
      number: its number, as in `Cursor`.
      end: the position after it.
      raw: its contents, which `Format.text` reads; None if it is too long; a `BadRecord` if it is damaged, but not the
        records after it.
      size: number of bytes.
    """

    number: int
    end: Cursor
    raw: Any
    size: int


class BadRecord(Exception):
    """A record without usable text. The message states the problem."""


def damaged(error: Exception, number: int = 1) -> BadRecord:
    """Returns the contents of a damaged record, where the format finds the records after it.

    Args:
      error: the error of reading it.
      number: number of records that are damaged with it, itself included.
    """
    what = "it is" if number == 1 else f"it and the next {number - 1:,} are"
    return BadRecord(f"{what} damaged ({' '.join(str(error).split()) or type(error).__name__})")


class OtherRecord(Exception):
    """A record that is not a document, such as a request in a web archive. The message is the reason to count."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """How documents are read.

    Attributes:
      text_column: the column, or the field of a record, that holds the text.
      lines_per_document: lines of a text file per document; None for documents that are separated by blank lines.
      fields: other columns, fields or headers that `Format.fields` returns, if a record has them.
      html_text: returns the text of an HTML page, given its source and its URL; None to read no HTML.
    """

    text_column: str = "text"
    lines_per_document: int | None = 64
    fields: tuple[str, ...] = ()
    html_text: Callable[[str | bytes, str], str] | None = None


class Format(Protocol):
    """A format of files.

    Attributes:
      description: its name and suffixes, for messages.
      names: matches the ends of the names of its files.
      may_be_compressed: whether its files may have the suffix of a compression.
      first: number of the first record in messages, 0 or 1.
      place: where a record is, for messages: a template of `path` and `number`.
    """

    description: str
    names: re.Pattern[str]
    may_be_compressed: bool
    first: int
    place: str

    def check_installed(self) -> None:
        """Checks that the packages of the format are installed.

        Raises:
          UserError: a package is missing.
        """

    def records(self, file: fsspec.core.OpenFile, start: Cursor, reading: Reading) -> Iterator[Record]:
        """Yields the records of a file in order, in constant memory.

        Args:
          file: the file.
          start: where to begin, the `end` of a record of this file.
          reading: how documents are read.

        Raises:
          DamagedFile: the file cannot be read, or only in part.
        """

    def text(self, raw: Any, reading: Reading) -> bytes:
        """Returns the text of a record.

        Raises:
          BadRecord: the record has no text.
          OtherRecord: the record is not a document.
        """

    def fields(self, raw: Any, reading: Reading) -> dict[str, str]:
        """Returns those of `reading.fields` that a record with a text has, by name."""


def check_text(text: bytes) -> bytes:
    """Returns a text that is UTF-8 without NUL characters.

    Raises:
      BadRecord: it is not.
    """
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRecord(
            f"the text is not valid UTF-8 (byte {error.start:,} of the text is {text[error.start]:#04x})"
        ) from error
    if (nul := text.find(b"\0")) >= 0:
        raise BadRecord(f"the text has a NUL character (byte {nul:,} of the text)")
    return text


def where(known: Format, path: str, number: int) -> str:
    """Returns the place of a record, for messages."""
    return known.place.format(path=path, number=number + known.first)


require = functools.partial(packages.require, extra="corpora")
"""Imports a module of the extra `corpora`, which installs the packages of all formats; see `packages.require`."""


def missing_column(path: str, column: str, columns: Any) -> DamagedFile:
    """Returns the error of a file without the column of the text."""
    return DamagedFile(
        f"{path}: column {column!r} not found. Its columns are {', '.join(map(repr, columns)) or 'none'}. Set "
        "TEXT_COLUMN to the column that holds the text."
    )
