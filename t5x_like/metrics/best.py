"""Compares evaluations by one metric: which value is better, and when a run has stopped improving."""

import dataclasses
import math
from collections.abc import Iterable, Mapping

from t5x_like.errors import UserError

# Parts of the names of metrics whose smaller values are better. Larger values of all other metrics are better.
SMALLER_IS_BETTER = ("loss", "perplexity", "error", "distance", "entropy")


def larger_is_better(name: str) -> bool:
    """Returns whether larger values of a metric are better, by the last component of its name.

    Args:
      name: Such as `loss`, `glue_sst2_classification/accuracy` or `matched/loss`.
    """
    last = name.rpartition("/")[2].lower()
    return not any(part in last for part in SMALLER_IS_BETTER)


def flatten(results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Joins the metrics of several evaluations.

    Args:
      results: Evaluation -> metric -> value.

    Returns:
      `metric` -> value for one evaluation, `evaluation/metric` -> value for several. The metrics of a task,
      `task/metric`, keep their names in the evaluation of that name, and replace metrics of the objective with the same
      name.
    """
    if len(results) == 1:
        return dict(next(iter(results.values())))
    return {
        metric if metric.startswith(f"{name}/") else f"{name}/{metric}": value
        for name, values in results.items()
        for metric, value in values.items()
    }


def find(values: Mapping[str, float], name: str) -> float | None:
    """Returns the value of a metric, or None if there is none.

    Args:
      values: The result of `flatten`.
      name: A name in `values`; one without its evaluation, which means the first evaluation that has it; or the last
        component alone, such as `f1`, which means a metric of the objective, or else the metric `task/f1` of the task.
    """
    if name in values:
        return values[name]
    if "/" in name:
        return next((value for key, value in values.items() if key.partition("/")[2] == name), None)
    found = [key for key in values if key.rpartition("/")[2] == name]
    # Names of a task's metrics have one component more than names of the objective's metrics.
    return values[min(found, key=lambda key: key.count("/"))] if found else None


@dataclasses.dataclass(frozen=True)
class BestMetric:
    """The metric that decides which evaluation is the best.

    Attributes:
      name: See `find`.
      is_larger: Whether larger values are better. None derives it from the name; see `larger_is_better`.
    """

    name: str = "loss"
    is_larger: bool | None = None

    @property
    def larger(self) -> bool:
        """Whether larger values are better."""
        return larger_is_better(self.name) if self.is_larger is None else self.is_larger

    def value(self, values: Mapping[str, float]) -> float:
        """Returns the value of the metric.

        Args:
          values: The result of `flatten`.

        Raises:
          UserError: No evaluation has computed the metric.
        """
        value = find(values, self.name)
        if value is None:
            raise UserError(
                f"BEST_METRIC={self.name!r}: no evaluation has this metric. Give one of {', '.join(sorted(values))}."
            )
        return value

    def best(self, values: Iterable[tuple[int, float]]) -> list[int]:
        """Sorts steps by the value of the metric, the best first. Of equal values, the earlier is better.

        Args:
          values: (step, value) pairs. Steps whose value is not finite are omitted.
        """
        sign = -1 if self.larger else 1
        return [step for _, step in sorted((sign * value, step) for step, value in values if math.isfinite(value))]
