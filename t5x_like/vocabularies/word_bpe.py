"""GPT-1's BPE (Radford et al. 2018, section 4.1): the characters of lower-cased words are merged."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from t5x_like.errors import UserError
from t5x_like.vocabularies import wordpiece
from t5x_like.vocabularies.bpe_files import read_ids, read_merges
from t5x_like.vocabularies.bpe_vocabulary import BPEVocabulary
from t5x_like.vocabularies.merges import Merges

if TYPE_CHECKING:
    import tensorflow as tf

END_OF_WORD = "</w>"
"""The suffix of pieces that end a word."""


class WordBPEVocabulary(BPEVocabulary):
    """The BPE of GPT-1 (40,478 ids).

    The ids of a text equal Hugging Face's `OpenAIGPTTokenizerFast`'s: words are BERT's, in lower case and without
    accents. Special tokens in a text are encoded as characters.

    Args:
      vocab_json: path of `vocab.json`, which maps pieces to ids, or of a `tokenizer.json`.
      merges_txt: path of `merges.txt`, which lists the merges in the order learned, or of a `tokenizer.json`.
      special_tokens: the special token of each role that the vocabulary has, among bos, eos, pad and unk. A token for
        unknown characters is required.
    """

    def __init__(self, vocab_json: str, merges_txt: str, special_tokens: Mapping[str, str]):
        self.files = (vocab_json, merges_txt)
        self.special_tokens = dict(special_tokens)
        super().__init__(extra_ids=0)

    @property
    def pieces(self) -> tuple[str, ...]:
        """All pieces in the order of their ids.

        Raises:
          UserError: a file does not exist, or the files do not match.
        """
        return self._bpe.pieces

    @property
    def unk_id(self) -> int:
        """The id of characters that are not in the vocabulary."""
        return self._bpe.ids[self.special_tokens["unk"]]

    @property
    def _bpe(self) -> _BPE:
        return _read(*self.files, tuple(sorted(set(self.special_tokens.values()))))

    @property
    def _special_ids(self) -> Mapping[str, int]:
        return self._bpe.ids

    def _words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return wordpiece.split_words(texts, lower_case=True, compose=False)

    def _words_of(self, text: str) -> list[str]:
        return wordpiece.words_of(text, lower_case=True, compose=False)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        return self._bpe.encode_word(word, self.unk_id)

    def _encode_words(self, words: tf.Tensor) -> tf.RaggedTensor:
        return self._bpe.encode(words, self.unk_id)

    def _decode(self, ids: Iterable[int]) -> str:
        return "".join(self.pieces[index] for index in ids).replace(END_OF_WORD, " ").removesuffix(" ")

    def decode_tf(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        """Decodes ids `[length]`, or several texts `[texts, length]`, each up to and with its first EOS."""
        import tensorflow as tf

        ids = tf.where(ids < self.vocab_size, ids, self.unk_id)
        if self.eos_id is not None:
            after = tf.cumsum(tf.cast(tf.equal(ids, self.eos_id), tf.int32), axis=-1, exclusive=True) > 0
            ids = tf.ragged.boolean_mask(ids, tf.logical_not(after))
        return self._decode_tf(ids)

    def _decode_tf(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        import tensorflow as tf

        pieces = tf.ragged.map_flat_values(tf.gather, tf.constant(self.pieces), ids)
        text = tf.strings.reduce_join(pieces, axis=-1)
        return tf.strings.regex_replace(tf.strings.regex_replace(text, END_OF_WORD, " "), " $", "")

    def __eq__(self, other) -> bool:
        return (
            isinstance(other, WordBPEVocabulary)
            and self.files == other.files
            and self.special_tokens == other.special_tokens
        )

    __hash__ = None


@dataclasses.dataclass(frozen=True, eq=False)
class _BPE:
    """The contents of the files.

    Attributes:
      pieces: all pieces in the order of their ids.
      ids: the id of each piece.
      characters: code point * 2 of each character, + 1 at the end of a word, int64 `[characters]`, ascending.
      character_ids: the id of each of these characters, int32 `[characters]`.
      merges: the merges.
    """

    pieces: tuple[str, ...]
    ids: dict[str, int]
    characters: np.ndarray
    character_ids: np.ndarray
    merges: Merges

    @functools.lru_cache(maxsize=1 << 16)  # noqa: B019 (at most four vocabularies are kept)
    def encode_word(self, word: str, unk_id: int) -> tuple[int, ...]:
        """Encodes a word without TensorFlow; see `encode`."""
        tokens = [self.ids.get(character, unk_id) for character in word[:-1]]
        return tuple(self.merges.apply_to_word([*tokens, self.ids.get(word[-1] + END_OF_WORD, unk_id)]))

    def encode(self, words: tf.Tensor, unk_id: int) -> tf.RaggedTensor:
        """Encodes words: `[words]` -> ragged `[words, (ids)]`."""
        import tensorflow as tf

        points = tf.strings.unicode_decode(words, "UTF-8")
        owners = points.value_rowids()
        ends_word = owners != tf.pad(owners, [[0, 1]], constant_values=-1)[1:]
        keys = tf.cast(points.flat_values, tf.int64) * 2 + tf.cast(ends_word, tf.int64)
        found = tf.minimum(tf.searchsorted(self.characters, keys), len(self.characters) - 1)
        tokens = tf.where(tf.gather(self.characters, found) == keys, tf.gather(self.character_ids, found), unk_id)
        return self.merges.apply(tokens, owners, tf.size(words, tf.int64))


@functools.lru_cache(maxsize=4)
def _read(vocab_json: str, merges_txt: str, special_tokens: tuple[str, ...]) -> _BPE:
    ids = read_ids(vocab_json)
    pieces = sorted(ids, key=ids.get)
    if [ids[piece] for piece in pieces] != list(range(len(ids))):
        raise UserError(f"{vocab_json!r}: the ids are not the numbers 0 … {len(ids) - 1}, each used once")
    if missing := [token for token in special_tokens if token not in ids]:
        raise UserError(f"{vocab_json!r} has no {', '.join(missing)}. Give the vocabulary that has this special token")
    try:
        table = [(ids[a], ids[b], ids[a + b]) for a, b in read_merges(merges_txt)]
    except (KeyError, ValueError) as error:
        raise UserError(f"{merges_txt!r} and {vocab_json!r} do not match: a merge is not a piece ({error})") from error
    characters = {}
    for piece, index in ids.items():
        character = piece.removesuffix(END_OF_WORD)
        if len(character) == 1:
            characters[ord(character) * 2 + (character != piece)] = index
    return _BPE(
        pieces=tuple(pieces),
        ids=ids,
        characters=np.array(sorted(characters), np.int64),
        character_ids=np.array([characters[key] for key in sorted(characters)], np.int32),
        merges=Merges.from_ids(table, len(pieces)),
    )
