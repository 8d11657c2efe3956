"""The base class of the vocabularies with byte pair encoding: special tokens, and words encoded once each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from t5x_like.vocabularies.base import Vocabulary

if TYPE_CHECKING:
    import tensorflow as tf


class BPEVocabulary(Vocabulary):
    """A vocabulary that splits texts into words and merges the symbols of each word.

    A subclass defines `pieces`, `special_tokens`, `_special_ids`, `_words` and `_encode_words`, and for texts of Python
    `_words_of` and `_encode_word`.

    Attributes:
      pieces: all pieces in the order of their ids.
      special_tokens: the special token of each role that the vocabulary has.
    """

    pieces: Sequence[str | bytes]
    special_tokens: Mapping[str, str]

    @property
    def bos_id(self) -> int | None:
        """The id of the token before a text, or None."""
        return self._optional_id("bos")

    @property
    def eos_id(self) -> int | None:
        """The id of the token after a text, or None."""
        return self._optional_id("eos")

    @property
    def pad_id(self) -> int | None:
        """The id of padding, or None. GPT-2's ids are all text (0 is `!`) or <|endoftext|>."""
        return self._optional_id("pad")

    @property
    def _base_vocab_size(self) -> int:
        return len(self.pieces)

    @property
    def _special_ids(self) -> Mapping[str, int]:
        """The id of each special token."""
        raise NotImplementedError

    def _optional_id(self, role: str) -> int | None:
        token = self.special_tokens.get(role)
        return None if token is None else self._special_ids[token]

    def _words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Splits texts into words: `[texts]` -> `[texts, (words)]`."""
        raise NotImplementedError

    def _encode_words(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Encodes words: `[words]` -> `[words, (ids)]`."""
        raise NotImplementedError

    def _words_of(self, text: str) -> Sequence[str]:
        """Splits a text into words, as `_words` does."""
        raise NotImplementedError

    def _encode_word(self, word: str) -> Sequence[int]:
        """Encodes a word, as `_encode_words` does."""
        raise NotImplementedError

    def _encode(self, s: str) -> list[int]:
        return [index for word in self._words_of(s) for index in self._encode_word(word)]

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Encodes one text as int32 `[length]`, or several texts as ragged int32 `[texts, (length)]`."""
        import tensorflow as tf

        s = tf.convert_to_tensor(s)
        words = self._words(tf.reshape(s, [-1]))
        distinct, index = tf.unique(words.flat_values)
        ids = tf.gather(self._encode_words(distinct), index)
        ids = words.with_flat_values(ids).merge_dims(-2, -1)
        return ids.flat_values if s.shape.rank == 0 else ids
