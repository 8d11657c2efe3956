"""Character offsets of the pieces of a text, which span extraction needs.

The ids equal the vocabulary's `encode_tf`. All functions are TensorFlow operations without state.
"""

import functools
from typing import NamedTuple

import numpy as np
import sentencepiece
import seqio
import tensorflow as tf

import t5x_like.data.seqio_feed.seqio_interface  # noqa: F401 (for the dispatch below)
from t5x_like.errors import UserError
from t5x_like.vocabularies.late import LateVocabulary
from t5x_like.vocabularies.tokenizer_vocabulary import TokenizerVocabulary
from t5x_like.vocabularies.word_vocabularies import WordSequenceVocabulary

# What separates words in TensorFlow's `strings.split`.
_ASCII_SPACE = r"[ \t\n\v\f\r]"


class Encoded(NamedTuple):
    """A text as pieces.

    Attributes:
      ids: the id of each piece, int32 `[pieces]`.
      starts: index of the first character of each piece in the text, int32 `[pieces]`.
      ends: index after the last character, int32 `[pieces]`. Pieces that share a character both contain it.
    """

    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


def encode_with_offsets(vocabulary: seqio.Vocabulary, text: tf.Tensor) -> Encoded:
    """Encodes a text without special tokens.

    Args:
      vocabulary: a tokenizer, SentencePiece, bytes or words.
      text: UTF-8, scalar.

    Returns:
      The pieces and their characters. A piece may include the whitespace before it.

    Raises:
      UserError: the vocabulary is of another kind.
    """
    return _encode(vocabulary, text)


@functools.singledispatch
def _encode(vocabulary: seqio.Vocabulary, text: tf.Tensor) -> Encoded:
    del text
    raise UserError(
        f"{type(vocabulary).__name__}: the characters of its pieces are not known, but answers or sentences are found "
        "by them. Use a WordPiece, BPE, SentencePiece, byte or word vocabulary."
    )


@_encode.register
def _(vocabulary: LateVocabulary, text: tf.Tensor) -> Encoded:
    return _encode(vocabulary.vocabulary, text)


@_encode.register
def _(vocabulary: seqio.SentencePieceVocabulary, text: tf.Tensor) -> Encoded:
    ids, starts, ends = (tf.cast(each, tf.int32) for each in vocabulary.tf_tokenizer.tokenize_with_offsets(text))
    # Of the bytes of a character, only the last one has the character, and the others are empty.
    is_empty_byte = tf.gather(_is_byte(vocabulary.sp_model), ids) & tf.equal(starts, ends)
    return _at_characters(text, ids, starts, tf.where(is_empty_byte, starts + 1, ends))


@_encode.register
def _(vocabulary: seqio.ByteVocabulary, text: tf.Tensor) -> Encoded:
    ids = tf.cast(vocabulary.encode_tf(text), tf.int32)
    starts = tf.range(tf.size(ids))
    return _at_characters(text, ids, starts, starts + 1)


@_encode.register
def _(vocabulary: TokenizerVocabulary, text: tf.Tensor) -> Encoded:
    def encode(texts: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(vocabulary.encode_with_offsets(texts[0].decode(errors="replace")))

    found = tf.numpy_function(encode, [tf.reshape(text, [1])], [tf.int32] * 3, stateful=False)
    return Encoded(*(tf.ensure_shape(each, [None]) for each in found))


@_encode.register
def _(vocabulary: WordSequenceVocabulary, text: tf.Tensor) -> Encoded:
    words, ids = vocabulary.split_tf(text)
    characters = tf.strings.unicode_split(text, "UTF-8")
    # The words, joined, are the characters of the text that do not separate words.
    places = tf.cast(tf.squeeze(tf.where(~tf.strings.regex_full_match(characters, _ASCII_SPACE)), 1), tf.int32)
    lengths = tf.strings.length(words, unit="UTF8_CHAR")
    ends = tf.cumsum(lengths)
    return Encoded(ids, tf.gather(places, ends - lengths), tf.gather(places, ends - 1) + 1)


def _at_characters(text: tf.Tensor, ids: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> Encoded:
    """Converts offsets in bytes to offsets in characters. A piece of part of a character contains the character."""
    character_ends = tf.cumsum(tf.strings.length(tf.strings.unicode_split(text, "UTF-8")))
    first = tf.searchsorted(character_ends, starts, side="right")
    last = tf.searchsorted(character_ends, ends, side="left") + 1
    return Encoded(ids, first, tf.where(ends > starts, last, first))


@functools.lru_cache(maxsize=4)
def _is_byte(contents: bytes) -> np.ndarray:
    """Returns whether each piece of a SentencePiece model is a byte."""
    model = sentencepiece.SentencePieceProcessor(model_proto=contents)
    return np.array([model.IsByte(number) for number in range(model.GetPieceSize())])
