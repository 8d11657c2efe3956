"""The base classes of vocabularies, with the interface of SeqIO's. Only `encode_tf` and `decode_tf` import TensorFlow.

`data.seqio_feed.seqio_interface` registers them as SeqIO's, so that tasks can use them.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t5x_like import paths

if TYPE_CHECKING:
    import tensorflow as tf

_BYTES = 256
# Padding, EOS and the unknown token of ByT5 come before the bytes.
_BYTE_EOS, _BYTE_UNKNOWN, _FIRST_BYTE = 1, 2, 3
# SentencePiece cannot load two models at the same time.
_LOADING = threading.Lock()


class Vocabulary:
    """Text to token ids, and token ids to text.

    A subclass defines `eos_id`, `unk_id`, `_base_vocab_size`, `_encode`, `_decode`, `_encode_tf` and `_decode_tf`.

    Args:
      extra_ids: number of sentinels after the other ids.
    """

    def __init__(self, extra_ids: int = 0):
        self._extra_ids = extra_ids or 0

    @property
    def bos_id(self) -> int | None:
        """The id of the token before a text, or None."""
        raise NotImplementedError

    @property
    def eos_id(self) -> int | None:
        """The id of the token after a text, or None."""
        raise NotImplementedError

    @property
    def pad_id(self) -> int | None:
        """The id of padding, or None."""
        return 0

    @property
    def unk_id(self) -> int | None:
        """The id of unknown pieces, or None."""
        raise NotImplementedError

    @property
    def extra_ids(self) -> int:
        """The number of sentinels."""
        return self._extra_ids

    @property
    def sentinel_ids(self) -> range:
        """The ids of <extra_id_0>, <extra_id_1>, …: as in T5, the last id is the first of them."""
        return range(self.vocab_size - 1, self.vocab_size - 1 - self.extra_ids, -1)

    @property
    def vocab_size(self) -> int:
        """The number of ids, sentinels included."""
        return self._base_vocab_size + self.extra_ids

    @property
    def _base_vocab_size(self) -> int:
        """The number of ids without sentinels."""
        raise NotImplementedError

    def encode(self, s: str) -> Sequence[int]:
        """Encodes a text, without special tokens."""
        return self._encode(s)

    def decode(self, ids: Iterable[int]) -> str:
        """Decodes ids up to and with the first EOS. Ids outside the vocabulary are unknown."""
        # The elements of an eager tensor are tensors, which are slow to create one by one.
        kept = list(ids.numpy().tolist() if hasattr(ids, "numpy") else ids)
        if self.unk_id is not None:
            size = self._base_vocab_size
            kept = [self.unk_id if index >= size else index for index in kept]
        if self.eos_id is not None and self.eos_id in kept:
            kept = kept[: kept.index(self.eos_id) + 1]
        return self._decode(kept)

    def encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        """Encodes a text, without special tokens."""
        return self._encode_tf(s)

    def decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        """Decodes ids `[length]`, or several texts `[texts, length]`, each up to and with its first EOS."""
        import tensorflow as tf

        if ids.shape == (0,):
            return tf.constant("")
        if self.unk_id is not None:
            ids = tf.where(ids < self._base_vocab_size, ids, self.unk_id)
        if self.eos_id is not None:
            after = tf.cumsum(tf.cast(tf.equal(ids, self.eos_id), tf.int32), exclusive=True, axis=-1) > 0
            ids = tf.where(after, self.pad_id, ids)
        return self._decode_tf(ids)

    def _encode(self, s: str) -> Sequence[int]:
        raise NotImplementedError

    def _decode(self, ids: Sequence[int]) -> str:
        raise NotImplementedError

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError


class PassThroughVocabulary(Vocabulary):
    """The vocabulary of integers that are not token ids: it changes nothing.

    Args:
      size: number of ids.
      eos_id: the id of EOS, or None.
    """

    def __init__(self, size: int, eos_id: int | None = None):
        self._size, self._eos_id = size, eos_id
        super().__init__()

    @property
    def eos_id(self) -> int | None:
        """The id of EOS, or None."""
        return self._eos_id

    @property
    def unk_id(self) -> None:
        """None: all ids are known."""

    @property
    def _base_vocab_size(self) -> int:
        return self._size

    def _encode(self, s: Any) -> Any:
        return s

    _decode = _encode_tf = _decode_tf = _encode

    def __eq__(self, other) -> bool:
        same = isinstance(other, PassThroughVocabulary) or type(other).__name__ == type(self).__name__
        return same and (self._size, self._eos_id) == (other._size, other._eos_id)

    __hash__ = None

    def __str__(self) -> str:
        return f"PassThroughVocabulary(size={self._size}, eos_id={self._eos_id})"


class ByteVocabulary(Vocabulary):
    """The UTF-8 bytes of ByT5 (Xue et al. 2022): padding 0, EOS 1, unknown 2, the bytes, and sentinels."""

    @property
    def bos_id(self) -> None:
        """None: the vocabulary has no BOS."""

    @property
    def eos_id(self) -> int:
        """The id of EOS."""
        return _BYTE_EOS

    @property
    def unk_id(self) -> int:
        """The id of unknown tokens. No text is encoded as it."""
        return _BYTE_UNKNOWN

    @property
    def _base_vocab_size(self) -> int:
        return _FIRST_BYTE + _BYTES

    def _encode(self, s: str | bytes) -> list[int]:
        return [_FIRST_BYTE + byte for byte in (s.encode() if isinstance(s, str) else s)]

    def _decode(self, ids: Iterable[int]) -> str:
        text = bytes(int(index) - _FIRST_BYTE for index in ids if 0 <= index - _FIRST_BYTE < _BYTES)
        return text.decode("utf-8", errors="ignore")

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        import tensorflow as tf

        return tf.cast(tf.io.decode_raw(s, tf.uint8), tf.int32) + _FIRST_BYTE

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        import tensorflow as tf

        letters = tf.constant([bytes([byte]) for byte in range(_BYTES)])
        indices = ids - _FIRST_BYTE
        kept = tf.ragged.boolean_mask(indices, (indices >= 0) & (indices < _BYTES))
        text = tf.strings.reduce_join(tf.gather(letters, kept), axis=-1)
        return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="ignore")

    def __eq__(self, other) -> bool:
        # Also seqio's class of this name.
        return type(other).__name__ == type(self).__name__ and self.extra_ids == other.extra_ids

    __hash__ = None


class SentencePieceModel(NamedTuple):
    """A loaded model.

    Attributes:
      tokenizer: encodes and decodes.
      sp_model: the serialized model, with its sentinels.
    """

    tokenizer: sentencepiece.SentencePieceProcessor
    sp_model: bytes


class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece model (Kudo and Richardson 2018) with sentinels `▁<extra_id_…>` after its pieces.

    Args:
      sentencepiece_model_file: path of the model, local or in a bucket.
      extra_ids: number of sentinels. As in T5, <extra_id_0> is the last id.
      normalizer_spec_overrides: settings of the normalizer that replace the model's.
    """

    def __init__(
        self,
        sentencepiece_model_file: str,
        extra_ids: int = 0,
        normalizer_spec_overrides: sentencepiece_model_pb2.NormalizerSpec | None = None,
    ):
        self._sentencepiece_model_file = sentencepiece_model_file
        self._normalizer_spec_overrides = normalizer_spec_overrides
        super().__init__(extra_ids=extra_ids)

    @property
    def sentencepiece_model_file(self) -> str:
        """The path of the model."""
        return self._sentencepiece_model_file

    def load_model(self) -> None:
        """Loads the model. Otherwise its first use loads it."""
        self._model_context()

    def _model_context(self) -> SentencePieceModel:
        overrides = self._normalizer_spec_overrides
        with _LOADING:
            return load_sentencepiece(
                self.sentencepiece_model_file,
                self._appended_ids,
                None if overrides is None else overrides.SerializeToString(deterministic=True),
            )

    @property
    def _appended_ids(self) -> int:
        """The number of sentinels that the model lacks."""
        return self.extra_ids

    @property
    def tokenizer(self) -> sentencepiece.SentencePieceProcessor:
        """The tokenizer of the SentencePiece library."""
        return self._model_context().tokenizer

    @property
    def sp_model(self) -> bytes:
        """The serialized model."""
        return self._model_context().sp_model

    @property
    def tf_tokenizer(self) -> Any:
        """A tokenizer in TensorFlow operations."""
        import tensorflow_text

        return tensorflow_text.SentencepieceTokenizer(model=self.sp_model)

    @property
    def bos_id(self) -> int | None:
        """The id of the token before a text; -1 if the model has none."""
        return self.tokenizer.bos_id()

    @property
    def eos_id(self) -> int | None:
        """The id of the token after a text; -1 if the model has none."""
        return self.tokenizer.eos_id()

    @property
    def unk_id(self) -> int | None:
        """The id of unknown pieces."""
        return self.tokenizer.unk_id()

    @property
    def vocab_size(self) -> int:
        """The number of ids, sentinels included."""
        return self._base_vocab_size

    @property
    def _base_vocab_size(self) -> int:
        return self.tokenizer.GetPieceSize()

    def _encode(self, s: str) -> list[int]:
        return self.tokenizer.EncodeAsIds(s)

    def _decode(self, ids: Iterable[int]) -> str:
        tokenizer = self.tokenizer
        size, unknown = tokenizer.GetPieceSize(), tokenizer.unk_id()
        return tokenizer.DecodeIds([unknown if index >= size else int(index) for index in ids])

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        return self.tf_tokenizer.tokenize(s)

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        return self.tf_tokenizer.detokenize(ids)

    def __getstate__(self) -> dict[str, Any]:
        # SeqIO compares this state with the state of its own vocabularies.
        return {**self.__dict__, "_reverse_extra_ids": True, "_use_fast_tokenizer": False}

    def __eq__(self, other) -> bool:
        # A vocabulary of SeqIO's own class has the same attributes.
        return hasattr(other, "sentencepiece_model_file") and self.__getstate__() == other.__getstate__()

    __hash__ = None

    def __str__(self) -> str:
        digest = hashlib.md5(self.sp_model, usedforsecurity=False).hexdigest()
        return (
            f"SentencePieceVocabulary(file={self.sentencepiece_model_file}, extra_ids={self.extra_ids}, md5={digest})"
        )


