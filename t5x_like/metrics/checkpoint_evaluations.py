"""The evaluations that are stored with checkpoints, which decide the best ones. Does not import Orbax."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import paths
from t5x_like.metrics.best import BestMetric, find

# Key of the evaluation in the item `about` of a checkpoint.
EVALUATION = "evaluation"
# File of the item `about`, as Orbax names it.
_ABOUT_FILE = "about/metadata"


@dataclasses.dataclass(frozen=True)
class Best:
    """The best checkpoint of a run.

    Attributes:
      step: Its step.
      metric: The name of the metric by which it is the best.
      value: The value of the metric.
    """

    step: int
    metric: str
    value: float

    def __str__(self) -> str:
        return f"{self.step} ({self.metric} {self.value:.4g})"


class CheckpointEvaluations:
    """The stored evaluations of the checkpoints in a directory.

    Args:
      directory: The directory with one subdirectory per step, a local path or URL.
      metric: The metric that decides which of the checkpoints to keep are the best.
    """

    def __init__(self, directory: str, metric: BestMetric = BestMetric()):  # noqa: B008 (frozen)
        self._directory, self._metric = directory, metric
        self._stored: dict[int, Mapping[str, Any] | None] = {}

    def add(self, step: int, metrics: Mapping[str, float] | None, *, required: bool) -> dict[str, Any]:
        """Adds the evaluation of a checkpoint that is about to be saved.

        Args:
          step: Its step.
          metrics: Metric -> value; None for no evaluation.
          required: Whether the evaluation must have the metric.

        Returns:
          What to store in the item `about`.

        Raises:
          UserError: `required`, and the metric is missing.
        """
        self._stored[step] = None
        if metrics is None:
            return {}
        if required:
            self._metric.value(metrics)
        self._stored[step] = {
            "metrics": {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()},
            "best_metric": self._metric.name,
            "best_is_larger": self._metric.larger,
        }
        return {EVALUATION: self._stored[step]}

    def get(self, step: int) -> dict[str, float] | None:
        """Returns the evaluation of checkpoint `step`, or None. Non-finite values are NaN."""
        stored = self._read(step)
        if stored is None:
            return None
        return {name: math.nan if value is None else value for name, value in stored["metrics"].items()}

    def best(self, steps: Sequence[int]) -> Best | None:
        """Returns the best of some checkpoints by the metric that the newest evaluation was stored with.

        Args:
          steps: Their steps in ascending order.

        Returns:
          The best checkpoint, or None if no evaluation has a finite value of this metric.
        """
        newest = next(filter(None, map(self._read, reversed(steps))), None)
        if newest is None:
            return None
        metric = BestMetric(newest["best_metric"], newest["best_is_larger"])
        ranked = self.rank(steps, metric)
        return Best(ranked[0], metric.name, find(self.get(ranked[0]), metric.name)) if ranked else None

    def rank(self, steps: Sequence[int], metric: BestMetric) -> list[int]:
        """Sorts checkpoints by a metric, the best first. Those without a finite value are omitted."""
        values = [(step, find(self.get(step), metric.name)) for step in steps if self._read(step)]
        return metric.best((step, value) for step, value in values if value is not None)

    def _read(self, step: int) -> Mapping[str, Any] | None:
        if step not in self._stored:
            # Not read with Orbax, which waits for all processes, because Orbax calls `KeepBest` while it saves.
            try:
                about = paths.read_bytes(paths.join(self._directory, str(step), _ABOUT_FILE))
                stored = json.loads(about).get(EVALUATION)
                if stored is not None and not _is_evaluation(stored):
                    return None
                self._stored[step] = stored
            # Damage is reported when the checkpoint is chosen or restored.
            except (OSError, ValueError, AttributeError, RecursionError):
                return None
        return self._stored[step]


def _is_evaluation(stored: Any) -> bool:
    """Returns whether a value has the form that `CheckpointEvaluations.add` returns."""
    if not isinstance(stored, dict) or not {"metrics", "best_metric", "best_is_larger"} <= stored.keys():
        return False
    metrics, name, larger = stored["metrics"], stored["best_metric"], stored["best_is_larger"]
    are_numbers = isinstance(metrics, dict) and all(
        value is None or isinstance(value, int | float) for value in metrics.values()
    )
    return are_numbers and isinstance(name, str) and (larger is None or isinstance(larger, bool))
