"""Measures how much of the text of a task's first documents reaches its examples."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5x_like.data import task_arguments
from t5x_like.data.features import FeatureSpec
from t5x_like.data.seqio_feed import task_errors
from t5x_like.data.seqio_feed.task_access import TaskAccess

# Documents and bytes of text that are read, which take less than a second.
DOCUMENTS = 128
_TEXT_BYTES = 1 << 16
# Less than this fraction of the tokens is a problem. Tasks leave out the rest of a document and long sentences.
KEPT_FRACTION = 0.5
# Arguments with which tasks divide text.
_DIVIDING = ("one_sentence_a_line", "lines_per_document")


@dataclasses.dataclass(frozen=True)
class KeptText:
    """The tokens of the first documents of a task.

    Attributes:
      task: name of the task.
      documents: number of documents.
      tokens: number of their tokens.
      fraction: number of tokens in the examples over `tokens`, added over the features: more than 1 if features repeat
        the text.
    """

    task: str
    documents: int
    tokens: int
    fraction: float

    def describe(self) -> str:
        """Returns a line about the tokens."""
        return (
            f"{self.task}: {min(self.fraction, 1):.0%} of the {self.tokens:,} tokens of the first {self.documents:,} "
            "documents reach a row"
        )

    def problems(self) -> list[str]:
        """Returns what is wrong, with advice."""
        if self.fraction >= KEPT_FRACTION:
            return []
        known = [name for name in _DIVIDING if name in task_arguments.names(self.task)]
        arguments = f" (its arguments {' and '.join(known)})" if known else ""
        return [
            f"{self.task}: only {self.fraction:.0%} of the {self.tokens:,} tokens of the first {self.documents:,} "
            f"documents reach a row. Check how the task divides text{arguments}, and the lengths in "
            "TASK_FEATURE_LENGTHS."
        ]


def measure(source: TaskAccess, spec: FeatureSpec) -> list[KeptText]:
    """Measures the tasks whose source has one text per example, such as the documents of files.

    Args:
      source: task or mixture, lengths and split.
      spec: features that the objective reads.
    """
    if source.use_cached or source.continuous:
        return []
    with task_errors.explain_errors(source):
        measured = [_of_task(task, source, spec) for task in source.tasks if source.split in task.splits]
    return [kept for kept in measured if kept is not None]


def _of_task(task: seqio.Task, source: TaskAccess, spec: FeatureSpec) -> KeptText | None:
    features = {
        name: feature.vocabulary
        for name, feature in task.output_features.items()
        if name in spec.task_features and spec.is_token_ids(name) and feature.rank == 1 and _is_text(feature)
    }
    documents = _first_documents(task, source.split)
    if not features or not documents:
        return None
    (text,) = (name for name, value in documents[0].items() if isinstance(value, bytes))
    texts = [document[text].decode("utf-8", "replace") for document in documents]
    tokens = {name: sum(len(vocabulary.encode(text)) for text in texts) for name, vocabulary in features.items()}
    if not min(tokens.values()):
        return None
    ds = tf.data.Dataset.from_tensor_slices({name: [each[name] for each in documents] for name in documents[0]})
    ds = task.preprocess_precache(ds, seed=source.seed)
    ds = task.preprocess_postcache(ds, sequence_length=source.preprocessing_lengths, seed=source.seed)
    limits = {name: source.task_feature_lengths[spec.length_key(name)] for name in features}
    kept = dict.fromkeys(features, 0)
    # A preprocessor may repeat its examples without end.
    for example in ds.take(sum(tokens.values())).as_numpy_iterator():
        for name, vocabulary in features.items():
            kept[name] += min(int(np.sum(example[name] != vocabulary.pad_id)), limits[name])
        if sum(kept[name] / tokens[name] for name in features) >= 1:
            break
    fraction = sum(kept[name] / tokens[name] for name in features)
    return KeptText(task.name, len(documents), max(tokens.values()), fraction)


def _is_text(feature: seqio.Feature) -> bool:
    return feature.dtype.is_integer and not isinstance(feature.vocabulary, seqio.PassThroughVocabulary)


def _first_documents(task: seqio.Task, split: str) -> Sequence[Mapping[str, Any]]:
    """Returns the first examples of a source with one scalar text; empty if it has others."""
    ds = task.source.get_dataset(split=split, shuffle=False)
    specs = ds.element_spec
    if not isinstance(specs, dict) or any(getattr(spec, "shape", None) != () for spec in specs.values()):
        return []
    texts = [name for name, spec in specs.items() if spec.dtype == tf.string]
    if len(texts) != 1:
        return []
    found, size = [], 0
    for example in ds.take(DOCUMENTS).as_numpy_iterator():
        found.append(example)
        size += len(example[texts[0]])
        if size >= _TEXT_BYTES:
            break
    return found
