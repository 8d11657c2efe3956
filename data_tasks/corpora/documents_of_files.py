"""Reads the documents of files in blocks, in constant memory, so that any position in them can be read again.

A block is a run of consecutive records of a file. It is a function of the file and of the cursor where it begins, so
the positions of a run are cursors, and no document is stored with them. Open files and recent blocks are cached,
because a reader usually continues with the next block.
"""

import collections
import dataclasses
import re
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import fsspec

from data_tasks.corpora.documents import held_out
from data_tasks.corpora.formats import format_of
from data_tasks.corpora.formats.base import BadRecord, Cursor, OtherRecord, Reading, Record, check_text, where
from data_tasks.corpora.text_lines import DamagedFile
from t5x_like.data.skipped_records import BAD, DAMAGED, EMPTY, SkippedRecords
from t5x_like.errors import UserError

ERROR, SKIP = "error", "skip"
_BLANK_LINES = re.compile(rb"\r?\n[^\S\n]*\n\s*")
_OPEN_FILES = 16
_KEPT_BYTES = 192 << 20


class Part(NamedTuple):
    """A file, or some of its records: those whose number has the hash `index` of `count`."""

    file: int
    index: int = 0
    count: int = 1


class Document(NamedTuple):
    """A document and where it comes from.

    Attributes:
      text: UTF-8 text.
      record: number of its record in the file, from 0; of a text file, the number of its first line.
      fields: other fields of its record, see `Reading.fields`.
    """

    text: bytes
    record: int
    fields: Mapping[str, str] = {}


@dataclasses.dataclass(frozen=True)
class Rules:
    """How records become documents.

    Attributes:
      reading: how text is read.
      max_document_bytes: longer documents are divided; None to divide none.
      on_bad_record: `error`, or `skip` to skip and count.
      split_at_blank_lines: whether the text of a record is several documents, separated by blank lines.
      validation_fraction: fraction of the documents to hold out, by a hash of their text.
      is_held_out: whether the held-out documents are read instead of the others.
    """

    reading: Reading = Reading()
    max_document_bytes: int | None = None
    on_bad_record: str = ERROR
    split_at_blank_lines: bool = False
    validation_fraction: float = 0.0
    is_held_out: bool = False

    def __post_init__(self):
        if self.on_bad_record not in (ERROR, SKIP):
            raise UserError(
                f"ON_BAD_RECORD={self.on_bad_record!r} is neither {ERROR!r} nor {SKIP!r}. Give one of them."
            )
        if not 0 <= self.validation_fraction < 1:
            raise UserError(
                f"validation_fraction={self.validation_fraction} is out of range. Give a fraction in [0, 1)."
            )
        lines, most = self.reading.lines_per_document, self.max_document_bytes
        if (lines is not None and lines < 1) or (most is not None and most < 16):
            raise UserError(f"lines_per_document={lines} must be at least 1 and max_document_bytes={most} at least 16.")


class Block(NamedTuple):
    """Documents of consecutive records.

    Attributes:
      documents: the documents.
      end: the cursor after the last record.
      is_last: whether the file ends there.
    """

    documents: Sequence[Document]
    end: Cursor
    is_last: bool


