"""Vocabularies of whole words that whitespace separates, with their counts: the vocabularies of static word vectors."""

import collections
import functools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from t5x_like.errors import UserError
from t5x_like.vocabularies import word_counts, words
from t5x_like.vocabularies.template import Template
from t5x_like.vocabularies.word_counts import FIRST_WORD_ID, SPECIAL, UNK_ID, WordCounts

if TYPE_CHECKING:
    import tensorflow as tf

# Punctuation and symbols, for TensorFlow.
_PUNCTUATION = r"([\p{P}\p{S}])"
UNKNOWN = SPECIAL[UNK_ID]
"""The word of a text whose own words are replaced by it, as in WikiText; it is not split at punctuation."""
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

    def with_words(self, words: Sequence[str]) -> Self:
        """Returns a vocabulary with further words, whose ids follow."""
        found = type(self)(self.vocab_file)
        found._read = lambda: (*self._read(), *words)
        return found

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


class WordSequenceVocabulary(WordCountsVocabulary):
    """The same words for models that read texts: unknown words are kept as `<unk>`.

    A word that is not in the file is split at punctuation and symbols, and then lower-cased if it is still unknown.
    Downstream tasks add no special token to one text, as the code of skip-thoughts and of ELMo.
    """

    is_words = False

    @property
    def template(self) -> Template:
        """`a`, and `a </s> b` with the token type 1 for b; see `templates.Template`."""
        return Template(separator=(self.eos_id,), second_type=1)

    def _encode(self, s: str) -> list[int]:
        split = (word if word in self._ids else _split_punctuation(word) for word in _split_space(s))
        known = (word if word in self._ids else word.lower() for each in split for word in _split_space(each))
        return [self._ids.get(word, self.unk_id) for word in known]

    def _encode_tf(self, s: "tf.Tensor") -> "tf.Tensor":
        return self.split_tf(s)[1]

    def split_tf(self, s: "tf.Tensor") -> "tuple[tf.Tensor, tf.Tensor]":
        """Splits a text, a scalar or `[texts]`, into the words that have ids.

        Returns:
          The words as they are in the text, and their ids, unknown ones too.
        """
        import tensorflow as tf

        def change(words, function):
            is_unknown = (self.words_to_ids(words) == self.unk_id) & (words != UNKNOWN)
            return tf.where(is_unknown, function(words), words)

        split = functools.partial(change, function=lambda x: tf.strings.regex_replace(x, _PUNCTUATION, r" \1 "))
        lower = functools.partial(change, function=lambda x: tf.strings.lower(x, encoding="utf-8"))
        words = tf.ragged.map_flat_values(split, tf.strings.split(s))
        words = tf.strings.split(tf.strings.reduce_join(words, axis=-1, separator=" "))
        return words, tf.ragged.map_flat_values(lambda x: self.words_to_ids(lower(x)), words)


def _split_space(text: str) -> list[str]:
    """Splits a text at whitespace of ASCII, as TensorFlow does."""
    return [word.decode() for word in text.encode().split()]


def _split_punctuation(word: str) -> str:
    """Places spaces around the characters of `_PUNCTUATION`."""
    return "".join(f" {letter} " if unicodedata.category(letter)[0] in "PS" else letter for letter in word)


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
    for special in SPECIAL:
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
