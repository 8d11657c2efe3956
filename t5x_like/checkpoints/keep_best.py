"""Orbax's policy that keeps the best checkpoints."""

from collections.abc import Sequence
from typing import Any

from orbax.checkpoint import checkpoint_managers as policies

from t5x_like.metrics.best import BestMetric
from t5x_like.metrics.checkpoint_evaluations import CheckpointEvaluations


class KeepBest(policies.PreservationPolicy):
    """Keeps the best checkpoints, also from an earlier start of the run.

    Args:
      evaluations: The evaluations of the checkpoints.
      metric: The metric that decides.
      number: The number of checkpoints to keep.
    """

    def __init__(self, evaluations: CheckpointEvaluations, metric: BestMetric, number: int):
        self._evaluations, self._metric, self._number = evaluations, metric, number

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Returns whether to keep each checkpoint; part of Orbax's interface."""
        best = self._evaluations.rank([each.step for each in checkpoints], self._metric)[: self._number]
        return [each.step in best for each in checkpoints]
