"""Tables in text files: TSV, CSV, JSON lines and JSON, read into rows with errors that name file, line and column.

`t5x_like.data.records` states the formats. The first row of a .tsv or .csv file names the columns, unless the table
gives positions instead of names.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from data_tasks.corpora.columns import Column, Place, Text, to_tensor
from data_tasks.corpora.rows import Rows
from t5x_like import paths
from t5x_like.data.records import Record, decode, read_bytes, read_records
from t5x_like.errors import UserError

_ID = "id"
ROW_NUMBER = "idx"
"""The column with the number of the row from 0, as in TFDS. A column of this name in the file takes precedence."""


@dataclasses.dataclass(frozen=True)
class Table:
    """The columns of a file.

    Attributes:
      columns: the features to read, as pairs of name and column.
      expand: returns the records in a record, for nested JSON. It may raise KeyError, TypeError or ValueError.
      skip_incomplete: whether rows with too few columns are skipped and counted, not an error (GLUE's QQP has some).
    """

    columns: tuple[tuple[str, Column], ...]
    expand: Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]] | None = None
    skip_incomplete: bool = False

    @classmethod
    def of(cls, columns: Mapping[str, Column], **options) -> "Table":
        """Returns a table with columns given as a mapping."""
        return cls(tuple(columns.items()), **options)

    @property
    def has_header(self) -> bool:
        """Whether the first row of a .tsv or .csv file names the columns."""
        return not any(isinstance(column.column, int) for _, column in self.columns)

    def files(self, path: str) -> list[str]:
        """Returns the path, or an empty list if the file does not exist."""
        return [path] if paths.is_file(path) else []

    def read(self, path: str) -> Rows:
        """Returns the rows of a file; see `read_table`."""
        return read_table(path, self)


def read_table(path: str, table: Table) -> Rows:
    """Reads a file. Each file is read once.

    Args:
      path: a path or URL that ends in .tsv, .txt, .csv, .jsonl or .json.
      table: its columns.

    Returns:
      The rows.

    Raises:
      UserError: the file does not exist, is empty or not UTF-8, lacks a column, or a value is invalid. The message
        names file, line and column.
    """
    return _read_table(str(path), table)


@functools.lru_cache(maxsize=32)
def _read_table(path: str, table: Table) -> Rows:
    contents = read_bytes(path)
    skipped: list[int] = []
    incomplete = skipped if table.skip_incomplete else None
    records = read_records(path, decode(path, contents), has_header=table.has_header, skipped=incomplete)
    rows = parse_records(path, records, table)
    digest = hashlib.blake2b(contents, digest_size=8).hexdigest()
    origin = f"{len(rows):,} rows of {path}, hash {digest}"
    return dataclasses.replace(rows, origin=origin + (f", {len(skipped)} incomplete rows skipped" if skipped else ""))


def parse_records(path: str, records: Iterable[Record], table: Table) -> Rows:
    """Parses records that were read from a file.

    Args:
      path: the path, for messages.
      records: at least one record.
      table: the columns; its `expand` makes the rows of the records.

    Returns:
      The rows.

    Raises:
      UserError: a column is missing, or a value is invalid.
    """
    numbered = (record._replace(values={ROW_NUMBER: record.number, **record.values}) for record in records)
    rows = numbered if table.expand is None else expanded(path, numbered, table.expand)
    values = _parse(path, rows, table)
    if not next(iter(values.values())):
        raise UserError(f"{path}: the file has no rows. Give a file with at least one row.")
    return Rows({name: to_tensor(column, values[name]) for name, column in table.columns}, path)


def expanded(path: str, records: Iterable[Record], expand: Callable) -> Iterator[Record]:
    """Yields the records that `expand` makes of each record of a file; see `Table.expand`.

    Raises:
      UserError: it cannot. The message names file and line.
    """
    for record in records:
        try:
            yield from (Record(record.line, values) for values in expand(record.values))
        except KeyError as error:
            raise UserError(f"{path}:{record.line}: key {error} not found. Give the files of the benchmark.") from error
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            raise UserError(
                f"{path}:{record.line}: unexpected contents ({error}). Give the files of the benchmark."
            ) from error


# ---- values ----------------------------------------------------------------------------------------------------------


def _parse(path: str, records: Iterable[Record], table: Table) -> dict[str, list[Any]]:
    """Returns the values of each feature in all rows."""
    values: dict[str, list[Any]] = {name: [] for name, _ in table.columns}
    present: set[Place] | None = None
    for record in records:
        if present is None:
            present = set(record.values)
            _check_columns(path, record, table)
        for name, column in table.columns:
            place = name if column.column is None else column.column
            if place not in present:
                values[name].append(column.default)
                continue
            if place not in record.values:
                raise UserError(f"{path}:{record.line}: {_shown(place)} not found. Give a value in each row.")
            try:
                values[name].append(column.parse(record.values[place]))
            except ValueError as error:
                raise UserError(f"{path}:{record.line}, {_shown(place)}: {error}.") from error
    return values


def _check_columns(path: str, first: Record, table: Table) -> None:
    """Checks the columns of the first record."""
    for name, column in table.columns:
        place = name if column.column is None else column.column
        if place not in first.values and column.default is None:
            known = [key for key in first.values if key != ROW_NUMBER]
            listed = ", ".join(map(repr, known)) if table.has_header else f"{len(known)} columns"
            raise UserError(
                f"{path}:{first.line if not table.has_header else 1}: {_shown(place)} not found. The file has "
                f"{listed}. Rename a column of the file, or give the name of the right one."
            )


def _shown(place: Place) -> str:
    return f"column {place + 1}" if isinstance(place, int) else f"column {place!r}"


class ParsesRows:
    """A source whose rows can also be given to a command, which then predicts their labels.

    A subclass defines `row_columns`.

    Attributes:
      row_columns: the features of a row as columns; labels have defaults.
    """

    row_columns: Mapping[str, Column]

    @property
    def text_features(self) -> tuple[str, ...]:
        """The names of the texts of a row, without targets."""
        return tuple(name for name, column in self.row_columns.items() if column == Text())

    def parse_rows(self, path: str, records: Iterable[Record]) -> tf.data.Dataset:
        """Returns the records of a file as examples, for predictions. Labels and the column `id` may be missing.

        Args:
          path: the path, for messages.
          records: at least one record.

        Raises:
          UserError: a column is missing, or a value is invalid.
        """
        columns = self.row_columns
        if _ID in columns:
            records = (record._replace(values={_ID: str(record.number), **record.values}) for record in records)
        rows = parse_records(path, records, Table.of(columns))
        return tf.data.Dataset.range(len(rows)).map(rows.row)
