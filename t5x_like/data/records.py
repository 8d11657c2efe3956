r"""Records of text files: TSV, CSV, JSON lines and JSON, with errors that name file and line.

| file | format |
|---|---|
| `.tsv`, `.txt` | one row per line, columns separated by tabs. Quotes are text, as in the files of GLUE |
| `.csv` | RFC 4180: columns separated by commas; quoted columns may contain commas, quotes ("") and line ends |
| `.jsonl` | one JSON object per line; its keys are the columns |
| `.json` | one JSON object, which is one record |

Files are UTF-8, with or without a byte-order mark. They may be compressed (`.tsv.gz`).
"""

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t5x_like import paths
from t5x_like.errors import UserError

GZIP_SUFFIX = ".gz"
MAX_DECOMPRESSED_BYTES = 4 << 30
"""A compressed file of more bytes is an error, so that a small file cannot fill the memory."""

# The escape of half of a character beyond 16 bits.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BYTE_ORDER_MARK = "\N{BYTE ORDER MARK}"
# The largest value that csv accepts on all platforms.
_LARGEST_FIELD = 2**31 - 1


class Record(NamedTuple):
    """A row of a file.

    Attributes:
      line: the number of its first line, from 1.
      values: its values by the names of their columns, or by their positions in a file without a header.
      number: the number of the row in the file, from 0. Skipped rows count, empty lines do not.
    """

    line: int
    values: Mapping[str | int, Any]
    number: int = 0


def read_bytes(path: str) -> bytes:
    """Returns the contents of a file, decompressed if its name ends in .gz.

    Raises:
      UserError: it does not exist, cannot be opened, is not a complete gzip file, or has more than
        `MAX_DECOMPRESSED_BYTES`.
    """
    if not paths.is_file(path):
        where = f" in {os.getcwd()}" if paths.is_local(path) and not paths.local(path).is_absolute() else ""
        raise UserError(f"{path}: file not found{where}. Give the path of an existing file.")
    try:
        contents = paths.read_bytes(path)
        if not path.endswith(GZIP_SUFFIX):
            return contents
        with gzip.open(io.BytesIO(contents)) as file:
            text = file.read(MAX_DECOMPRESSED_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a complete gzip file ({error}). Copy the file again.") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}). Check its permissions.") from error
    if len(text) > MAX_DECOMPRESSED_BYTES:
        raise UserError(
            f"{path}: has more than {MAX_DECOMPRESSED_BYTES:,} bytes when it is decompressed, and is held in memory. "
            "Divide it into several files."
        )
    return text


