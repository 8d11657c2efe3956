"""SentencePiece models (Kudo and Richardson 2018) with the special tokens of a Hugging Face model directory."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from data_tasks.vocabularies.base import SentencePieceModel, SentencePieceVocabulary, with_sentinels
from data_tasks.vocabularies.sentinels import SentinelVocabulary

if TYPE_CHECKING:
    import tensorflow as tf


class HuggingFaceSentencePieceVocabulary(SentinelVocabulary):
    """A SentencePiece vocabulary whose special ids are given and differ from the model's.

    The ids of a text equal the SentencePiece library's. Pieces that only controls stand for, such as </s>, are
    encoded as characters.

    Args:
      model: path of the model.
      special_ids: id of the special token of each role: bos, eos, pad and unk, where the tokenizer has one.
      extra_ids: number of sentinels after the pieces. As in T5, <extra_id_0> is the last id.
      add_prefix_space: whether a space is added before each text, or None to do as the model says.
      contents: the model, if the file at its path has another format.
      keeps_first_space: whether no space is added before a text that begins with one.
    """

    def __init__(
        self,
        model: str,
        special_ids: Mapping[str, int],
        extra_ids: int = 0,
        add_prefix_space: bool | None = None,
        *,
        contents: bytes | None = None,
        keeps_first_space: bool = False,
    ):
        overrides = None
        if add_prefix_space is not None:
            overrides = sentencepiece_model_pb2.NormalizerSpec(add_dummy_prefix=add_prefix_space)
        self._special_ids = dict(special_ids)
        self._contents, self._keeps_first_space = contents, keeps_first_space
        super().__init__(model, extra_ids=extra_ids, normalizer_spec_overrides=overrides)

    @property
    def bos_id(self) -> int | None:
        """The id of the token before a text, or None."""
        return self._special_ids.get("bos")

    @property
    def eos_id(self) -> int | None:
        """The id of the token after a text, or None."""
        return self._special_ids.get("eos")

    @property
    def pad_id(self) -> int | None:
        """The id of padding, or None. Llama's tokenizers have no padding."""
        return self._special_ids.get("pad")

    @property
    def unk_id(self) -> int | None:
        """The id of pieces that are not in the model, or None."""
        return self._special_ids.get("unk")

    def _model_context(self) -> SentencePieceModel:
        return super()._model_context() if self._contents is None else _load(self._contents, self.extra_ids)

    def _encode(self, s: str) -> list[int]:
        return super()._encode(s.removeprefix(" ") if self._keeps_first_space else s)

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        import tensorflow as tf

        return super()._encode_tf(tf.strings.regex_replace(s, "^ ", "") if self._keeps_first_space else s)

    def decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        """Decodes ids `[length]`, or several texts `[texts, length]`, each up to its first EOS."""
        import tensorflow as tf

        if self.unk_id is not None:
            ids = tf.where(ids < self.vocab_size, ids, self.unk_id)
        if self.eos_id is not None:
            # EOS itself is decoded as the empty text.
            after = tf.cumsum(tf.cast(tf.equal(ids, self.eos_id), tf.int32), axis=-1) > 0
            ids = tf.where(after, self.eos_id, ids)
        return self._decode_tf(ids)


def sentencepiece_pieces(path: str, contents: bytes | None) -> sentencepiece.SentencePieceProcessor:
    """Returns the pieces of a model, without sentinels.

    Args:
      path: path of the model.
      contents: the model, if the file at its path has another format.

    Raises:
      RuntimeError: the file is not a SentencePiece model.
      google.protobuf.message.DecodeError: the file is not a SentencePiece model.
    """
    return SentencePieceVocabulary(path).tokenizer if contents is None else _load(contents, 0).tokenizer


@functools.lru_cache(maxsize=4)
def _load(contents: bytes, extra_ids: int) -> SentencePieceModel:
    return with_sentinels(contents, extra_ids)
