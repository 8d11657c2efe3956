"""A vocabulary whose path is a task argument, looked up at each use: a Hugging Face directory or a file.

A task can therefore be registered before its vocabulary is known, and used with any one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf import message

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.vocabularies import word_counts
from t5x_like.vocabularies.base import SentencePieceVocabulary, Vocabulary
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.sentinels import SentinelVocabulary
from t5x_like.vocabularies.shipped import SENTINELS
from t5x_like.vocabularies.tokenizer_files import VocabularyNotSet
from t5x_like.vocabularies.tokenizer_folder import has_tokenizer
from t5x_like.vocabularies.word_vocabularies import WordSequenceVocabulary

if TYPE_CHECKING:
    import tensorflow as tf

SENTENCEPIECE_SUFFIX = ".model"


class LateVocabulary(Vocabulary):
    """The vocabulary at a path that may change after a task was registered.

    All other attributes belong to the vocabulary at the path, such as `cls_id`, `sep_id`, `mask_id`, `pieces`,
    `word_starts` and `tokenizer`.

    Args:
      path: returns a Hugging Face directory (see `from_folder`), a SentencePiece model `*.model`, or words and their
        counts (see `WordSequenceVocabulary`); None if the user has not set it.
      extra_ids: number of sentinels after the pieces of a `.model` file. A directory states its own number.
      read_other: returns the vocabulary at a path without the tokenizer files of a Hugging Face directory, for tasks
        that also read another format.
    """

    def __init__(
        self,
        path: Callable[[], str | None],
        extra_ids: int = SENTINELS,
        read_other: Callable[[str], Vocabulary] | None = None,
    ):
        self._path = path
        self._sentinels = extra_ids
        self._read_other = read_other
        super().__init__(extra_ids=0)

    @property
    def path(self) -> str | None:
        """The current path."""
        return self._path()

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary at the current path. Each path is read once.

        Raises:
          UserError: the path is not set, or has no vocabulary.
        """
        path = self.path
        if not path:
            raise VocabularyNotSet(
                "VOCABULARY_PATH is not set: the task has no vocabulary of its own. Set it (or "
                "TASK_ARGUMENTS={'vocabulary_path': …}) to a Hugging Face directory or a SentencePiece .model file."
            )
        if self._read_other is not None and not has_tokenizer(str(path)):
            return self._read_other(str(path))
        return _read(str(path), self._sentinels)

    @property
    def bos_id(self) -> int | None:
        """The id of the token before a text, or None."""
        return self.vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        """The id of the token after a text, or None."""
        return self.vocabulary.eos_id

    @property
    def pad_id(self) -> int | None:
        """The id of padding, or None."""
        return self.vocabulary.pad_id

    @property
    def unk_id(self) -> int | None:
        """The id of unknown pieces, or None."""
        return self.vocabulary.unk_id

    @property
    def extra_ids(self) -> int:
        """The number of sentinels."""
        return self.vocabulary.extra_ids

    @property
    def sentinel_ids(self) -> range:
        """The ids of <extra_id_0>, <extra_id_1>, …."""
        return self.vocabulary.sentinel_ids

    @property
    def _base_vocab_size(self) -> int:
        return self.vocabulary.vocab_size - self.vocabulary.extra_ids

    def encode(self, s: str) -> Sequence[int]:
        """Encodes a text, without special tokens."""
        return self.vocabulary.encode(s)

    def decode(self, ids: Iterable[int]) -> str:
        """Decodes ids up to the first EOS."""
        return self.vocabulary.decode(ids)

    def encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        """Encodes a text, without special tokens."""
        return self.vocabulary.encode_tf(s)

    def decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        """Decodes ids up to the first EOS."""
        return self.vocabulary.decode_tf(ids)

    _encode, _decode, _encode_tf, _decode_tf = encode, decode, encode_tf, decode_tf

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying and pickling look up methods that this class does not have
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.vocabulary, name)

    def __eq__(self, other) -> bool:
        if isinstance(other, LateVocabulary):
            if self._read_other == other._read_other:
                return (self.path, self._sentinels) == (other.path, other._sentinels)
            other = other.vocabulary if other.path else None
        return bool(self.path) and self.vocabulary == other

    __hash__ = None

    def __str__(self) -> str:
        return f"LateVocabulary({self.path})"


class SeparatedVocabulary(LateVocabulary):
    """A `LateVocabulary` whose EOS is [SEP] if the vocabulary at the path has no EOS, as BERT's has none.

    A decoded text ends before this [SEP].
    """

    @property
    def eos_id(self) -> int | None:
        """The id of the token after a text, or None."""
        return self._separator if super().eos_id is None else super().eos_id

    @property
    def _separator(self) -> int | None:
        return getattr(self.vocabulary, "sep_id", None)

    def decode(self, ids: Iterable[int]) -> str:
        """Decodes ids up to the first EOS."""
        if super().eos_id is None and self._separator is not None:
            ids = itertools.takewhile(lambda index: index != self._separator, map(int, ids))
        return super().decode(ids)

    def decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        """Decodes ids up to the first EOS."""
        if super().eos_id is None and self._separator is not None:
            import tensorflow as tf

            before = tf.cumsum(tf.cast(tf.equal(ids, self._separator), tf.int32), axis=-1) == 0
            ids = tf.ragged.boolean_mask(ids, before)
        return super().decode_tf(ids)

    _decode, _decode_tf = decode, decode_tf


@functools.lru_cache(maxsize=8)
def _read(path: str, extra_ids: int) -> Vocabulary:
    if path.endswith(SENTENCEPIECE_SUFFIX):
        return sentencepiece_model(path, extra_ids)
    if (words := word_counts.find(path)) is not None:
        return WordSequenceVocabulary(words)
    if not paths.listdir(path):
        raise UserError(
            f"VOCABULARY_PATH={path!r}: not a directory with files. Give a Hugging Face directory, or a SentencePiece "
            "model whose name ends in .model."
        )
    return from_folder(path)


@functools.lru_cache(maxsize=8)
def sentencepiece_or_words(path: str) -> Vocabulary:
    """Returns the vocabulary of words and their counts, or of a SentencePiece model, for tasks that read both.

    Each path is read once.

    Args:
      path: see `word_counts.find` and `sentencepiece_model`.

    Raises:
      UserError: see `sentencepiece_model`.
    """
    return sentencepiece_model(path) if word_counts.find(path) is None else _read(path, extra_ids=0)


@functools.lru_cache(maxsize=8)
def sentencepiece_model(path: str, extra_ids: int = SENTINELS) -> SentencePieceVocabulary:
    """Returns the vocabulary of a SentencePiece model. Each path is read once.

    Args:
      path: a file, or a directory with one `*.model`.
      extra_ids: number of sentinels after the pieces.

    Raises:
      UserError: the model is not found.
    """
    models = [name for name in paths.listdir(path) if name.endswith(SENTENCEPIECE_SUFFIX)]
    path = paths.join(path, models[0]) if len(models) == 1 else path
    if not paths.is_file(path):
        raise UserError(f"VOCABULARY_PATH={path!r}: file not found. Give the path of a SentencePiece model.")
    vocabulary = SentinelVocabulary(path, extra_ids=extra_ids)
    try:
        vocabulary.load_model()
    except (RuntimeError, message.DecodeError) as error:
        raise UserError(
            f"VOCABULARY_PATH={path!r}: not a SentencePiece model ({error}). Give the path of a SentencePiece model."
        ) from error
    return vocabulary
