"""The metric that decides which evaluations of a run are the best: checked before the run starts, and its history."""

from collections.abc import Sequence
from typing import Any

from t5x_like.errors import UserError
from t5x_like.metrics import read_metrics
from t5x_like.metrics.best import BestMetric, Improvement, find, flatten
from t5x_like.runtime import distributed
from t5x_like.training.evaluation import Evaluations

# The split of the rows of training metrics.
_TRAIN = "train"


def check_run(names: Sequence[str], patience: int | None) -> None:
    """Checks the evaluations of a run before it starts.

    Args:
      names: The names of the evaluations.
      patience: See `Improvement`.

    Raises:
      UserError: A name is reserved for the training metrics, or the patience is not positive or has no evaluations.
    """
    if _TRAIN in names:
        raise UserError(f"EVALUATIONS: the name {_TRAIN!r} is reserved for the training metrics. Give another name.")
    Improvement(BestMetric(), patience)
    if patience is not None and not names:
        raise UserError(f"PATIENCE={patience}: the run has no evaluation. Set EVALUATIONS and EVAL_PERIOD, or None.")


def check_metrics(evaluations: Evaluations, best: BestMetric | None, params: Any) -> None:
    """Checks that the metrics can be computed and that one of them is the best metric, before the run starts.

    Args:
      evaluations: The evaluations of a run.
      best: The metric that decides which evaluations are the best, if one does.
      params: Shapes of the parameters.

    Raises:
      UserError: A metric of predictions needs a package that is not installed, or no evaluation has the best metric.
        The latter is not raised if the names of a task's metrics are not yet known.
    """
    of_tasks = evaluations.task_metric_names()
    if best is not None and of_tasks is not None:
        names = evaluations.metric_names(params)
        best.value(flatten({name: each | of_tasks[name] for name, each in names.items()}))


def restore_improvement(
    metric: BestMetric, patience: int | None, model_dir: str, step: int, names: Sequence[str]
) -> Improvement:
    """Restores the history of the best metric from the stored rows, so that a resumed run stops as if uninterrupted.

    Args:
      metric: The metric.
      patience: See `Improvement`.
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
    return Improvement(metric, patience, history)
