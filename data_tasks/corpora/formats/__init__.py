"""Formats of files with documents, which the suffix of a file name determines."""

from data_tasks.corpora.compression import COMPRESSIONS, without_suffixes
from data_tasks.corpora.formats.base import Format
from data_tasks.corpora.formats.examples import ArrayRecord, TFRecord
from data_tasks.corpora.formats.lines import JsonLines, TextFiles
from data_tasks.corpora.formats.tables import Arrow, Parquet
from data_tasks.corpora.formats.web_archives import WebArchive
from t5x_like.errors import UserError

FORMATS: tuple[Format, ...] = (TextFiles(), JsonLines(), Parquet(), Arrow(), TFRecord(), ArrayRecord(), WebArchive())


def format_of(path: str) -> Format:
    """Returns the format of a file.

    Raises:
      UserError: the suffix of its name is unknown, or the file is compressed and files of its format may not be.
    """
    name = without_suffixes(path)
    for file_format in FORMATS:
        if file_format.names.search(name):
            if name != path and not file_format.may_be_compressed:
                raise UserError(f"{path}: {file_format.description} is not read from compressed files. Decompress it.")
            return file_format
    raise UserError(
        f"{path}: the format of the file is not known. Give {'; '.join(each.description for each in FORMATS)}; text, "
        f"JSON lines, TFRecord and WARC also with {' '.join(COMPRESSIONS)}."
    )


def stem(path: str) -> str:
    """Returns the name of a file without the suffixes of its format and its compression.

    Raises:
      UserError: see `format_of`.
    """
    return format_of(path).names.sub("", without_suffixes(path.rpartition("/")[2]))