class BlockReader:
    """Reads blocks of files, from any thread.

    Args:
      files: the files.
      rules: how records become documents.
      skipped: counts the skipped records.
      block_bytes: bytes of records after which a block ends.
    """

    def __init__(
        self, files: Sequence[fsspec.core.OpenFile], rules: Rules, skipped: SkippedRecords, *, block_bytes: int
    ):
        self.files, self._rules, self._skipped, self._block_bytes = files, rules, skipped, block_bytes
        self._lock = threading.RLock()
        self._open: collections.OrderedDict[tuple[Part, Cursor], Iterator[Record]] = collections.OrderedDict()
        self._blocks: collections.OrderedDict[tuple[Part, Cursor], Block] = collections.OrderedDict()
        self._kept_bytes = 0

    def read(self, part: Part, cursor: Cursor, *, counts: bool = False) -> Block:
        """Returns the block that begins at a cursor.

        Args:
          part: the file, or the part of it.
          cursor: the beginning of the file, or the end of a block of this part.
          counts: whether to count what is skipped: a block may be read again.

        Raises:
          UserError: a record is bad, or the file is damaged or missing; the message names file and place.
        """
        with self._lock:
            if (block := self._blocks.get((part, cursor))) is not None:
                self._blocks.move_to_end((part, cursor))
                return block
            block = self._read(part, cursor, counts)
            self._blocks[part, cursor] = block
            self._kept_bytes += _size(block)
            while self._kept_bytes > _KEPT_BYTES and len(self._blocks) > 1:
                self._kept_bytes -= _size(self._blocks.popitem(last=False)[1])
            return block

    def _read(self, part: Part, cursor: Cursor, counts: bool) -> Block:
        file = self.files[part.file]
        known = format_of(file.path)
        records = self._open.pop((part, cursor), None)
        if records is None:
            # An `OpenFile` closes everything that it has opened, so each reader has one of its own.
            own = fsspec.core.OpenFile(file.fs, file.path, "rb")
            records = known.records(own, cursor, self._rules.reading)
        if counts and cursor == Cursor():
            self._skipped.begin(file.path, part)

        def skip(reason: str, message: str = "") -> None:
            if message and self._rules.on_bad_record == ERROR:
                what = "the rest of such files" if reason == DAMAGED else "such records"
                raise UserError(f"{message} ON_BAD_RECORD=skip skips and counts {what}.")
            if counts:
                self._skipped.add(file.path, part, reason, message)

        documents: list[Document] = []
        size, is_last, end = 0, False, cursor
        while size < self._block_bytes:
            try:
                record = next(records, None)
            except DamagedFile as error:
                skip(DAMAGED, str(error))
                record = None
            except FileNotFoundError:
                skip(DAMAGED, f"{file.path}: the file does not exist any more. Restore it.")
                record = None
            if record is None:
                is_last = True
                break
            end = record.end
            size += max(record.size, 1)
            if part.count > 1 and zlib.crc32(b"%d" % record.number) % part.count != part.index:
                continue
            try:
                text = check_text(known.text(record.raw, self._rules.reading))
                fields = known.fields(record.raw, self._rules.reading)
            except BadRecord as error:
                skip(BAD, f"{where(known, file.path, record.number)}: {error}. Correct the record.")
                continue
            except OtherRecord as error:
                skip(str(error))
                continue
            found = list(documents_of(text, self._rules))
            if not found:
                skip(EMPTY)
            documents.extend(Document(text, record.number, fields) for text in found if self._is_wanted(text))
        if is_last:
            if counts:
                self._skipped.end(file.path, part, end.record)
        else:
            self._open[part, end] = records
            while len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)
        return Block(documents, end, is_last)

    def _is_wanted(self, text: bytes) -> bool:
        fraction = self._rules.validation_fraction
        return not fraction or held_out(text, fraction) == self._rules.is_held_out


def iterate(reader: BlockReader, part: Part, *, counts: bool = True) -> Iterator[Document]:
    """Yields the documents of a part of a file in order."""
    cursor = Cursor()
    while True:
        block = reader.read(part, cursor, counts=counts)
        yield from block.documents
        if block.is_last:
            return
        cursor = block.end


def parts_of_shard(number_of_files: int, index: int, count: int) -> list[Part]:
    """Returns what one of several shards reads.

    Each shard reads as many whole files as the others. The files that are left are fewer than the shards: each shard
    reads a part of the records of one of them, so that no shard is larger than another by a file.

    Args:
      number_of_files: number of files.
      index: index of the shard.
      count: number of shards.
    """
    whole = number_of_files - number_of_files % count
    parts = [Part(file) for file in range(index, whole, count)]
    if left := number_of_files - whole:
        file = index % left
        parts.append(Part(whole + file, index // left, len(range(file, count, left))))
    return parts


def documents_of(text: bytes, rules: Rules) -> Iterator[bytes]:
    """Yields the documents of a text: none if it is empty, several if it is long or has blank lines."""
    parts = _BLANK_LINES.split(text.strip()) if rules.split_at_blank_lines else [text]
    for part in parts:
        if part.strip():
            yield from _pieces(part, rules.max_document_bytes)


def _pieces(text: bytes, most: int | None) -> Iterator[bytes]:
    start = 0
    while most is not None and len(text) - start > most:
        end = _split_point(text, start, start + most)
        yield text[start:end]
        start = end
    yield text[start:]


def _split_point(text: bytes, start: int, limit: int) -> int:
    """Returns where to split: after the last line or word before the limit, otherwise between two characters."""
    for separator in (b"\n", b" "):
        if (found := text.rfind(separator, (start + limit) // 2, limit)) >= 0:
            return found + 1
    while text[limit] & 0xC0 == 0x80:  # a continuation byte of UTF-8
        limit -= 1
    return limit


def _size(block: Block) -> int:
    return sum(len(document.text) for document in block.documents)