@functools.lru_cache(maxsize=16)
def load_sentencepiece(path: str, extra_ids: int, overrides: bytes | None) -> SentencePieceModel:
    """Loads a model, and appends its sentinels.

    Args:
      path: path of the model.
      extra_ids: number of sentinels.
      overrides: a serialized `NormalizerSpec` that replaces settings of the model, or None.

    Raises:
      OSError: the file cannot be read.
      RuntimeError: the file is not a SentencePiece model.
      google.protobuf.message.DecodeError: the file is not a SentencePiece model.
    """
    return with_sentinels(paths.read_bytes(path), extra_ids, overrides)


def with_sentinels(contents: bytes, extra_ids: int, overrides: bytes | None = None) -> SentencePieceModel:
    """Returns a serialized model with sentinels after its pieces; see `load_sentencepiece`."""
    model = sentencepiece_model_pb2.ModelProto.FromString(contents)
    for number in reversed(range(extra_ids)):
        kind = sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED
        model.pieces.add(piece=f"▁<extra_id_{number}>", score=0.0, type=kind)
    if overrides is not None:
        changed = sentencepiece_model_pb2.NormalizerSpec.FromString(overrides)
        model.normalizer_spec.MergeFrom(changed)
        model.denormalizer_spec.MergeFrom(changed)
    serialized = model.SerializeToString()
    tokenizer = sentencepiece.SentencePieceProcessor()
    tokenizer.LoadFromSerializedProto(serialized)
    return SentencePieceModel(tokenizer, serialized)
