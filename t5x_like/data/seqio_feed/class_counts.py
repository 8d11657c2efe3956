"""Counts the labels of a task's examples."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from t5x_like.data.seqio_feed.task_access import TaskAccess
from t5x_like.vocabularies import vocabulary_kind


def label_names(source: TaskAccess) -> dict[str, tuple[str, ...]]:
    """Returns task feature -> names of its labels in the order of their indices, for the features that are labels."""
    features = source.provider.output_features.items()
    names = {name: vocabulary_kind.label_names(each.vocabulary) for name, each in features if each.dtype.is_integer}
    return {name: labels for name, labels in names.items() if labels}


class ClassCounts:
    """Counts of labels over examples.

    Args:
      names: task feature -> names of its labels.

    Attributes:
      counts: task feature -> label -> number of occurrences. Unknown labels, -1, are not counted.
    """

    def __init__(self, names: Mapping[str, tuple[str, ...]]):
        self._names = names
        self.counts = {name: Counter(dict.fromkeys(labels, 0)) for name, labels in names.items()}

    def add(self, example: Mapping[str, np.ndarray]) -> None:
        """Counts the labels of an example."""
        for name, labels in self._names.items():
            indices = np.ravel(example[name]) if name in example else ()
            self.counts[name].update(labels[index] for index in indices if 0 <= index < len(labels))
