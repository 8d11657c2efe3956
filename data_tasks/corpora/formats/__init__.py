"""Formats of files with documents, which the suffix of a file name determines.

Each module of this package with a constant `FORMATS` adds its formats.
"""

import importlib
import pkgutil

from data_tasks.corpora.compression import COMPRESSIONS, without_suffixes
from data_tasks.corpora.formats.base import Format
from t5x_like.errors import UserError

_MODULES = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
FORMATS: tuple[Format, ...] = tuple(each for module in _MODULES for each in getattr(module, "FORMATS", ()))


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
