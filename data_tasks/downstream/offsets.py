"""Character offsets of the pieces of a text, which span extraction needs.

The ids equal the vocabulary's `encode_tf`, except for the noncharacter U+10FFFF. All functions are TensorFlow
operations without state.
"""

import functools
from typing import NamedTuple

import numpy as np
import sentencepiece
import seqio
import tensorflow as tf

import t5x_like.data.seqio_feed.seqio_interface  # noqa: F401 (for the dispatch below)
from t5x_like.errors import UserError
from t5x_like.vocabularies import wordpiece
from t5x_like.vocabularies.byte_bpe import ByteBPEVocabulary
from t5x_like.vocabularies.hugging_face_sentencepiece import HuggingFaceSentencePieceVocabulary
from t5x_like.vocabularies.late import LateVocabulary
from t5x_like.vocabularies.word_bpe import END_OF_WORD, WordBPEVocabulary
from t5x_like.vocabularies.word_vocabularies import WordSequenceVocabulary
from t5x_like.vocabularies.wordpiece import CONTINUATION, WordPieceVocabulary

# A noncharacter of Unicode and a control character, both of which WordPiece removes.
_SEPARATOR = "\U0010ffff"
_REMOVED = "\x00"
# What separates words in TensorFlow's `strings.split`.
_ASCII_SPACE = r"[ \t\n\v\f\r]"
# Characters that WordPiece keeps, without the marks that combine with the character before them.
_BASE = r"[\p{L}\p{N}\p{P}\p{S}\p{Z}\t\n\r]"
_DROPPED = r"[^\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z}\t\n\r\x{10FFFF}]"
# A character with its marks, which may be composed into one character. Vowels and finals of Hangul compose like marks.
_UNIT = rf"({_BASE}(?:{_DROPPED}*[\p{{M}}\x{{1160}}-\x{{11FF}}])*)"


# What may be changed together in a text: quotation marks, whitespace, and a character with its marks.
_CHANGED = r"(``|''|[\s\p{Z}]+|[\p{L}\p{N}\p{P}\p{S}]\p{M}*)"


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
      vocabulary: WordPiece, byte-level BPE, GPT-1's BPE, SentencePiece, bytes or words.
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
def _(vocabulary: HuggingFaceSentencePieceVocabulary, text: tf.Tensor) -> Encoded:
    encode = _encode.dispatch(seqio.SentencePieceVocabulary)
    if not vocabulary.changes_texts:
        return encode(vocabulary, text)
    text = tf.strings.regex_replace(text, _SEPARATOR, _REMOVED)
    # What the vocabulary changes in a text is changed in each unit, so that the units of a piece are known.
    units = tf.strings.split(tf.strings.regex_replace(text, _CHANGED, rf"{_SEPARATOR}\1{_SEPARATOR}"), sep=_SEPARATOR)
    unit_ends = tf.cumsum(tf.strings.length(units, unit="UTF8_CHAR"))
    changed = vocabulary.change_units(units)
    byte_ends = tf.cumsum(tf.strings.length(changed))
    joined = tf.strings.reduce_join(changed)
    prepared = vocabulary.prepare(joined)
    found = encode(vocabulary, prepared)
    added = tf.strings.length(prepared, unit="UTF8_CHAR") - tf.strings.length(joined, unit="UTF8_CHAR")
    # From characters of the prepared text to its bytes, to units, and to characters of the text.
    sizes = tf.strings.length(tf.strings.unicode_split(joined, "UTF-8"))
    bytes_before = tf.concat([[0], tf.cumsum(sizes)], axis=0)
    starts, ends = (tf.maximum(each - added, 0) for each in (found.starts, found.ends))
    first = tf.searchsorted(byte_ends, tf.gather(bytes_before, starts), side="right")
    last = tf.searchsorted(byte_ends, tf.gather(bytes_before, ends), side="left")
    before = tf.pad(unit_ends, [[1, 0]])
    spans = tf.gather(before, first), tf.gather(before, last + 1)
    return vocabulary.divide(found.ids, spans[0], tf.where(ends > starts, spans[1], spans[0]), Encoded)


@_encode.register
def _(vocabulary: seqio.ByteVocabulary, text: tf.Tensor) -> Encoded:
    ids = tf.cast(vocabulary.encode_tf(text), tf.int32)
    starts = tf.range(tf.size(ids))
    return _at_characters(text, ids, starts, starts + 1)


