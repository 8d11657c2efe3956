"""The benchmark that a task belongs to: its average, and the files of its submissions.

A registered task belongs to a benchmark if it has an attribute `benchmark`; see `data_tasks/downstream/submissions.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from t5x_like.data.source import DataSource


class Benchmark(Protocol):
    """The place of a task in a benchmark.

    Attributes:
      name: name of the benchmark, such as `GLUE`.
      group: group of the average that the metrics of the task belong to, such as `MNLI`; None if they do not count.
      groups: all groups of the average.
      submitted_splits: splits whose predictions are written to files.
      unlabeled_splits: submitted splits whose labels are secret.
    """

    name: str
    group: str | None
    groups: Sequence[str]
    submitted_splits: Sequence[str]
    unlabeled_splits: Sequence[str]

    def files(
        self,
        split: str,
        examples: Sequence[Mapping[str, Any]],
        predictions: Sequence[Any],
        outputs: Mapping[str, Sequence[Any]],
    ) -> dict[str, str]:
        """Returns the files of a submission: file name -> content.

        Args:
          split: the split that was predicted.
          examples: task features of each example, with those that identify it.
          predictions: the postprocessed prediction for each example.
          outputs: the outputs of the model for each example by name, such as `probabilities`.
        """


def of(data: DataSource) -> list[Benchmark]:
    """Returns the benchmarks of the tasks of a source; empty for a cache."""
    return [task.benchmark for task in getattr(data, "tasks", ()) if hasattr(task, "benchmark")]


def has_labels(data: DataSource) -> bool:
    """Returns whether the split of a source has labels."""
    return not any(data.split in benchmark.unlabeled_splits for benchmark in of(data))


def is_submitted(data: DataSource) -> bool:
    """Returns whether predictions for the split of a source are written to files."""
    return any(data.split in benchmark.submitted_splits for benchmark in of(data))


def averages(results: Iterable[tuple[Benchmark, Mapping[str, float]]]) -> dict[str, float]:
    """Computes the average of each benchmark that is complete.

    As in the t5 package (`evaluation/eval_utils.py`), it is the mean over groups of the mean over their metrics.

    Args:
      results: benchmark and metrics of each evaluated task.

    Returns:
      Name of the benchmark -> average.
    """
    values: dict[str, dict[str, list[float]]] = {}
    groups: dict[str, Sequence[str]] = {}
    for benchmark, metrics in results:
        if benchmark.group is not None and metrics:
            groups[benchmark.name] = benchmark.groups
            values.setdefault(benchmark.name, {}).setdefault(benchmark.group, []).extend(metrics.values())
    return {
        name: sum(sum(found) / len(found) for found in of_groups.values()) / len(of_groups)
        for name, of_groups in values.items()
        if set(of_groups) == set(groups[name])
    }
