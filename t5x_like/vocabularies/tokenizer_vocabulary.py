"""Vocabularies of the library `tokenizers`, which defines the format of `tokenizer.json`."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int32

from t5x_like.errors import UserError
from t5x_like.vocabularies import template, word_cache
from t5x_like.vocabularies.base import Vocabulary
from t5x_like.vocabularies.converters import SPACE
from t5x_like.vocabularies.template import Template

if TYPE_CHECKING:
    import tensorflow as tf
    import tokenizers

# A pipeline encodes in several threads, and a cache in several processes. Threads of the library in addition would
# share the same cores, and do not survive a fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# The letters of byte-level BPE for the bytes that are whitespace.
_SPACE_LETTERS = tuple(chr(256 + byte) for byte in (9, 10, 11, 12, 13, 32))


class MissingSpecialToken(UserError, AttributeError):
    """A vocabulary lacks the special token of a role, or does not mark the beginnings of words."""


class Encoded(NamedTuple):
    """A text as tokens.

    Attributes:
      ids: The id of each token.
      starts: Index of the first character of each token in the text.
      ends: Index after the last character. Tokens that share a character both contain it.
    """

    ids: Int32[np.ndarray, " tokens"]
    starts: Int32[np.ndarray, " tokens"]
    ends: Int32[np.ndarray, " tokens"]


class TokenizerVocabulary(Vocabulary):
    """A tokenizer of the library `tokenizers`, such as WordPiece, byte-level BPE, or BPE and unigram of SentencePiece.

    The ids of a text equal the ids of transformers' fast tokenizers with `split_special_tokens=True`: special tokens in
    a text, such as `[MASK]`, are encoded as characters. Other added tokens are found in texts. Encoding adds no special
    tokens, and does not truncate.

    Args:
      definition: The contents of a tokenizer.json.
      path: The directory or the file that it was read from.
      special_tokens: Role (bos, eos, pad, unk, cls, sep, mask and others) -> special token.
      sentinels: Number of tokens `<extra_id_…>`. They are found in texts, and <extra_id_0> is the last id.
      has_token_types: Whether the tokens of a second text may have the type 1.
    """

    def __init__(
        self,
        definition: str,
        path: str,
        special_tokens: Mapping[str, str],
        *,
        sentinels: int = 0,
        has_token_types: bool = True,
    ):
        self.definition, self.path = definition, path
        self.special_tokens = dict(special_tokens)
        self._has_token_types = has_token_types
        super().__init__(extra_ids=sentinels)
        for role, token in self.special_tokens.items():
            if self.library_tokenizer.token_to_id(token) is None:
                raise UserError(
                    f"{path}: its {role} token {token!r} is not in the vocabulary. Add it, or name the right one in "
                    "tokenizer_config.json."
                )

    @functools.cached_property
    def library_tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer of the library. Each process makes its own."""
        found = load(self.definition, self.path)
        found.no_truncation()
        found.no_padding()
        found.encode_special_tokens = True
        return found

    # ---- pieces ------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def pieces(self) -> tuple[str, ...]:
        """The token of each id, as in the file; empty for ids without a token."""
        ids = self.library_tokenizer.get_vocab(with_added_tokens=True)
        found = [""] * (max(ids.values(), default=-1) + 1)
        for piece, index in ids.items():
            found[index] = piece
        return tuple(found)

    @functools.cached_property
    def special_names(self) -> Mapping[int, str]:
        """Id -> token of the tokens that no text is encoded as."""
        added = self.library_tokenizer.get_added_tokens_decoder()
        found = {index: token.content for index, token in added.items() if token.special}
        return found | {self._role_ids[role]: token for role, token in self.special_tokens.items()}

    @functools.cached_property
    def is_byte_level(self) -> bool:
        """Whether the letters of pieces stand for bytes."""
        return '"type":"ByteLevel"' in self._compact_steps

    @functools.cached_property
    def has_space_symbol(self) -> bool:
        """Whether pieces that begin a word begin with `▁`, as in SentencePiece."""
        return not self.is_byte_level and any(piece.startswith(SPACE) for piece in self.pieces)

    @functools.cached_property
    def continuation(self) -> str | None:
        """The prefix of pieces that continue a word, `##` in BERT; None if there is none."""
        return getattr(self.library_tokenizer.model, "continuing_subword_prefix", None) or None

    @functools.cached_property
    def _compact_steps(self) -> str:
        tokenizer = self.library_tokenizer
        steps = (tokenizer.pre_tokenizer, tokenizer.decoder)
        return "".join(step.__getstate__().decode() for step in steps if step is not None)

    @functools.cached_property
    def word_starts(self) -> Bool[np.ndarray, " vocab"]:
        """Which ids begin a word or are not text. The first word of a text may begin with another one.

        Raises:
          MissingSpecialToken: The pieces do not tell.
        """
        if self.is_byte_level:
            begins = [piece.startswith(_SPACE_LETTERS) for piece in self.pieces]
        elif self.has_space_symbol:
            begins = [piece.startswith(SPACE) or piece[:1].isspace() for piece in self.pieces]
        elif self.continuation is not None:
            begins = [not piece.startswith(self.continuation) for piece in self.pieces]
        else:
            raise MissingSpecialToken(f"{self.path}: its pieces do not mark the beginnings of words.")
        starts = np.array(begins)
        starts[[*self.special_names, *range(self.vocab_size - self.extra_ids, self.vocab_size)]] = True
        return starts

    @property
    def word_space(self) -> str:
        """What precedes a word that is encoded alone: the space of byte-level BPE, which has words with it."""
        return " " if self.is_byte_level else ""

    # ---- special tokens ----------------------------------------------------------------------------------------------

    @functools.cached_property
    def _role_ids(self) -> Mapping[str, int]:
        return {role: self.library_tokenizer.token_to_id(token) for role, token in self.special_tokens.items()}

    def _required_id(self, role: str) -> int:
        if role in self._role_ids:
            return self._role_ids[role]
        known = ", ".join(f"{known} {token}" for known, token in self.special_tokens.items()) or "none"
        raise MissingSpecialToken(
            f"{self.path} has no {role} token, only {known}. Use a vocabulary with such a token, such as BERT's."
        )

    @property
    def bos_id(self) -> int | None:
        """The id of the token before a text, or None."""
        return self._role_ids.get("bos")

    @property
    def eos_id(self) -> int | None:
        """The id of the token after a text, or None."""
        return self._role_ids.get("eos")

    @property
    def pad_id(self) -> int | None:
        """The id of padding, or None."""
        return self._role_ids.get("pad")

    @property
    def unk_id(self) -> int | None:
        """The id of unknown tokens, or None, as in byte-level BPE, where bytes encode any text."""
        return self._role_ids.get("unk")

    @property
    def cls_id(self) -> int:
        """The id of the token before an example, [CLS] in BERT; see `mask_id`."""
        return self._required_id("cls")

    @property
    def sep_id(self) -> int:
        """The id of the token after each segment, [SEP] in BERT; see `mask_id`."""
        return self._required_id("sep")

    @property
    def mask_id(self) -> int:
        """The id of the token that replaces masked tokens, [MASK] in BERT.

        Raises:
          MissingSpecialToken: The vocabulary has no such token.
        """
        return self._required_id("mask")

    @property
    def text_prefix(self) -> tuple[int, ...]:
        """The ids that begin each text of an encoder-decoder with byte-level BPE: <s> of BART."""
        bos_id = self.bos_id
        is_first = self.is_byte_level and bos_id != self.eos_id and bos_id == self._role_ids.get("cls")
        return () if bos_id is None or not is_first else (bos_id,)

    @functools.cached_property
    def template(self) -> Template | None:
        """The special tokens that the tokenizer places around texts; None if the file does not tell."""
        return template.of_tokenizer(self.library_tokenizer, self.path, has_token_types=self._has_token_types)

    # ---- texts -------------------------------------------------------------------------------------------------------

    @property
    def _base_vocab_size(self) -> int:
        return len(self.pieces)

    @property
    def vocab_size(self) -> int:
        """The number of ids, sentinels and added tokens included: the largest id and 1."""
        return self._base_vocab_size

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes texts, without special tokens.

        Raises:
          UserError: A text has a lone surrogate, which is not a character of Unicode.
        """
        return self._encode_texts(texts)

    @functools.cached_property
    def _encode_texts(self) -> Callable[[Sequence[str]], list[list[int]]]:
        tokenizer = self.library_tokenizer

        def encode(texts: Sequence[str]) -> list[list[int]]:
            # Without offsets. Other threads can run Python meanwhile.
            return [found.ids for found in _checked(tokenizer.encode_batch_fast, texts)]

        separator = word_cache.find_separator(tokenizer)
        if separator is None:
            return encode
        return word_cache.WordCache(functools.partial(_checked, tokenizer.encode_batch), separator)

    def encode_with_offsets(self, text: str) -> Encoded:
        """Encodes a text, without special tokens, with the characters of each token; see `encode_batch`."""
        (found,) = _checked(self.library_tokenizer.encode_batch, [text])
        offsets = np.array(found.offsets, np.int32).reshape(-1, 2)
        return Encoded(np.array(found.ids, np.int32), offsets[:, 0], offsets[:, 1])

    def encode_words(self, text: str) -> list[tuple[str, tuple[int, ...]]]:
        """Splits a text into words, normalized as before encoding, each with its ids.

        Raises:
          UserError: The tokenizer does not split texts before encoding, or see `encode_batch`.
        """
        tokenizer = self.library_tokenizer
        if tokenizer.pre_tokenizer is None:
            raise UserError(f"{self.path}: its tokenizer does not split texts into words. Use a WordPiece vocabulary.")
        (found,) = _checked(tokenizer.encode_batch, [text])
        normalized = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
        words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized)]
        ids: list[list[int]] = [[] for _ in words]
        for number, index in zip(found.word_ids, found.ids, strict=True):
            ids[number].append(index)
        return [(word, tuple(of_word)) for word, of_word in zip(words, ids, strict=True)]

    def _encode(self, s: str) -> list[int]:
        return self.encode_batch([s])[0]

    def _decode(self, ids: Iterable[int]) -> str:
        """Decodes ids as transformers does, without special tokens but the unknown one."""
        size, dropped = self.vocab_size, self.special_names.keys() - {self.unk_id}
        return self.library_tokenizer.decode(
            [int(index) for index in ids if 0 <= index < size and index not in dropped], skip_special_tokens=False
        )

    # ---- TensorFlow --------------------------------------------------------------------------------------------------

    def _encode_tf(self, s: tf.Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
        """Encodes a text as int32 `[length]`, or texts `[…]` as ragged int32 `[…, (length)]`.

        Bytes that are not UTF-8 become the replacement character. The operation has no state, so that a pipeline with
        it can be saved and resumed.
        """
        import tensorflow as tf

        if isinstance(s, tf.RaggedTensor):
            return s.with_flat_values(self._encode_tf(s.flat_values))
        s = tf.convert_to_tensor(s)
        flat = tf.reshape(s, [-1])
        ids, lengths = tf.numpy_function(self._encode_bytes, [flat], (tf.int32, tf.int64), stateful=False)
        ids.set_shape([None])
        lengths.set_shape(flat.shape)
        if s.shape.rank == 0:
            return ids
        found = tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)
        for size in reversed(s.shape[1:]):
            found = tf.RaggedTensor.from_uniform_row_length(found, size)
        return found

    def _encode_bytes(self, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = self.encode_batch([text.decode(errors="replace") for text in texts])
        lengths = np.array([len(ids) for ids in found], np.int64)
        return np.fromiter(itertools.chain.from_iterable(found), np.int32, lengths.sum()), lengths

    def decode_tf(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        """Decodes ids `[length]`, or several texts `[texts, length]`, each up to its first EOS."""
        import tensorflow as tf

        is_single = ids.shape.rank == 1
        rows = tf.expand_dims(ids, 0) if is_single else ids
        rows = rows if isinstance(rows, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(rows)
        given = [rows.flat_values, rows.row_lengths()]
        texts = tf.numpy_function(self._decode_rows, given, tf.string, stateful=False)
        texts.set_shape(rows.shape[:1])
        return texts[0] if is_single else texts

    def _decode_rows(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        rows = np.split(ids, np.cumsum(lengths)[:-1]) if len(lengths) else []
        return np.array([self.decode(row.tolist()).encode() for row in rows], object)

    # ---- copies ------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        made = ("library_tokenizer", "_encode_texts")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __eq__(self, other) -> bool:
        return isinstance(other, TokenizerVocabulary) and self._state == other._state

    @property
    def _state(self) -> tuple:
        return self.definition, self.special_tokens, self.extra_ids, self._has_token_types

    __hash__ = None

    def __str__(self) -> str:
        return f"TokenizerVocabulary({self.path})"


def load(definition: str, path: str) -> tokenizers.Tokenizer:
    """Returns the tokenizer of a tokenizer.json.

    Args:
      definition: The contents of the file.
      path: Its path, for messages.

    Raises:
      UserError: The library cannot read it, such as a model of a later version.
    """
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(definition)
    except Exception as error:  # the library raises no other class
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{path}: tokenizers {tokenizers.__version__} cannot read it ({reason}). Install a later version of "
            "tokenizers, or download the file again."
        ) from error


def _checked(encode: Any, texts: Sequence[str]) -> list[tokenizers.Encoding]:
    try:
        return encode(texts, add_special_tokens=False)
    except (TypeError, UnicodeEncodeError) as error:
        wrong = [text for text in texts if any("\ud800" <= character <= "\udfff" for character in text)]
        if not wrong:
            raise
        raise UserError(
            f"{ascii(wrong[0])[:60]}: a lone surrogate is not a character of Unicode. Decode the text again, such as "
            'with errors="replace".'
        ) from error
