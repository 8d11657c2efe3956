"""The bytes of text that each token of a vocabulary stands for, and where the tokens of a text end in its bytes."""

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32
from sentencepiece import sentencepiece_pb2

from t5x_like.errors import UserError
from t5x_like.vocabularies.base import ByteVocabulary, SentencePieceVocabulary, Vocabulary
from t5x_like.vocabularies.converters import SPACE
from t5x_like.vocabularies.late import LateVocabulary
from t5x_like.vocabularies.tokenizer_vocabulary import TokenizerVocabulary

# A byte of a piece of SentencePiece with byte fallback.
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_WHITESPACE = (b" ", b"\t", b"\n", b"\r", b"\x0b", b"\x0c")


class EncodedText(NamedTuple):
    """A text as tokens, with the bytes that they cover.

    Attributes:
      ids: The id of each token.
      ends: Number of bytes of the text up to and with each token.
    """

    ids: Int32[np.ndarray, " tokens"]
    ends: Int32[np.ndarray, " tokens"]


class TokenBytes:
    """The bytes of each token of a vocabulary.

    Args:
      vocabulary: A vocabulary of bytes, a SentencePiece model, or a tokenizer whose pieces keep the spaces of a text:
        byte-level BPE, or pieces with `▁`.

    Attributes:
      vocabulary: The vocabulary.
      of: The bytes of each id; None for special tokens, sentinels and the unknown token.

    Raises:
      UserError: The pieces of the vocabulary do not determine the bytes of a text, as in WordPiece.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary.vocabulary if isinstance(vocabulary, LateVocabulary) else vocabulary
        self.of: tuple[bytes | None, ...] = _table(self.vocabulary)

    def __len__(self) -> int:
        return len(self.of)

    @property
    def word_starts(self) -> Bool[np.ndarray, " vocab"]:
        """Which tokens begin with whitespace, or end a text: the tokens before which a word is complete."""
        starts = [token is not None and token.startswith(_WHITESPACE) for token in self.of]
        if (eos := self.vocabulary.eos_id) is not None and 0 <= eos < len(starts):
            starts[eos] = True
        return np.array(starts)

    def join(self, ids: Sequence[int]) -> tuple[str, Int32[np.ndarray, " tokens"]]:
        """Returns the text of tokens without special ones, and the end of each token in its bytes.

        The text may be a part of a longer one that was cut between tokens. An incomplete character at its beginning or
        end is left out, and so is everything from bytes that are not UTF-8. A space that a tokenizer adds to the first
        word is removed.

        Args:
          ids: Ids with bytes; see `of`.

        Returns:
          The text, and the ends of the tokens. An end is negative for tokens that the text leaves out.
        """
        tokens = [self.of[index] or b"" for index in ids]
        whole, bounds = b"".join(tokens), np.cumsum([0, *map(len, tokens)])
        skipped = next(number for number, at in enumerate(bounds) if not _continues(whole[at : at + 1]))
        begin = bounds[skipped]
        begin += self.adds_space and whole[begin : begin + 1] == b" "
        try:
            text = whole[begin:].decode()
        except UnicodeDecodeError as error:
            text = whole[begin : begin + error.start].decode()
        ends = np.maximum(bounds[1:] - begin, 0)
        left_out = (np.arange(len(tokens)) < skipped) | (ends > len(text.encode()))
        return text, np.where(left_out, -1, ends).astype(np.int32)

    @functools.cached_property
    def adds_space(self) -> bool:
        """Whether the tokenizer adds a space before the first word of a text."""
        ids = self.vocabulary.encode("a")
        return b"".join(self.of[index] or b"" for index in ids).startswith(b" ")

    def encode(self, text: str) -> EncodedText:
        """Encodes a text without special tokens.

        A space at its beginning replaces the one that a tokenizer would add.

        Args:
          text: The text.

        Returns:
          Its tokens. Where the tokenizer changes a text, such as by Unicode normalization, the ends are those of the
          characters that the library states for a token.
        """
        if self.adds_space and text.startswith(" "):
            found = self._encode(text[1:])
            return EncodedText(found.ids, found.ends + 1)
        return self._encode(text)

    def _encode(self, text: str) -> EncodedText:
        ids = np.array(self.vocabulary.encode(text), np.int32)
        tokens, given = [self.of[index] for index in ids], text.encode()
        if None not in tokens:
            whole = b"".join(tokens)
            added = len(whole) - len(given)
            if added in (0, 1) and whole == b" " * added + given:
                ends = np.cumsum([len(token) for token in tokens]) - added
                return EncodedText(ids, np.maximum(ends, 0).astype(np.int32))
        return EncodedText(ids, np.maximum.accumulate(_library_ends(self.vocabulary, text), dtype=np.int32))


def _continues(byte: bytes) -> bool:
    """Returns whether a byte continues a character of UTF-8."""
    return byte != b"" and byte[0] & 0xC0 == 0x80


def _library_ends(vocabulary: Vocabulary, text: str) -> np.ndarray:
    """Returns the end of each token in the bytes of a text, as the library of a tokenizer states it."""
    if isinstance(vocabulary, TokenizerVocabulary):
        sizes = np.cumsum([0, *(len(character.encode()) for character in text)])
        return sizes[vocabulary.encode_with_offsets(text).ends]
    serialized = vocabulary.tokenizer.EncodeAsSerializedProto(text)
    return np.array([piece.end for piece in sentencepiece_pb2.SentencePieceText.FromString(serialized).pieces], int)


def _table(vocabulary: Vocabulary) -> tuple[bytes | None, ...]:
    if isinstance(vocabulary, ByteVocabulary):
        first = vocabulary.encode("\0")[0]
        return tuple(
            bytes([index - first]) if 0 <= index - first < 256 else None for index in range(vocabulary.vocab_size)
        )
    if isinstance(vocabulary, SentencePieceVocabulary):
        return _of_sentencepiece(vocabulary)
    if isinstance(vocabulary, TokenizerVocabulary) and (vocabulary.is_byte_level or vocabulary.has_space_symbol):
        return _of_tokenizer(vocabulary)
    raise UserError(
        f"{vocabulary}: its pieces do not determine the bytes of a text. Use a byte-level BPE or a SentencePiece "
        "vocabulary."
    )


def _of_sentencepiece(vocabulary: SentencePieceVocabulary) -> tuple[bytes | None, ...]:
    model, sentinels = vocabulary.tokenizer, set(vocabulary.sentinel_ids)

    def token(index: int) -> bytes | None:
        if index in sentinels or model.IsControl(index) or model.IsUnknown(index) or model.IsUnused(index):
            return None
        return _of_piece(model.IdToPiece(index), is_byte=model.IsByte(index))

    return tuple(token(index) for index in range(vocabulary.vocab_size))


def _of_tokenizer(vocabulary: TokenizerVocabulary) -> tuple[bytes | None, ...]:
    added = {index: each.content for index, each in vocabulary.library_tokenizer.get_added_tokens_decoder().items()}
    without = {*vocabulary.special_names, *vocabulary.sentinel_ids, vocabulary.unk_id}
    letters = {letter: byte for byte, letter in enumerate(byte_letters())}

    def token(index: int, piece: str) -> bytes | None:
        if index in without or not piece:
            return None
        if index in added:
            return added[index].encode()
        if vocabulary.is_byte_level:
            return bytes(letters[letter] for letter in piece) if all(each in letters for each in piece) else None
        return _of_piece(piece, is_byte=_BYTE.fullmatch(piece) is not None)

    return tuple(token(index, piece) for index, piece in enumerate(vocabulary.pieces))


def _of_piece(piece: str, *, is_byte: bool) -> bytes:
    if is_byte:
        return bytes([int(_BYTE.fullmatch(piece)[1], 16)])
    return piece.replace(SPACE, " ").encode()


def byte_letters() -> list[str]:
    """Returns the letter of each byte in the pieces of byte-level BPE: itself if it is visible, or one from U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(others)) for byte in range(256)]
