"""Metrics of ReCoRD (Zhang et al. 2018): exact match and F1 of the predicted entity, over the answers of a question."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from data_tasks.metrics.grouped import Grouped, first_of_each_group
from data_tasks.metrics.question_answering import squad


def record(targets: Grouped, predictions: Grouped) -> dict[str, float]:
    """Computes the metrics of generated answers. Repeated questions count once, questions without answers do not.

    Args:
      targets: `value`, the answers of a question, and `group`, the question.
      predictions: `value`, the predicted answer.

    Returns:
      `em` and `f1` in percent.
    """

    def of_answered(answers: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
        kept = [(known, text) for known, text in zip(answers, predicted, strict=True) if known]
        return squad(*map(list, zip(*kept, strict=True))) if kept else {}

    return first_of_each_group(of_answered)(targets, predictions)


def record_of_entities(
    targets: Grouped, predictions: Sequence[Any], aux_values: Mapping[str, Sequence[Any]]
) -> dict[str, float]:
    """Computes the metrics of a classifier of pairs: the answer is the entity with the highest probability of label 1.

    Args:
      targets: `entity`, `answers` and `group`, the question, of each pair.
      predictions: not read.
      aux_values: `probabilities`, `[pairs, 2]`.

    Returns:
      `em` and `f1` in percent.
    """
    best: dict[Hashable, tuple[float, Mapping[str, Any]]] = {}
    for target, probabilities in zip(targets, aux_values["probabilities"], strict=True):
        probability = float(probabilities[1])
        if target["group"] not in best or probability > best[target["group"]][0]:
            best[target["group"]] = (probability, target)
    chosen = [target for _, target in best.values()]
    return record(
        [{"value": target["answers"], "group": target["group"]} for target in chosen],
        [{"value": target["entity"]} for target in chosen],
    )
