"""Metrics over groups of examples, such as the answers of a question.

Targets are dictionaries with a `value` and its `group`, predictions dictionaries with a `value`; see
`postprocessors.grouped`.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from data_tasks.metrics import classification
from t5x_like.vocabularies.labels import UNKNOWN

Grouped = Sequence[Mapping[str, Any]]


def first_of_each_group(metric: Callable) -> Callable[[Grouped, Grouped], dict[str, float]]:
    """Returns a metric over the first example of each group, for data that repeats an example per answer (ReCoRD)."""

    def deduplicated(targets, predictions):
        first: dict[Hashable, tuple[Any, Any]] = {}
        for target, prediction in zip(targets, predictions, strict=True):
            first.setdefault(target["group"], (target["value"], prediction["value"]))
        return metric(*map(list, zip(*first.values(), strict=True)))

    return deduplicated


def multirc_f1_over_all_answers(targets: Grouped, predictions: Grouped) -> dict[str, float]:
    """Computes MultiRC's F1a: the F1 over the answers of all questions.

    Args:
      targets: label indices, 1 for a correct answer.
      predictions: label indices; any number but 0 and 1 counts as the wrong label.

    Returns:
      `f1`.
    """
    return classification.f1([target["value"] for target in targets], [each["value"] for each in predictions])


def exact_match_of_groups(targets: Grouped, predictions: Grouped) -> dict[str, float]:
    """Computes MultiRC's exact match: the percentage of groups with correct predictions only.

    Args:
      targets: label indices. Groups with an unknown one are not counted.
      predictions: label indices.

    Returns:
      `exact_match`.
    """
    correct: dict[Hashable, bool] = {}
    unknown = set()
    for target, prediction in zip(targets, predictions, strict=True):
        group = target["group"]
        correct[group] = correct.get(group, True) and target["value"] == prediction["value"]
        if target["value"] == UNKNOWN:
            unknown.add(group)
    counted = [value for group, value in correct.items() if group not in unknown]
    return {"exact_match": 100 * float(np.mean(counted))} if counted else {}
