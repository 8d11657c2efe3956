"""Early stopping: a run ends after a number of evaluations without improvement."""

from collections.abc import Iterable, Sequence
from typing import Any

from t5x_like.errors import UserError
from t5x_like.metrics import read_metrics
from t5x_like.metrics.best import BestMetric, find, flatten
from t5x_like.runtime import distributed


class EarlyStopping:
    """Decides from the history of a metric over a run whether the run stops.

    The history comes from the stored rows when a run resumes, so that a resumed run stops at the same step.

    Args:
      metric: the metric.
      patience: number of evaluations without improvement after which the run stops; None for no limit.
      history: (step, value) pairs of the evaluations so far, in ascending order.

    Raises:
      UserError: `patience` is not positive.
    """

    def __init__(self, metric: BestMetric, patience: int | None, history: Iterable[tuple[int, float]] = ()):
        if patience is not None and patience < 1:
            raise UserError(f"PATIENCE={patience} is not positive. Give a number of evaluations, or None for no limit.")
        self.metric, self.patience = metric, patience
        self._history = list(history)

    def add(self, step: int, value: float) -> None:
        """Adds an evaluation."""
        self._history.append((step, value))

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluation, or None without one."""
        return next(iter(self.metric.best(self._history)), None)

    @property
    def is_exhausted(self) -> bool:
        """Whether the last `patience` evaluations have not improved the metric."""
        if self.patience is None:
            return False
        steps = [step for step, _ in self._history]
        since = steps[steps.index(self.best_step) + 1 :] if self.best_step is not None else steps
        return len(since) >= self.patience

    def reason(self) -> str:
        """Describes why the run stops."""
        if self.best_step is None:
            return f"{self.metric.name} was not finite in {self.patience} evaluations"
        value = dict(self._history)[self.best_step]
        return (
            f"{self.metric.name} has not improved in {self.patience} evaluations since step {self.best_step} "
            f"({value:.4g})"
        )


def restore(metric: BestMetric, patience: int | None, model_dir: str, step: int, names: Sequence[str]) -> EarlyStopping:
    """Restores the history of the best metric from the stored rows, so that a resumed run stops as if uninterrupted.

    Args:
      metric: The metric.
      patience: See `EarlyStopping`.
      model_dir: The run directory.
      step: The step that the run resumes from. Later rows are ignored.
      names: The names of the evaluations.

    Returns:
      The same in every process.
    """

    def read() -> list[tuple[int, float]]:
        by_step: dict[int, dict[str, dict[str, Any]]] = {}
        for row in read_metrics(model_dir):
            if row["split"] in names and row["step"] <= step:
                by_step.setdefault(row["step"], {})[row["split"]] = row
        # Flattened as by the run, which evaluates all `names` at a step.
        values = [(at, find(flatten(rows), metric.name)) for at, rows in by_step.items() if len(rows) == len(names)]
        return [(at, value) for at, value in values if value is not None]

    history = distributed.compute_in_main(read) if step and patience is not None else []
    return EarlyStopping(metric, patience, history)
