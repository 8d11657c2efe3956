"""Files in CoNLL's column format: one word per line with its tag, a blank line after each sentence.

The first column is the word, the last one its tag; columns are separated by tabs, or by spaces in a line without tabs.
Lines that contain only whitespace are blank. `-DOCSTART-` lines, which begin a document in CoNLL-2003, separate
sentences and are skipped. A file whose lines have only one column has no tags.
"""

import dataclasses
import functools
import hashlib
import re
from typing import Any

import tensorflow as tf

from data_tasks.corpora.columns import Column, Labels, Texts, to_tensor
from data_tasks.corpora.rows import Rows
from t5x_like import paths
from t5x_like.data.records import decode, read_bytes
from t5x_like.errors import UserError
from t5x_like.vocabularies.labels import UNKNOWN

WORDS, TAGS = "tokens", "ner"
"""The features of a sentence, named as in TFDS: words, string `[words]`, and the indices of their tags, int32."""

_DOCUMENT_START = "-DOCSTART-"
_BLANKS = re.compile(r"[ \t]+")


@dataclasses.dataclass(frozen=True)
class ConllTable:
    """The columns of a file in CoNLL's format.

    Attributes:
      tags: the names of the tags.
    """

    tags: tuple[str, ...]

    def files(self, path: str) -> list[str]:
        """Returns the path, or an empty list if the file does not exist."""
        return [path] if paths.is_file(path) else []

    def read(self, path: str) -> Rows:
        """Reads a file. Each file is read once.

        Args:
          path: a path or URL.

        Returns:
          A row per sentence, with the features `WORDS` and `TAGS`. The tags of a file without tags are unknown.

        Raises:
          UserError: the file does not exist, has no sentence or is not UTF-8, or a tag is invalid. The message names
            file and line.
        """
        return _read(str(path), self)


@functools.lru_cache(maxsize=16)
def _read(path: str, table: ConllTable) -> Rows:
    contents = read_bytes(path)
    sentences: list[tuple[list[str], list[str]]] = []
    words: list[str] = []
    tags: list[int] = []
    number_of_columns = None
    column = Labels(table.tags)
    # splitlines() would split at other characters too, which words may contain.
    for line, text in enumerate([*decode(path, contents).split("\n"), ""], 1):
        text = text.rstrip("\r")
        values = text.split("\t") if text.strip(" \t") and "\t" in text else _BLANKS.split(text.strip(" "))
        if not text.strip(" \t") or values[0] == _DOCUMENT_START:
            if words:
                sentences.append((words, tags))
                words, tags = [], []
            continue
        if number_of_columns is None:
            number_of_columns = len(values)
        if len(values) != number_of_columns or not values[0]:
            raise UserError(
                f"{path}:{line}: {text!r:.80} has {len(values)} columns, but the first word of the file has "
                f"{number_of_columns}. Write a word and its tag in each line, and blank lines between sentences."
            )
        words.append(values[0])
        tags.append(_tag(path, line, values[-1], column) if number_of_columns > 1 else UNKNOWN)
    if not sentences:
        raise UserError(f"{path}: the file has no sentences. Give a file with a word and its tag in each line.")
    columns: dict[str, tuple[Column, list[Any]]] = {
        WORDS: (Texts(), [[word.encode() for word in words] for words, _ in sentences]),
        TAGS: (column, [tags for _, tags in sentences]),
    }
    digest = hashlib.blake2b(contents, digest_size=8).hexdigest()
    features: dict[str, tf.RaggedTensor] = {name: to_tensor(*values) for name, values in columns.items()}
    return Rows(features, f"{len(sentences):,} sentences of {path}, hash {digest}")


def _tag(path: str, line: int, text: str, column: Labels) -> int:
    try:
        return column.parse([text])[0]
    except ValueError as error:
        raise UserError(f"{path}:{line}: the tag {error}.") from error