def decode(path: str, contents: bytes) -> str:
    """Returns the text of a file without its byte-order mark.

    Args:
      path: the path, for messages.
      contents: the bytes of the file.

    Raises:
      UserError: the bytes are not UTF-8.
    """
    try:
        return contents.decode("utf-8").removeprefix(_BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        line = contents.count(b"\n", 0, error.start) + 1
        column = error.start - (contents.rfind(b"\n", 0, error.start) + 1) + 1
        encoding = "UTF-16" if contents[:2] in (b"\xff\xfe", b"\xfe\xff") else "ISO-8859-1"
        raise UserError(
            f"{path}:{line}: byte {column} of the line, {contents[error.start]:#04x}, is not UTF-8. Convert the file, "
            f"for example with iconv -f {encoding} -t UTF-8."
        ) from error


def read_records(
    path: str, text: str, *, has_header: bool = True, skipped: list[int] | None = None
) -> Iterator[Record]:
    """Yields the records of a file.

    Args:
      path: the path, whose suffix is the format.
      text: the contents.
      has_header: whether the first row of a .tsv or .csv file names the columns.
      skipped: gets the line numbers of rows with too few columns, which are skipped; None: they are errors.

    Raises:
      UserError: the format is unknown, or a line is invalid.
    """
    name = path.removesuffix(GZIP_SUFFIX)
    if name.endswith(".jsonl"):
        yield from _json_records(path, text)
        return
    if name.endswith(".json"):
        yield Record(1, json_object(path, 1, text))
        return
    if not name.endswith((".tsv", ".txt", ".csv")):
        raise UserError(f"{path}: unknown format. Give a .tsv, .csv, .jsonl or .json file.")
    lines = _csv_lines(path, text) if name.endswith(".csv") else _tsv_lines(text)
    header: list[str | int] | None = None
    if has_header:
        _, names = next(lines, (1, []))
        if not names:
            raise UserError(f"{path}: the file is empty. Give a file with a header and at least one row.")
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise UserError(f"{path}:1: column {repeated[0]!r} occurs more than once. Rename one of them.")
        header = list(names)
    for number, (line, values) in enumerate(lines):
        columns = header if header is not None else list(range(len(values)))
        if header is not None and len(values) < len(header) and skipped is not None:
            skipped.append(line)
            continue
        if header is not None and len(values) != len(header):
            kind = "a comma" if name.endswith(".csv") else "a tab"
            raise UserError(
                f"{path}:{line}: {len(values)} columns, but the header has {len(header)}. Separate the columns by "
                f"{kind}" + (", and quote text that contains one." if name.endswith(".csv") else ".")
            )
        yield Record(line, dict(zip(columns, values, strict=True)), number)


def _tsv_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yields number and columns of each line that is not empty. splitlines() would split at other characters too."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.rstrip("\r"):
            yield number, line.rstrip("\r").split("\t")


def _csv_lines(path: str, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of the first line and the columns of each row that is not empty."""
    csv.field_size_limit(_LARGEST_FIELD)  # by default 131,072 characters, which documents exceed
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    first = 1
    try:
        for values in reader:
            if values:
                yield first, values
            first = reader.line_num + 1
    except csv.Error as error:
        if "unexpected end" in str(error):
            raise UserError(
                f"{path}:{first}: a quote that opens in this row is not closed. Close it, and write a quote within "
                "quoted text as two."
            ) from error
        raise UserError(
            f"{path}:{first}: not a valid CSV row ({error}). Quote text that contains a comma, a quote or a line end, "
            "and write a quote within it as two."
        ) from error


def _json_records(path: str, text: str) -> Iterator[Record]:
    number = 0
    for line, contents in enumerate(text.split("\n"), 1):
        if not contents.strip():
            continue
        values = json_object(path, line, contents)
        yield Record(line, values, number)
        number += 1


def format_row(path: str, values: Mapping[str | int, Any] | Sequence[str]) -> str:
    """Returns a row as text, with the line end, so that `read_records` reads the same values.

    Args:
      path: the path, whose suffix is the format: .tsv, .csv or .jsonl.
      values: the values by the names or positions of their columns, or the names in a header. Those of a .tsv or .csv
        file are texts, and of a .tsv file they contain neither tabs nor line ends.

    Raises:
      UserError: the format is unknown.
    """
    if path.endswith(".jsonl"):
        return json.dumps(values, ensure_ascii=False) + "\n"
    columns = values.values() if isinstance(values, Mapping) else values
    if path.endswith(".tsv"):
        return "\t".join(columns) + "\n"
    if path.endswith(".csv"):
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerow(columns)
        return text.getvalue()
    raise UserError(f"{path}: unknown format. Give a .tsv, .csv or .jsonl file.")


def json_object(path: str, line: int, text: str) -> dict[str, Any]:
    """Returns a JSON object.

    Args:
      path: the path, for messages.
      line: the line on which the object begins, from 1.
      text: the text of the object.

    Raises:
      UserError: the text is not a JSON object.
    """
    wanted = "one object per line" if path.removesuffix(GZIP_SUFFIX).endswith(".jsonl") else "one object"
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or thousands of brackets
        at = f"{path}:{line + getattr(error, 'lineno', 1) - 1}"
        raise UserError(f"{at}: not valid JSON ({error}). Write {wanted}.") from error
    if _SURROGATE.search(text):  # only an escape can give a lone surrogate, which is not a character
        try:
            json.dumps(values, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start]).strip("'")
            raise UserError(
                f"{path}:{line}: {half} is a lone surrogate, half of a character. Remove it, or add the other half."
            ) from error
    if not isinstance(values, dict):
        raise UserError(f"{path}:{line}: a {type(values).__name__}, not an object. Write {wanted}.")
    return values
