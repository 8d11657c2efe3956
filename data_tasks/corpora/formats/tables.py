"""Columns of Parquet files and Arrow files, such as the data sets that `datasets` of Hugging Face saves."""

import re
from collections.abc import Iterator
from typing import Any

import fsspec

from data_tasks.corpora.formats.base import BadRecord, Cursor, Reading, Record, damaged, missing_column, require
from data_tasks.corpora.text_lines import DamagedFile

# Rows that are decoded at once. A batch of documents of 3 kB is 200 kB.
_BATCH_ROWS = 64
# A column of a row group is read through a buffer instead of as a whole.
_BUFFER_BYTES = 1 << 20


class _Table:
    """What both kinds of tables share: a record is the value of the column and the values of the other fields."""

    first = 0
    place = "{path}, row {number} (from 0)"

    def check_installed(self) -> None:
        """Needs pyarrow; see `Format`."""
        require("pyarrow", f"reading {self.description}")

    def text(self, raw: Any, reading: Reading) -> bytes:
        """Returns the value of a row; see `Format`."""
        if isinstance(raw, BadRecord):
            raise raw
        if raw[0] is None:
            raise BadRecord(f"the column {reading.text_column!r} is null")
        return raw[0]

    def fields(self, raw: Any, reading: Reading) -> dict[str, str]:
        """Returns the values of other columns; see `Format`."""
        found = {name: value for name, value in raw[1].items() if value is not None}
        return {
            name: value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
            for name, value in found.items()
        }

    @staticmethod
    def _check_column(path: str, schema: Any, column: str) -> None:
        import pyarrow as pa

        try:
            names = schema.names
        except UnicodeDecodeError as error:
            raise DamagedFile(f"{path}: the name of a column is not UTF-8. Copy the file again.") from error
        if column not in names:
            raise missing_column(path, column, names)
        kind = schema.field(column).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        if not any(test(kind) for test in (*tests, pa.types.is_binary, pa.types.is_large_binary)):
            raise DamagedFile(
                f"{path}: column {column!r} is {kind}, not text. Set TEXT_COLUMN to the column that holds the text, or "
                "convert the file."
            )

    @staticmethod
    def _values(batch: Any, reading: Reading, number: int, skipped: int) -> Iterator[Record]:
        import pyarrow as pa

        def column(name: str) -> Any:
            return batch.column(batch.schema.get_field_index(name)).slice(skipped)

        values = column(reading.text_column)
        values = values.cast(pa.large_binary()) if not pa.types.is_dictionary(values.type) else values
        others = {name: column(name) for name in reading.fields if name in batch.schema.names}
        for index, value in enumerate(values):
            raw = value.as_py()
            raw = raw.encode() if isinstance(raw, str) else raw
            fields = {name: found[index].as_py() for name, found in others.items()}
            yield Record(number, Cursor(number + 1), (raw, fields), len(raw or b""))
            number += 1


class Parquet(_Table):
    """A column of a Parquet file."""

    description = "Parquet: .parquet"
    names = re.compile(r"\.parquet$")
    may_be_compressed = False

    def records(self, file: fsspec.core.OpenFile, start: Cursor, reading: Reading) -> Iterator[Record]:
        """Yields the rows; begins at the row group of `start`; see `Format`."""
        parquet, column, number = require("pyarrow.parquet", "Parquet"), reading.text_column, 0
        try:
            with file as stored, parquet.ParquetFile(stored, buffer_size=_BUFFER_BYTES, pre_buffer=False) as table:
                self._check_column(file.path, table.schema_arrow, column)
                columns = [column, *(name for name in reading.fields if name in table.schema_arrow.names)]
                for group in range(table.num_row_groups):
                    end = number + table.metadata.row_group(group).num_rows
                    if end > start.record:
                        batches = table.iter_batches(_BATCH_ROWS, [group], columns, use_threads=False)
                        yield from self._of_group(batches, reading, number, max(number, start.record), end)
                    number = end
        except _errors() as error:
            raise _damaged(file.path, error, number) from error

    def _of_group(
        self, batches: Iterator[Any], reading: Reading, number: int, first: int, end: int
    ) -> Iterator[Record]:
        """Yields the rows `first` to `end` of a row group that begins at `number`; one record for the damaged ones."""
        try:
            for batch in batches:
                skipped = min(max(first - number, 0), len(batch))
                yield from self._values(batch, reading, number + skipped, skipped)
                number += len(batch)
        except _errors() as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            number = max(number, first)
            yield Record(number, Cursor(end), damaged(error, end - number), 1)


class Arrow(_Table):
    """A column of an Arrow file, of the streaming or the file format."""

    description = "Arrow: .arrow"
    names = re.compile(r"\.arrow$")
    may_be_compressed = False

    def records(self, file: fsspec.core.OpenFile, start: Cursor, reading: Reading) -> Iterator[Record]:
        """Yields the rows; the batches before `start` are skipped; see `Format`."""
        pyarrow, column, number = require("pyarrow", "Arrow"), reading.text_column, 0
        try:
            with file as stored:
                for batch in self._batches(pyarrow, stored, file.path, column):
                    batch.validate(full=True)  # pyarrow would read outside of a damaged batch
                    if number + len(batch) > start.record:
                        skipped = max(start.record - number, 0)
                        yield from self._values(batch, reading, number + skipped, skipped)
                    number += len(batch)
        except _errors() as error:
            raise _damaged(file.path, error, number) from error

    def _batches(self, pyarrow: Any, stored: Any, path: str, column: str) -> Iterator[Any]:
        is_file = stored.read(6) == b"ARROW1"
        stored.seek(0)
        options = pyarrow.ipc.IpcReadOptions(use_threads=False)
        opened = (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(stored, options=options)
        with opened as table:
            self._check_column(path, table.schema, column)
            yield from map(table.get_batch, range(table.num_record_batches)) if is_file else table


def _errors() -> tuple[type[Exception], ...]:
    """Returns the errors of reading a damaged file, whose lengths may be too large."""
    return require("pyarrow", "Parquet").ArrowException, OSError, MemoryError


def _damaged(path: str, error: Exception, number: int) -> Exception:
    """Returns the error of a file that pyarrow cannot read; errors of the storage have a number."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    reason = " ".join(str(error).split()) or type(error).__name__
    return DamagedFile(
        f"{path}: the file is damaged or not complete after row {number:,} ({reason}). Copy the file again."
    )


FORMATS = (Parquet(), Arrow())
