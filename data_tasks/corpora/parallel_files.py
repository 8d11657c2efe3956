"""Parallel text: one file per language, `train.en` and `train.de`, whose lines are translations of each other."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence

from data_tasks.corpora.columns import Column, Text, to_tensor
from data_tasks.corpora.rows import Rows
from t5x_like import paths
from t5x_like.data.records import GZIP_SUFFIX, decode, read_bytes
from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class ParallelFiles:
    """The files of a pair of languages, `PATH.<language>` or `PATH.<language>.gz`; see `data_dir.Layout`.

    Attributes:
      languages: the suffixes of the files, and the names of the features.
    """

    languages: tuple[str, ...]

    @property
    def columns(self) -> tuple[tuple[str, Column], ...]:
        """A text per language."""
        return tuple((language, Text()) for language in self.languages)

    def files(self, path: str) -> Sequence[str]:
        """Returns the file of each language, as far as they exist."""
        named = ([f"{path}.{language}{suffix}" for suffix in ("", GZIP_SUFFIX)] for language in self.languages)
        return [existing[0] for names in named if (existing := [name for name in names if paths.is_file(name)])]

    def read(self, path: str) -> Rows:
        """Returns the pairs of lines.

        Raises:
          UserError: the file of a language is missing, is not UTF-8, or has another number of lines.
        """
        return _read(path, self)


@functools.lru_cache(maxsize=8)
def _read(path: str, layout: ParallelFiles) -> Rows:
    files = layout.files(path)
    if len(files) < len(layout.languages):
        wanted = " and ".join(f"{path}.{language}" for language in layout.languages)
        raise UserError(f"{path}: found only {', '.join(files) or 'no file'}. Give {wanted}, also with {GZIP_SUFFIX}.")
    contents = [read_bytes(file) for file in files]
    # splitlines() would split at other characters too, such as U+2028.
    texts = [decode(file, text).removesuffix("\n").split("\n") for file, text in zip(files, contents, strict=True)]
    counts = [len(lines) for lines in texts]
    if len(set(counts)) > 1:
        each = ", ".join(f"{file} has {count:,} lines" for file, count in zip(files, counts, strict=True))
        raise UserError(f"{path}: {each}. Give files whose lines are translations of each other.")
    features = {}
    for (language, column), lines in zip(layout.columns, texts, strict=True):
        features[language] = to_tensor(column, [column.parse(line.removesuffix("\r")) for line in lines])
    digest = hashlib.blake2b(b"".join(contents), digest_size=8).hexdigest()
    return Rows(features, f"{counts[0]:,} pairs of {', '.join(files)}, hash {digest}")
