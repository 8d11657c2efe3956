"""Metrics of classification and regression, in percent, as GLUE and SuperGLUE publish them.

Examples whose target is unknown (below 0) are not counted. If all are, as in a test split, there are no metrics. The
names follow the t5 package.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from t5x_like import packages

Metrics = dict[str, float]

_require = functools.partial(packages.require, purpose="a metric of the task", extra="eval")


def _known(targets: Sequence[float], predictions: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    targets, predictions = np.asarray(targets), np.asarray(predictions)
    known = targets >= 0
    return targets[known], predictions[known]


def accuracy(targets: Sequence[int], predictions: Sequence[int]) -> Metrics:
    """Computes the accuracy.

    Args:
      targets: label indices, `[examples]`.
      predictions: label indices, `[examples]`; any other number is wrong.

    Returns:
      `accuracy`.
    """
    targets, predictions = _known(targets, predictions)
    if not len(targets):
        return {}
    return {"accuracy": 100 * float(_require("sklearn.metrics").accuracy_score(targets, predictions))}


def f1(targets: Sequence[int], predictions: Sequence[int]) -> Metrics:
    """Computes the F1 of label 1 of two labels.

    Args:
      targets: label indices, `[examples]`.
      predictions: label indices, `[examples]`; any number but 0 and 1 counts as the wrong label.

    Returns:
      `f1`.
    """
    targets, predictions = _known(targets, predictions)
    if not len(targets):
        return {}
    predictions = np.where((predictions != 0) & (predictions != 1), 1 - targets, predictions)
    return {"f1": 100 * float(_require("sklearn.metrics").f1_score(targets, predictions, zero_division=0))}


def matthews_corrcoef(targets: Sequence[int], predictions: Sequence[int]) -> Metrics:
    """Computes Matthews' correlation coefficient, from -100 to 100; 0 for constant predictions."""
    targets, predictions = _known(targets, predictions)
    if not len(targets):
        return {}
    return {"matthews_corrcoef": 100 * float(_require("sklearn.metrics").matthews_corrcoef(targets, predictions))}


def pearson_corrcoef(targets: Sequence[float], predictions: Sequence[float]) -> Metrics:
    """Computes Pearson's correlation coefficient, from -100 to 100; NaN for constant predictions."""
    targets, predictions = _known(targets, predictions)
    if len(targets) < 2:
        return {}
    return {"pearson_corrcoef": 100 * float(_require("scipy.stats").pearsonr(targets, predictions)[0])}


def spearman_corrcoef(targets: Sequence[float], predictions: Sequence[float]) -> Metrics:
    """Computes Spearman's rank correlation coefficient, from -100 to 100; NaN for constant predictions."""
    targets, predictions = _known(targets, predictions)
    if len(targets) < 2:
        return {}
    return {"spearman_corrcoef": 100 * float(_require("scipy.stats").spearmanr(targets, predictions)[0])}


def per_score(names: Sequence[str], metric: Callable[[Sequence[float], Sequence[float]], Metrics]) -> Callable:
    """Returns a metric of each of several scores, as `<metric>_<name>`, and their mean, as `<metric>`.

    Args:
      names: the names of the scores.
      metric: a metric of one score. It is named after the function.
    """
    key = metric.__name__

    def of_scores(targets, predictions):
        columns = [np.asarray(values).reshape(-1, len(names)).T for values in (targets, predictions)]
        values = {name: metric(*column).get(key) for name, *column in zip(names, *columns, strict=True)}
        known = {f"{key}_{name}": value for name, value in values.items() if value is not None}
        return {key: float(np.mean([*known.values()])), **known} if known else {}

    return of_scores


def mean_multiclass_f1(num_classes: int) -> Callable[[Sequence[int], Sequence[int]], Metrics]:
    """Returns the metric `mean_<num_classes>class_f1`: the F1 of each label, averaged without weights."""

    def mean_f1(targets, predictions):
        targets, predictions = _known(targets, predictions)
        if not len(targets):
            return {}
        options = {"labels": range(num_classes), "average": "macro", "zero_division": 0}
        value = _require("sklearn.metrics").f1_score(targets, predictions, **options)
        return {f"mean_{num_classes}class_f1": 100 * float(value)}

    return mean_f1
