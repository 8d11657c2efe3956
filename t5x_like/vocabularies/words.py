"""Vocabularies of whole words, and of the characters of words (ELMo)."""

import collections
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from t5x_like.vocabularies import word_characters
from t5x_like.vocabularies.base import Vocabulary

if TYPE_CHECKING:
    import tensorflow as tf

EOS = "</s>"
"""The word that ends a document. No other word is this one, because `<`, `/` and `>` are words of their own."""
_SPECIAL = ("<pad>", EOS, "<unk>")
# A word has letters, digits and underscores of ASCII, or is a single other character.
_WORD = re.compile(r"[A-Za-z0-9_]+|[^A-Za-z0-9_\s]", re.ASCII)
SINGLE = r"([^A-Za-z0-9_\s])"
"""A character that is a word, as a regular expression of TensorFlow."""
# Fingerprints of words, of which TensorFlow finds the ids without a table: the state of a pipeline can hold none.
_FINGERPRINTS = 2**62


def split(text: str) -> list[str]:
    """Splits a text into words; see `split_tf`."""
    return _WORD.findall(text)


def split_tf(text: "tf.Tensor") -> "tf.Tensor":
    """Splits a text, a scalar string, into words `[words]`: runs of ASCII letters, digits and `_`, or one character."""
    import tensorflow as tf

    return tf.strings.split(tf.strings.regex_replace(text, SINGLE, r" \1 "))


def most_frequent(texts: Iterable[bytes], number: int) -> list[str]:
    """Returns the most frequent words of texts, equally frequent ones in the order of the alphabet.

    Args:
      texts: UTF-8 texts.
      number: maximum number of words.
    """
    counts = collections.Counter(word for text in texts for word in split(text.decode()))
    return sorted(counts, key=lambda word: (-counts[word], word))[:number]


class WordVocabulary(Vocabulary):
    """Whole words: padding 0, EOS 1, unknown words 2, and the words.

    Args:
      read: returns the words in the order of their ids. It is called at the first use.
    """

    def __init__(self, read: Callable[[], Sequence[str]]):
        self._read = read
        super().__init__()

    @functools.cached_property
    def pieces(self) -> tuple[str, ...]:
        """The word of each id."""
        return (*_SPECIAL, *self._read())

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        """The id of each word but the one that stands for padding, which a text can contain as a word."""
        return {word: number for number, word in enumerate(self.pieces) if number}

    @functools.cached_property
    def _fingerprints(self) -> tuple[Sequence[int], Sequence[int]]:
        """The fingerprints of all words of `_ids` in ascending order, and their ids."""
        import tensorflow as tf

        with tf.init_scope():
            found = tf.strings.to_hash_bucket_fast(list(self._ids), _FINGERPRINTS).numpy()
        order = found.argsort()
        return found[order], np.array(list(self._ids.values()), np.int32)[order]

    @property
    def bos_id(self) -> None:
        """None: the vocabulary has no BOS."""

    @property
    def eos_id(self) -> int:
        """The id of EOS."""
        return 1

    @property
    def unk_id(self) -> int:
        """The id of unknown words."""
        return 2

    @property
    def _base_vocab_size(self) -> int:
        return len(self.pieces)

    def words_to_ids(self, words: "tf.Tensor") -> "tf.Tensor":
        """Returns the ids of words, int32 `[words]`."""
        import tensorflow as tf

        fingerprints, ids = self._fingerprints
        given = tf.strings.to_hash_bucket_fast(words, _FINGERPRINTS)
        at = tf.minimum(tf.searchsorted(fingerprints, given), len(ids) - 1)
        return tf.where(tf.gather(fingerprints, at) == given, tf.gather(ids, at), self.unk_id)

    def _encode(self, s: str) -> list[int]:
        return [self._ids.get(word, self.unk_id) for word in split(s)]

    def _decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.pieces[number] for number in ids)

    def _encode_tf(self, s: "tf.Tensor") -> "tf.Tensor":
        return self.words_to_ids(split_tf(s))

    def _decode_tf(self, ids: "tf.Tensor") -> "tf.Tensor":
        import tensorflow as tf

        return tf.strings.reduce_join(tf.gather(list(self.pieces), ids), axis=-1, separator=" ")

    def __eq__(self, other) -> bool:
        return isinstance(other, WordVocabulary) and self.pieces == other.pieces

    __hash__ = None


class CharacterVocabulary(Vocabulary):
    """The characters of single words, as ELMo numbers them: padding 0, 1 + byte, and 257 to 261 for special ones.

    A word is its UTF-8 bytes between the beginning and the end of a word, and the padding of words. The words `<S>` and
    `</S>`, before and after a sentence, have one special character in place of the bytes.
    """

    BEGINNING_OF_SENTENCE, END_OF_DOCUMENT = word_characters.BEGIN_OF_TEXT, word_characters.END_OF_TEXT
    BEGINNING, END, PADDING = word_characters.BEGIN_OF_WORD, word_characters.END_OF_WORD, word_characters.FILL

    @property
    def bos_id(self) -> None:
        """None: characters are not a sequence of tokens."""

    eos_id = unk_id = bos_id

    @property
    def _base_vocab_size(self) -> int:
        return word_characters.NUM_CHARACTERS

    def words_to_ids(self, words: "tf.Tensor", length: int) -> "tf.Tensor":
        """Returns the characters of words, int32 `[words, length]`. Words of more than `length` - 2 bytes are cut.

        Args:
          words: strings `[words]`. `<S>` begins a sentence, and `</S>` ends a sentence or a document.
          length: number of characters per word.
        """
        import tensorflow as tf

        special = tf.zeros(tf.shape(words), tf.int32)
        for word, number in word_characters.SPECIAL.items():
            special = tf.where(words == word, number, special)
        words = tf.where(special != 0, "?", words)
        sizes = tf.minimum(tf.strings.length(words), length - 2)[:, tf.newaxis]
        letters = 1 + tf.cast(tf.io.decode_raw(words, tf.uint8, fixed_length=length - 2), tf.int32)
        letters = tf.where(special[:, tf.newaxis] != 0, special[:, tf.newaxis], letters)
        at, letters = tf.range(length), tf.pad(letters, [[0, 0], [1, 1]])
        inside = tf.where(at <= sizes, letters, tf.where(at == sizes + 1, self.END, self.PADDING))
        return tf.where(at == 0, self.BEGINNING, inside)

    def _encode(self, s: str) -> list[int]:
        return [self.BEGINNING, *(1 + byte for byte in s.encode()), self.END]

    def _decode(self, ids: Sequence[int]) -> str:
        for word, special in word_characters.SPECIAL.items():
            if special in ids:
                return word
        return bytes(number - 1 for number in ids if 1 <= number <= 256).decode(errors="replace")

    def __eq__(self, other) -> bool:
        return isinstance(other, CharacterVocabulary)

    __hash__ = None
