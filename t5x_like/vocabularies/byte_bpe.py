"""GPT-2's byte-level BPE (Radford et al. 2019, section 2.2), also with the ids of RoBERTa and BART.

A text is split into words with their preceding space. The bytes of each word are merged pair by pair, in the order in
which the merges were learned. The distinct words of a text are merged together, each one once.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from t5x_like.errors import UserError
from t5x_like.vocabularies import word_splits
from t5x_like.vocabularies.bpe_files import read_ids, read_merges, read_text
from t5x_like.vocabularies.bpe_vocabulary import BPEVocabulary
from t5x_like.vocabularies.merges import Merges

if TYPE_CHECKING:
    import tensorflow as tf

END_OF_TEXT = "<|endoftext|>"
ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
# The number of hashes of pieces, by which whole words are found.
_HASHES = np.iinfo(np.int64).max
# RoBERTa has three unused filler ids between its pieces and <mask>, which round up the number of ids.
ROBERTA_FILLERS = 3

GPT2_SPECIAL = {"bos": END_OF_TEXT, "eos": END_OF_TEXT}
"""The special tokens of GPT-2 by role."""

ROBERTA_ROLES = {
    **{"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
    **{"cls": "<s>", "sep": "</s>", "mask": "<mask>"},
}
"""The special tokens of RoBERTa and BART by role."""


class ByteBPEVocabulary(BPEVocabulary):
    """The byte-level BPE of GPT-2 (50,257 ids), or the same pieces with the ids of RoBERTa and BART (50,265 ids).

    The ids of a text equal Hugging Face's `GPT2Tokenizer`'s, with one difference: `<|endoftext|>` in a text is
    encoded as characters, never as the special token.

    Args:
      encoder_json: path of GPT-2's `encoder.json` (`vocab.json`), which maps pieces to ids, or of a `tokenizer.json`.
        It may be local or in a bucket, or a function that returns the path at each use.
      vocab_bpe: path of GPT-2's `vocab.bpe` (`merges.txt`), which lists the merges in the order learned, or of a
        `tokenizer.json`.
      roberta_dict: path of fairseq's `dict.txt`, with a line "id count" per piece. It selects the ids of RoBERTa:
        <s> 0, <pad> 1, </s> 2, <unk> 3, the pieces in the order of the file, and <mask> last.
      special_tokens: the special token of each role that the vocabulary has: bos, eos, pad, unk, cls, sep and mask.
        The default is `ROBERTA_ROLES` with `roberta_dict`, otherwise `GPT2_SPECIAL`.
      added_tokens: ids of tokens that are not in `encoder_json` and that no text is encoded as.
      split: the split of texts into words.
      add_prefix_space: whether a space is added before texts that do not begin with one.
      keep_whole_words: whether a word that is a piece is encoded as this piece, whatever its merges (Llama 3).
    """

    def __init__(
        self,
        encoder_json: str | Callable[[], str],
        vocab_bpe: str | Callable[[], str],
        roberta_dict: str | Callable[[], str | None] | None = None,
        *,
        special_tokens: Mapping[str, str] | None = None,
        added_tokens: Mapping[str, int] | None = None,
        split: word_splits.WordSplit = word_splits.GPT2,
        add_prefix_space: bool = False,
        keep_whole_words: bool = False,
    ):
        self._files = (encoder_json, vocab_bpe, roberta_dict)
        self._special_tokens = special_tokens
        self._added_tokens = tuple(sorted((added_tokens or {}).items()))
        self._split = split
        self._add_prefix_space = add_prefix_space
        self._keep_whole_words = keep_whole_words
        super().__init__(extra_ids=0)

    @property
    def files(self) -> tuple[str, str, str | None]:
        """The paths of the three files."""
        return tuple(file() if callable(file) else file for file in self._files)

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The UTF-8 bytes of each id. A character may be divided among several pieces.

        Raises:
          UserError: a file does not exist, or the files do not match.
        """
        return self._bpe.pieces

    @property
    def word_starts(self) -> np.ndarray:
        """Which pieces begin with whitespace or are not text, bool `[vocab_size]`.

        The first word of a text does not begin with whitespace.
        """
        special = self._bpe.special_ids.values()
        return np.array([piece[:1].isspace() or index in special for index, piece in enumerate(self.pieces)])

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """The special token of each role."""
        if self._special_tokens is not None:
            return self._special_tokens
        return GPT2_SPECIAL if self.files[2] is None else ROBERTA_ROLES

    @property
    def special_names(self) -> Mapping[int, str]:
        """The special token of each id that is not text."""
        return {index: token for token, index in self._special_ids.items()}

    @property
    def unk_id(self) -> int | None:
        """The id of the unknown token, or None. No text is encoded as it, since bytes can encode any text."""
        return self._optional_id("unk")

    @property
    def cls_id(self) -> int:
        """The id of the first token of an example, <s> in RoBERTa; see `mask_id`."""
        return self._id("cls")

    @property
    def sep_id(self) -> int:
        """The id of the last token of a segment, </s> in RoBERTa; see `mask_id`."""
        return self._id("sep")

    @property
    def text_prefix(self) -> tuple[int, ...]:
        """The ids that begin each text of an encoder-decoder, beside the EOS at its end: <s> of BART."""
        bos_id = self.bos_id
        return () if bos_id is None or bos_id == self.eos_id or bos_id != self._optional_id("cls") else (bos_id,)

    @property
    def mask_id(self) -> int:
        """The id of the token that replaces masked tokens, <mask> in RoBERTa.

        Raises:
          UserError: the vocabulary has no such token, as GPT-2's.
        """
        return self._id("mask")

    @property
    def _bpe(self) -> _BPE:
        return _read(*self.files, self._added_tokens, tuple(sorted(set(self.special_tokens.values()))))

    @property
    def _special_ids(self) -> Mapping[str, int]:
        return self._bpe.special_ids

    def _id(self, role: str) -> int:
        index = self._optional_id(role)
        if index is None:
            known = ", ".join(f"{known} {token}" for known, token in self.special_tokens.items())
            raise UserError(
                f"{self.files[0]!r} has no {role} token, only {known}. Use a vocabulary with such a token, such as "
                "RoBERTa's."
            )
        return index

    def _words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        import tensorflow as tf

        if self._add_prefix_space:
            unchanged = (texts == "") | (tf.strings.substr(texts, 0, 1) == " ")
            texts = tf.where(unchanged, texts, tf.strings.join([" ", texts]))
        return self._split(texts)

    def _words_of(self, text: str) -> list[str]:
        is_changed = self._add_prefix_space and text[:1] not in ("", " ")
        return self._split.of_text(f" {text}" if is_changed else text)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        return self._bpe.encode_word(word.encode(), self._keep_whole_words)

    def _encode_words(self, words: tf.Tensor) -> tf.RaggedTensor:
        return self._bpe.encode(words, self._keep_whole_words)

    def _decode(self, ids: Iterable[int]) -> str:
        pieces, eos_id, special = self.pieces, self.eos_id, self.special_names
        ids = itertools.takewhile(lambda index: index != eos_id, ids)
        text = b"".join(pieces[i] if i < len(pieces) else b"\xff" for i in ids if i not in special)
        return text.decode("utf-8", errors="replace")

    def decode_tf(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        """Decodes ids `[length]`, or several texts `[texts, length]`: the text before each first EOS."""
        import tensorflow as tf

        is_text = ~np.isin(np.arange(self.vocab_size), list(self.special_names))
        kept = tf.ragged.map_flat_values(tf.gather, is_text, ids)
        if self.eos_id is not None:
            kept &= tf.cumsum(tf.cast(tf.equal(ids, self.eos_id), tf.int32), axis=-1) == 0
        return self._decode_tf(tf.ragged.boolean_mask(ids, kept))

    def _decode_tf(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        import tensorflow as tf

        pieces = tf.ragged.map_flat_values(tf.gather, tf.constant(self.pieces), ids)
        return tf.strings.reduce_join(pieces, axis=-1)

    def __eq__(self, other) -> bool:
        return isinstance(other, ByteBPEVocabulary) and self._state() == other._state()

    def _state(self) -> tuple:
        options = (self._added_tokens, self._split, self._add_prefix_space, self._keep_whole_words)
        return (self.files, dict(self.special_tokens), *options)

    __hash__ = None


@dataclasses.dataclass(frozen=True, eq=False)
class _BPE:
    """The contents of the files as arrays.

    Attributes:
      pieces: the bytes of each id.
      special_ids: ids of the special tokens.
      byte_ids: the id of each single byte, int32 `[256]`.
      merges: the merges.
    """

    pieces: tuple[bytes, ...]
    special_ids: dict[str, int]
    byte_ids: np.ndarray
    merges: Merges

    @functools.lru_cache(maxsize=1 << 16)  # noqa: B019 (at most four vocabularies are kept)
    def encode_word(self, word: bytes, keep_whole_words: bool) -> tuple[int, ...]:
        """Encodes a word without TensorFlow; see `encode`."""
        if keep_whole_words and (index := self._ids.get(word)) is not None:
            return (index,)
        return tuple(self.merges.apply_to_word(self.byte_ids[list(word)].tolist()))

    @functools.cached_property
    def _ids(self) -> dict[bytes, int]:
        return {piece: index for index, piece in enumerate(self.pieces)}

    def encode(self, words: tf.Tensor, keep_whole_words: bool) -> tf.RaggedTensor:
        """Encodes words: `[words]` -> ragged `[words, (ids)]`."""
        import tensorflow as tf

        letters = tf.strings.bytes_split(words)
        bytes_ = tf.reshape(tf.io.decode_raw(letters.flat_values, tf.uint8), [-1])
        tokens = letters.with_flat_values(tf.gather(self.byte_ids, tf.cast(bytes_, tf.int32)))
        if keep_whole_words:
            whole = self._whole_words(words)
            is_first = tokens.value_rowids() != tf.pad(tokens.value_rowids(), [[1, 0]], constant_values=-1)[:-1]
            whole_ids = tf.gather(whole, tokens.value_rowids())
            tokens = tokens.with_flat_values(tf.where(whole_ids < 0, tokens.flat_values, whole_ids))
            tokens = tf.ragged.boolean_mask(tokens, tokens.with_flat_values(is_first | (whole_ids < 0)))
        return self.merges.apply(tokens.flat_values, tokens.value_rowids(), tf.size(words, tf.int64))

    def _whole_words(self, words: tf.Tensor) -> tf.Tensor:
        """Returns the id of each word that is a piece, int32 `[words]`, and -1 for other words."""
        import tensorflow as tf

        hashes, ids = self._hashes
        found = tf.searchsorted(hashes, tf.strings.to_hash_bucket_fast(words, _HASHES))
        index = tf.gather(ids, tf.minimum(found, len(ids) - 1))
        return tf.where(tf.gather(tf.constant(self.pieces), index) == words, index, -1)

    @functools.cached_property
    def _hashes(self) -> tuple[np.ndarray, np.ndarray]:
        """The hash of each piece, int64 ascending, and its id."""
        import tensorflow as tf

        with tf.init_scope():
            hashes = tf.strings.to_hash_bucket_fast(tf.constant(self.pieces), _HASHES).numpy()
        ids = np.argsort(hashes).astype(np.int32)
        if len(np.unique(hashes)) < len(hashes):
            raise UserError("two pieces of the vocabulary have the same hash. Set keep_whole_words=False")
        return hashes[ids], ids


@functools.lru_cache(maxsize=4)
def _read(
    encoder_json: str,
    vocab_bpe: str,
    roberta_dict: str | None,
    added_tokens: tuple[tuple[str, int], ...],
    special_tokens: tuple[str, ...],
) -> _BPE:
    vocab = read_ids(encoder_json)
    ids = vocab | dict(added_tokens)
    names = sorted(ids, key=ids.get)
    if [ids[name] for name in names] != list(range(len(ids))):
        raise UserError(f"{encoder_json!r}: the ids are not the numbers 0 … {len(ids) - 1}, each used once")
    special = {name: ids.get(name) for name in special_tokens}
    if roberta_dict is None and None in special.values():
        missing = ", ".join(name for name in special if special[name] is None)
        raise UserError(f"{encoder_json!r} has no {missing}. Give the vocabulary that has these special tokens")
    letters = byte_letters()
    byte_of = {letter: byte for byte, letter in letters.items()}
    not_text = {*special_tokens, *dict(added_tokens), END_OF_TEXT}
    try:
        pieces = [name.encode() if name in not_text else bytes(byte_of[letter] for letter in name) for name in names]
    except KeyError as error:
        raise UserError(f"{encoder_json!r}: {error} in a piece is not a letter of byte-level BPE") from error
    order = np.arange(len(ids), dtype=np.int32)
    if roberta_dict is not None:
        order, pieces, special = _roberta(roberta_dict, pieces)
    merges = read_merges(vocab_bpe)
    try:
        table = [(order[vocab[a]], order[vocab[b]], order[vocab[a + b]]) for a, b in merges]
        byte_ids = np.array([order[vocab[letters[byte]]] for byte in range(256)], np.int32)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"{vocab_bpe!r} and {encoder_json!r} do not match: a merge or a byte is not a piece ({error})"
        ) from error
    return _BPE(tuple(pieces), special, byte_ids, Merges.from_ids(table, len(pieces)))


def _roberta(path: str, gpt2_pieces: list[bytes]) -> tuple[np.ndarray, list[bytes], dict[str, int]]:
    """Returns RoBERTa's id of each GPT-2 id, RoBERTa's pieces in the order of their ids, and its special ids."""
    listed = [line.split(" ")[0] for line in read_text(path).split("\n") if line]
    old = [int(number) for number in listed if number.isdigit()]
    if sorted(old) != list(range(len(gpt2_pieces))):
        raise UserError(f"{path!r} does not list each of the {len(gpt2_pieces)} ids of the vocabulary exactly once")
    order = np.empty(len(old), np.int32)
    order[old] = len(ROBERTA_SPECIAL) + np.arange(len(old))
    fillers = [f"<filler{number}>" for number in range(ROBERTA_FILLERS)]
    pieces = [
        *(name.encode() for name in ROBERTA_SPECIAL),
        *(gpt2_pieces[number] for number in old),
        *(name.encode() for name in (*fillers, "<mask>")),
    ]
    names = {**dict(zip(ROBERTA_SPECIAL, range(len(ROBERTA_SPECIAL)), strict=True)), "<mask>": len(pieces) - 1}
    return order, pieces, names


def byte_letters() -> dict[int, str]:
    """Returns the letter of each byte in the files: itself if printable, otherwise a letter from U+0100."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {byte: chr(256 + n) for n, byte in enumerate(others)}
