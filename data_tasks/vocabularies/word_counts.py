"""Vocabularies of whole words that whitespace separates, with their counts: the vocabularies of static word vectors."""

import collections
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from data_tasks.vocabularies import words
from data_tasks.vocabularies.late import LateVocabulary
from t5x_like.data import word_counts
from t5x_like.data.tokenizer_files import VocabularyNotSet
from t5x_like.data.word_counts import FIRST_WORD_ID, WordCounts
from t5x_like.errors import UserError

if TYPE_CHECKING:
    import tensorflow as tf

MIN_COUNT = 5
"""word2vec's smallest count of a word."""


class WordCountsVocabulary(words.WordVocabulary):
    """Words in a file with their counts; see `word_counts`. Words are separated by whitespace of ASCII.

    Args:
      path: the file.

    Attributes:
      vocab_file: the file.
    """

    is_words = True
    num_special = FIRST_WORD_ID

    def __init__(self, path: str):
        self.vocab_file = path
        super().__init__(lambda: word_counts.read(path).words)

    def find(self, word: str) -> int | None:
        """Returns the id of a word, or None."""
        index = self._ids.get(word)
        return None if index is None or index < FIRST_WORD_ID else index

    def _encode(self, s: str) -> list[int]:
        ids = (self._ids.get(word.decode(), self.unk_id) for word in s.encode().split())
        return [index for index in ids if index != self.unk_id]

    def _encode_tf(self, s: "tf.Tensor") -> "tf.Tensor":
        import tensorflow as tf

        ids = self.words_to_ids(tf.strings.split(s))
        return tf.boolean_mask(ids, ids != self.unk_id)

    def __eq__(self, other) -> bool:
        return isinstance(other, WordCountsVocabulary) and self.pieces == other.pieces

    __hash__ = None


def late(path: Callable[[], str | None]) -> LateVocabulary:
    """Returns the vocabulary of the argument `vocabulary_path` of a task."""

    def given() -> str:
        if not path():
            raise VocabularyNotSet(
                "VOCABULARY_PATH is not set: the task needs words and their counts. Give the output of "
                "`t5x_like vocabulary --kind=words`."
            )
        return path()

    return LateVocabulary(given, read_other=WordCountsVocabulary)


def count(documents: Iterable[str | bytes], size: int | None, min_count: int) -> WordCounts:
    """Counts the words of documents.

    Args:
      documents: UTF-8 texts.
      size: maximum number of words, the most frequent ones; None for all.
      min_count: rarer words are left out.

    Returns:
      The words by descending count; words of the same count in the order of their bytes.

    Raises:
      UserError: no word is left.
    """
    counts: collections.Counter[bytes] = collections.Counter()
    for document in documents:
        counts.update((document.encode() if isinstance(document, str) else document).split())
    for special in word_counts.SPECIAL:
        counts.pop(special.encode(), None)
    kept = sorted((-number, word) for word, number in counts.items() if number >= min_count)[:size]
    if not kept:
        most = max(counts.values(), default=0)
        raise UserError(
            f"MIN_COUNT={min_count}: no word is left, because the most frequent one of {len(counts):,} occurs {most} "
            "times. Give a smaller number, or more text."
        )
    names = tuple(word.decode() for _, word in kept)
    return WordCounts(names, np.array([-number for number, _ in kept], np.int64))