@_encode.register
def _(vocabulary: ByteBPEVocabulary, text: tf.Tensor) -> Encoded:
    # The vocabulary removes the separator. Its bytes are encoded instead, so that the bytes of the pieces add up.
    ids = vocabulary.encode_tf(tf.strings.regex_replace(text, _SEPARATOR, _REMOVED * len(_SEPARATOR.encode())))
    lengths = tf.gather(_byte_counts(vocabulary.pieces), ids)
    added = tf.reduce_sum(lengths) - tf.strings.length(text)  # 1 if the vocabulary adds a space before the text
    ends = tf.cumsum(lengths) - added
    return _at_characters(text, ids, tf.maximum(ends - lengths, 0), ends)


@_encode.register
def _(vocabulary: WordPieceVocabulary, text: tf.Tensor) -> Encoded:
    counts = _character_counts(vocabulary.pieces, CONTINUATION, "")
    words = wordpiece.split_words(text, **vocabulary.split_options)
    pieces = vocabulary.encode_words(words)
    lengths = tf.gather(counts, pieces.flat_values)
    # [UNK] covers its whole word.
    word_lengths = tf.gather(tf.strings.length(words, unit="UTF8_CHAR"), pieces.value_rowids())
    lengths = tf.where(pieces.flat_values == vocabulary.unk_id, word_lengths, lengths)
    return _of_words(text, pieces.flat_values, lengths, vocabulary.split_options)


@_encode.register
def _(vocabulary: WordBPEVocabulary, text: tf.Tensor) -> Encoded:
    ids = vocabulary.encode_tf(text)
    counts = _character_counts(vocabulary.pieces, "", END_OF_WORD)
    lengths = tf.where(ids == vocabulary.unk_id, 1, tf.gather(counts, ids))
    return _of_words(text, ids, lengths, {"lower_case": True, "compose": False})


@_encode.register
def _(vocabulary: WordSequenceVocabulary, text: tf.Tensor) -> Encoded:
    words, ids = vocabulary.split_tf(text)
    characters = tf.strings.unicode_split(text, "UTF-8")
    # The words, joined, are the characters of the text that do not separate words.
    places = tf.cast(tf.squeeze(tf.where(~tf.strings.regex_full_match(characters, _ASCII_SPACE)), 1), tf.int32)
    lengths = tf.strings.length(words, unit="UTF8_CHAR")
    ends = tf.cumsum(lengths)
    return Encoded(ids, tf.gather(places, ends - lengths), tf.gather(places, ends - 1) + 1)


def _of_words(text: tf.Tensor, ids: tf.Tensor, lengths: tf.Tensor, options: dict) -> Encoded:
    """Returns pieces whose characters, joined, are the words of the text without spaces.

    Args:
      text: UTF-8, scalar.
      ids: the id of each piece, int32 `[pieces]`.
      lengths: number of characters of each piece, int32 `[pieces]`.
      options: how the vocabulary splits a text into words; see `wordpiece.split_words`.
    """
    text = tf.strings.regex_replace(text, f"[{_SEPARATOR}\ufffd]", _REMOVED)
    units = tf.strings.split(tf.strings.regex_replace(text, _UNIT, rf"{_SEPARATOR}\1{_SEPARATOR}"), sep=_SEPARATOR)
    unit_ends = tf.cumsum(tf.strings.length(units, unit="UTF8_CHAR"))
    # The normalized characters of each unit; empty for whitespace and removed characters.
    kept = tf.strings.reduce_join(wordpiece.split_words(units, **options), axis=-1)
    unit_of = tf.repeat(tf.range(tf.size(units)), tf.strings.length(kept, unit="UTF8_CHAR"))
    ends = tf.cumsum(lengths)
    first, last = tf.gather(unit_of, ends - lengths), tf.gather(unit_of, ends - 1)
    return Encoded(ids, tf.gather(tf.pad(unit_ends, [[1, 0]]), first), tf.gather(unit_ends, last))


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


@functools.lru_cache(maxsize=4)
def _byte_counts(pieces: tuple[bytes, ...]) -> np.ndarray:
    return np.array([len(piece) for piece in pieces], np.int32)


@functools.lru_cache(maxsize=4)
def _character_counts(pieces: tuple[str, ...], prefix: str, suffix: str) -> np.ndarray:
    return np.array([len(piece.removeprefix(prefix).removesuffix(suffix)) for piece in pieces], np.int32)
