"""Vocabularies: the committed SentencePiece model, bytes, and a model whose path is given late."""

from collections.abc import Callable
from pathlib import Path

import seqio
import tensorflow as tf

from t5x_like.errors import UserError

SENTINELS = 100
"""Extra ids at the end of a vocabulary; the first sentinel of an example is the last id, as in T5."""

PYTHON_DOCS_MODEL = Path(__file__).with_name("python_docs.model")


class LateSentencePieceVocabulary(seqio.SentencePieceVocabulary):
    """A SentencePiece vocabulary whose model's path is asked for each time it is used.

    A task can then be registered before anyone has said where its vocabulary is.
    """

    def __init__(self, path: Callable[[], str], extra_ids: int = SENTINELS):
        self._path = path
        super().__init__("", extra_ids=extra_ids, use_fast_tokenizer=False)

    @property
    def _sentencepiece_model_file(self) -> str:
        return self._path()

    @_sentencepiece_model_file.setter
    def _sentencepiece_model_file(self, _: str) -> None:
        """The parent's constructor wants to remember a path."""

    def _model_context(self):
        self._model = None  # SeqIO keeps each file's model; this class must not keep one of another path
        try:
            return super()._model_context()
        except tf.errors.OpError as error:
            raise UserError(
                f"no SentencePiece model can be read at {self._path()!r}: give the path of one in task_arguments "
                f"{{'vocabulary_path': …}} ({error.message})"
            ) from error

    def __eq__(self, other) -> bool:
        return (
            isinstance(other, seqio.SentencePieceVocabulary)
            and self.sentencepiece_model_file == other.sentencepiece_model_file
            and self.extra_ids == other.extra_ids
        )

    __hash__ = None


def python_docs() -> seqio.SentencePieceVocabulary:
    """The committed model: 924 pieces and 100 sentinels."""
    return seqio.SentencePieceVocabulary(str(PYTHON_DOCS_MODEL), extra_ids=SENTINELS)


def byte_level() -> seqio.ByteVocabulary:
    """UTF-8 bytes (ByT5): 259 ids and 100 sentinels."""
    return seqio.ByteVocabulary(extra_ids=SENTINELS)
