"""Vocabularies: the shipped SentencePiece model, bytes, and SentencePiece models with a late-bound path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from google.protobuf import message

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.vocabularies.base import (
    ByteVocabulary,
    PassThroughVocabulary,
    SentencePieceModel,
    SentencePieceVocabulary,
)
from t5x_like.vocabularies.sentinels import SentinelVocabulary

SENTINELS = 100
"""Number of extra ids at the end of a vocabulary. As in T5, the first sentinel of an example is the last id."""

PYTHON_DOCS_MODEL = Path(__file__).with_name("python_docs.model")

PASS_THROUGH = PassThroughVocabulary(size=0)
"""The vocabulary of integer features that are not token ids, such as positions. With size 0, no model embeds them."""


class LateSentencePieceVocabulary(SentinelVocabulary):
    """A SentencePiece vocabulary that looks up the path of its model at each use.

    A task can therefore be registered before the path of its vocabulary is known.

    Args:
      path: returns the path of the model, or of a Hugging Face directory with one.
      extra_ids: number of sentinels after the pieces.
    """

    def __init__(self, path: Callable[[], str], extra_ids: int = SENTINELS):
        self._path = path
        super().__init__("", extra_ids=extra_ids)

    @property
    def _sentencepiece_model_file(self) -> str:
        path = self._path()
        models = [name for name in paths.listdir(path) if name.endswith(".model")]
        return paths.join(path, models[0]) if len(models) == 1 else path

    @_sentencepiece_model_file.setter
    def _sentencepiece_model_file(self, _: str) -> None:
        """Ignores the path that the base constructor sets."""

    def _model_context(self) -> SentencePieceModel:
        try:
            return super()._model_context()
        except (OSError, RuntimeError, message.DecodeError) as error:
            raise UserError(
                f"VOCABULARY_PATH={self._path()!r}: not a readable SentencePiece model ({error}). Give the "
                "path of one as VOCABULARY_PATH, or as vocabulary_path in TASK_ARGUMENTS."
            ) from error

    def __eq__(self, other) -> bool:
        other = getattr(other, "vocabulary", other)  # of a LateVocabulary
        return (
            isinstance(other, SentencePieceVocabulary)
            and self.sentencepiece_model_file == other.sentencepiece_model_file
            and self.extra_ids == other.extra_ids
        )

    __hash__ = None


class ShippedVocabulary(SentinelVocabulary):
    """A SentencePiece vocabulary that equals a `LateVocabulary` of the same model, so that a mixture may have both."""

    def __eq__(self, other) -> bool:
        return super().__eq__(getattr(other, "vocabulary", other))

    __hash__ = None


def python_docs() -> SentencePieceVocabulary:
    """Returns the vocabulary of the shipped model: 924 pieces and 100 sentinels."""
    return ShippedVocabulary(str(PYTHON_DOCS_MODEL), extra_ids=SENTINELS)


def byte_level() -> ByteVocabulary:
    """Returns the vocabulary of UTF-8 bytes (ByT5): 259 ids and 100 sentinels."""
    return ByteVocabulary(extra_ids=SENTINELS)
