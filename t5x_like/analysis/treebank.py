"""Reads treebanks in the format CoNLL-U: sentences of words with tags, heads and relations."""

import dataclasses
from collections.abc import Sequence

from t5x_like import limits
from t5x_like.analysis.files import files_of
from t5x_like.data.records import decode, read_bytes
from t5x_like.errors import UserError

_COLUMNS = 10
_FORM, _UPOS, _HEAD, _RELATION = 1, 3, 6, 7
ROOT = -1
"""The head of the root of a sentence."""


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence of a treebank.

    Attributes:
      words: Its words.
      tags: The universal part of speech of each word.
      heads: Index of the head of each word, `ROOT` for the root.
      relations: The relation of each word to its head, with its subtype: `nmod:poss`.
    """

    words: Sequence[str]
    tags: Sequence[str]
    heads: Sequence[int]
    relations: Sequence[str]


def read(setting: str, path: str, limit: int | None = None) -> list[Sentence]:
    """Reads the sentences of a treebank. Words that the syntax adds (8.1) and spans of words (3-4) are left out.

    Args:
      setting: The setting that has the path, for messages.
      path: A file, or a directory with files that end in .conllu.
      limit: Maximum number of sentences.

    Raises:
      UserError: A file is not found, or a line does not follow the format.
    """
    sentences: list[Sentence] = []
    for file in files_of(setting, path, ".conllu"):
        text = decode(file, read_bytes(file))
        rows: list[list[str]] = []
        for number, line in enumerate([*text.split("\n"), ""], 1):
            line = line.rstrip("\r")
            if line.startswith("#"):
                continue
            if line:
                rows.append(_columns(f"{file}:{number}", line))
            elif rows:
                sentences.append(_sentence(f"{file}:{number - len(rows)}", rows))
                rows = []
            if limit is not None and len(sentences) >= limit:
                return sentences
    if not sentences:
        raise UserError(f"{setting}={path}: no sentences. Give CoNLL-U files.")
    return sentences


def _columns(where: str, line: str) -> list[str]:
    values = line.split("\t")
    if len(values) != _COLUMNS:
        raise UserError(f"{where}: {len(values)} columns, not {_COLUMNS}. CoNLL-U separates them by tabs.")
    return values


def _sentence(where: str, rows: Sequence[Sequence[str]]) -> Sentence:
    rows = [row for row in rows if limits.is_count(row[0])]
    heads = []
    for number, row in enumerate(rows, 1):
        if int(row[0]) != number or not limits.is_count(row[_HEAD]) or int(row[_HEAD]) > len(rows):
            raise UserError(
                f"{where}: word {row[0]} ({row[_FORM]!r:.40}) has the head {row[_HEAD]!r:.20}. Words are numbered from "
                f"1, and a head is one of the {len(rows)} words, or 0 for the root."
            )
        heads.append(int(row[_HEAD]) - 1)
    return Sentence(
        [row[_FORM] for row in rows],
        [row[_UPOS] for row in rows],
        heads,
        [row[_RELATION] for row in rows],
    )
