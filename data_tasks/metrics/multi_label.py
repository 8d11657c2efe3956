"""Metrics of sets of labels, in percent: strict accuracy and the loose F1 of Ling and Weld (2012, section 4.2).

Examples whose labels are unknown (below 0) are not counted. A label is predicted if its probability is above 0.5.
"""

from collections.abc import Sequence

import numpy as np

from data_tasks.metrics.classification import Metrics

_THRESHOLD = 0.5


def set_accuracy(targets: Sequence[Sequence[float]], predictions: Sequence[Sequence[float]]) -> Metrics:
    """Computes the share of examples all of whose labels are right, as `set_accuracy`.

    Args:
      targets: 1 for the labels of an example, `[examples, labels]`.
      predictions: probabilities, `[examples, labels]`.
    """
    true, predicted = _sets(targets, predictions)
    return {"set_accuracy": 100 * float((true == predicted).all(axis=1).mean())} if len(true) else {}


def loose_f1(targets: Sequence[Sequence[float]], predictions: Sequence[Sequence[float]]) -> Metrics:
    """Computes the F1 of mean precision and mean recall of the examples, and of all labels together.

    Args:
      targets: 1 for the labels of an example, `[examples, labels]`.
      predictions: probabilities, `[examples, labels]`.

    Returns:
      `loose_macro_f1` and `loose_micro_f1`.
    """
    true, predicted = _sets(targets, predictions)
    if not len(true):
        return {}
    common, sizes, wanted = ((x.sum(axis=1)) for x in (true & predicted, predicted, true))
    macro = _f1(*(np.mean(common / np.maximum(each, 1)) for each in (sizes, wanted)))
    micro = _f1(*(common.sum() / max(each.sum(), 1) for each in (sizes, wanted)))
    return {"loose_macro_f1": 100 * macro, "loose_micro_f1": 100 * micro}


def _f1(precision: float, recall: float) -> float:
    return float(2 * precision * recall / (precision + recall)) if precision + recall else 0.0


def _sets(targets, predictions) -> tuple[np.ndarray, np.ndarray]:
    true, predicted = np.asarray(targets), np.asarray(predictions)
    known = (true >= 0).all(axis=1) if true.ndim == 2 else np.zeros(0, bool)
    return true[known] > 0, predicted[known] > _THRESHOLD
