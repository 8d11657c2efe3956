"""The vocabulary of the text of a task."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from t5x_like.data.features import FeatureSpec
from t5x_like.vocabularies import vocabulary_digest, vocabulary_kind
from t5x_like.vocabularies.vocabulary_digest import TextVocabulary
from t5x_like.vocabularies.vocabulary_kind import VocabularyKind

if TYPE_CHECKING:
    import seqio


def text_feature(spec: FeatureSpec) -> str | None:
    """Returns the first task feature that is a sequence of token ids; its vocabulary encodes the text."""
    return next(filter(spec.is_token_ids, spec.task_features), None)


def of_text(vocabularies: "Mapping[str, seqio.Vocabulary]", spec: FeatureSpec) -> TextVocabulary:
    """Returns the vocabulary of the text of a task, with unknown fields if it has no text.

    Args:
      vocabularies: task feature -> vocabulary.
      spec: the features that the objective reads.
    """
    vocabulary = vocabularies.get(text_feature(spec))
    return (
        TextVocabulary()
        if vocabulary is None
        else TextVocabulary(vocabulary_digest.of_vocabulary(vocabulary), vocabulary_digest.location(vocabulary))
    )


def kind_of_text(vocabularies: Mapping[str, Any], spec: FeatureSpec) -> VocabularyKind | None:
    """Returns the kind of the vocabulary of the text of a task, or None if the text has no single vocabulary.

    Args:
      vocabularies: task feature -> vocabulary.
      spec: the features that the objective reads.
    """
    found = [vocabularies[name] for name in spec.task_features if spec.is_token_ids(name) and name in vocabularies]
    if not found or any(vocabulary != found[0] for vocabulary in found):
        return None
    return vocabulary_kind.of_vocabulary(found[0])
