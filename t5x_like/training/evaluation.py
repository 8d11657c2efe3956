"""Evaluation: the metrics of an objective over a fixed set of batches, and the metrics of a task of its predictions."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from absl import logging

from t5x_like import partitioning
from t5x_like.data import benchmarks, token_ids
from t5x_like.data.source import DataSource, is_continuous
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.objectives import carry as carrying
from t5x_like.objectives.base import Objective
from t5x_like.runtime import distributed
from t5x_like.training import eval_step, predictions

if TYPE_CHECKING:
    from t5x_like.data.seqio_feed.evaluation import TaskPredictions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What to evaluate, and by which metrics.

    Attributes:
      data: The evaluation data. None disables the evaluation.
      objective: The objective whose metrics are computed; by default the run's. It may not have heads of its own.
      batches: Maximum number of batches for the metrics of the objective; None for all.
      task_metrics: Whether to compute the metrics of the task, from predictions and scores. By default, they are
        computed if the task has any and the model can predict.
      num_examples: Maximum number of examples per task for its metrics. The default is the rows of `batches`.
      decoding: How text is generated for the metrics of a task. The default is greedy.
      splits: A split, or several to be evaluated one by one. The default is the split of `data`.
      per_task: Whether to evaluate each task of a mixture separately. Otherwise the metrics of the objective are taken
        on the mixture, up to the end of its first task.

    Raises:
      UserError: A number is not positive.
    """

    data: DataSource | None
    objective: Objective | None = None
    batches: int | None = None
    task_metrics: bool | None = None
    num_examples: int | None = None
    decoding: Decoding = Decoding()
    splits: str | Sequence[str] | None = None
    per_task: bool = False

    def __post_init__(self):
        for macro, value, all_of in (
            ("EVAL_STEPS", self.batches, "batches"),
            ("NUM_EXAMPLES", self.num_examples, "examples"),
        ):
            if value is not None and value < 1:
                raise UserError(f"{macro}={value} is not positive. Give a positive integer, or None for all {all_of}.")

    def per_split(self) -> "dict[str, Evaluation]":
        """Returns split -> evaluation; the split is empty if there is only one.

        Raises:
          UserError: The data has no splits.
        """
        splits = (self.splits,) if isinstance(self.splits, str) else tuple(self.splits or (None,))
        return {
            split if len(splits) > 1 else "": dataclasses.replace(self, data=_with_split(self.data, split), splits=None)
            for split in splits
        }

    def parts(self) -> "dict[str, Evaluation]":
        """Returns the evaluations of single tasks and splits by name; the name is empty if there is only one."""
        found: dict[str, Evaluation] = {}
        for split, each in self.per_split().items():
            tasks = each.data.per_task() if self.per_task else [each.data]
            for task in tasks:
                name = "/".join(filter(None, (task.name if len(tasks) > 1 else "", split)))
                found[name] = dataclasses.replace(each, data=task, per_task=False)
        return found


def _with_split(data: DataSource, split: str | None) -> DataSource:
    if split is None or split == getattr(data, "split", None):
        return data
    if not hasattr(data, "split"):
        raise UserError(f"EVAL_SPLIT={split}: the data of a {type(data).__name__} has no splits. Give EVAL_SPLIT=None.")
    return dataclasses.replace(data, split=split)


def expand(evaluations: Mapping[str, Evaluation]) -> dict[str, Evaluation]:
    """Returns the evaluations of single tasks and splits.

    Args:
      evaluations: Name -> evaluation. Those without data are omitted.

    Returns:
      Name -> evaluation of one task and one split. The name of the task or the split replaces the name of the only
      evaluation, and is appended to it if there are several.

    Raises:
      UserError: No task has a split.
    """
    given = {name: each for name, each in evaluations.items() if each.data is not None}
    found: dict[str, Evaluation] = {}
    for name, each in given.items():
        for part, single in each.parts().items():
            found["/".join(filter(None, (name if len(given) > 1 or not part else "", part)))] = single
    return found


class Evaluator:
    """Computes the metrics of an objective over the same batches each time it is called.

    Args:
      objective: The objective whose metrics are computed.
      data: Source of evaluation batches. They are read at the first call and kept in memory.
      partitioner: Device mesh and sharding rules.
      batches: Maximum number of batches, or None for all.
      vocab_size: Number of token ids of the model; larger ids raise an error. None if the source checks its ids.
    """

    def __init__(
        self,
        objective: Objective,
        data: DataSource,
        partitioner: partitioning.Partitioner,
        batches: int | None,
        vocab_size: int | None = None,
    ):
        self._limits = {} if vocab_size is None else token_ids.model_limits(objective.features, vocab_size)
        self._objective, self._data, self._partitioner, self._batches = objective, data, partitioner, batches
        self._step = partitioner.jit(eval_step.make_eval_step(objective))
        self._host_batches: list[Mapping[str, np.ndarray]] | None = None

    def __call__(self, params: Any) -> dict[str, float]:
        """Computes the metrics of `params`.

        Args:
          params: `{"model": …, "objective": …}`.

        Returns:
          Metric -> the ratio of its sum and its weight over all batches.

        Raises:
          UserError: the data has no batch, or a token id that the model does not have.
        """
        if self._host_batches is None:
            distributed.heartbeat("the evaluation data")
            self._host_batches = self._read()
        totals: dict[str, np.ndarray] = {}
        carry = self._initial_carry(params)
        for number, host_batch in enumerate(self._host_batches):
            distributed.heartbeat(f"batch {number + 1} of {len(self._host_batches)} of the evaluation")
            batch = self._partitioner.put_batch(host_batch, self._objective.features.axes)
            metrics, carry = self._step(params, batch, np.int32(number), carry)
            pairs = jax.device_get(metrics)
            for name, pair in pairs.items():
                totals[name] = totals.get(name, np.zeros(2)) + np.asarray(pair, np.float64)
        return {name: float(total / max(weight, 1e-9)) for name, (total, weight) in totals.items()}

    def _initial_carry(self, params: Any) -> dict[str, jax.Array]:
        """Returns what the networks carry into the first batch of an evaluation."""
        if not is_continuous(self._data):
            return {}
        batch_size = next(iter(self._data.batch_shapes(self._objective.features).values()))[0]
        return carrying.initial(self._objective, params["model"].config, batch_size)

    def metric_names(self, params: Any) -> list[str]:
        """Returns the names of the metrics, without computing them.

        Args:
          params: Shapes of the parameters.
        """
        features = self._objective.features
        shapes = self._data.batch_shapes(features)
        batch = {name: jax.ShapeDtypeStruct(shape, features.dtypes[name]) for name, shape in shapes.items()}
        return list(
            jax.eval_shape(self._step, params, batch, np.int32(0), jax.eval_shape(self._initial_carry, params))[0]
        )

    def _read(self) -> list[Mapping[str, np.ndarray]]:
        index, count = self._partitioner.feed_shard
        batches = list(
            self._data.eval_batches(self._objective.features, self._batches, process_index=index, process_count=count)
        )
        name = self._data.name
        for batch in batches:
            token_ids.check_ids(batch, self._limits, data=name, holder="the model")
            token_ids.check_labels(batch, self._objective.features.num_labels, data=name)
        if not batches:
            raise UserError(
                f"the evaluation split of {name} has no batch. Give a split with at least one batch of examples, or "
                "--gin.EVAL_DATA=None."
            )
        return batches


class TaskMetrics:
    """Computes the metrics of the tasks of a source from a model's predictions and scores.

    Args:
      objective: The objective that owns the heads, or the features of generated targets.
      data: A source with metrics.
      model: Configuration of the model, resolved by `models.base.for_platform`.
      partitioner: Device mesh and sharding rules.
      num_examples: Maximum number of examples per task; None for all.
      log_dir: Directory for each example with its prediction, as JSON lines; None to write none.
      decoding: How text is generated.
    """

    def __init__(
        self,
        objective: Objective,
        data: DataSource,
        model: ModelConfig,
        partitioner: partitioning.Partitioner,
        num_examples: int | None = None,
        log_dir: str | None = None,
        decoding: Decoding = Decoding(),  # noqa: B008 (frozen)
    ):
        from t5x_like.data.seqio_feed.evaluation import TaskEvaluator  # imports SeqIO

        self._predictor = predictions.Predictor(objective, data, model, partitioner, decoding)
        self._evaluator = TaskEvaluator(data, objective.features, num_examples=num_examples, log_dir=log_dir)

    def __call__(self, params: Any, *, step: int | None = None) -> dict[str, float]:
        """Returns `<task>/<metric>` -> value for `params`, the same in every process.

        Args:
          params: `{"model": …, "objective": …}`.
          step: Number of updates, for the names of the files in `log_dir`.
        """
        return self._evaluator.metrics(
            lambda batch, indices: self._predictor.predict(params, batch, indices),
            lambda batch: self._predictor.score(params, batch),
            step=step,
        )

    def names(self) -> list[str] | None:
        """Returns `<task>/<metric>` of the metrics, or None if they are not known before there are predictions."""
        return self._evaluator.metric_names()

    def predictions(self, params: Any) -> "Iterator[TaskPredictions]":
        """Yields the `TaskPredictions` of each task for `params`."""
        return self._evaluator.predictions(lambda batch, indices: self._predictor.predict(params, batch, indices))


class Evaluations:
    """Computes several evaluations of one run. Data and compiled programs are kept between calls.

    Args:
      evaluations: Name -> evaluation; see `expand`.
      objective: The objective of the run.
      model: Configuration of the model, resolved by `models.base.for_platform`.
      partitioner: Device mesh and sharding rules.
      log_dir: Directory for each example with its prediction; None to write none.
      required: Whether a model that cannot predict is an error if a task has metrics. Otherwise it is only logged,
        unless an evaluation asks for `task_metrics`.

    Attributes:
      sources: Name of each evaluation of a single task and split -> its data.

    Raises:
      UserError: Task metrics are asked for and cannot be computed, or the data does not suit its objective or is empty.
    """

    def __init__(
        self,
        evaluations: Mapping[str, Evaluation],
        objective: Objective,
        model: ModelConfig,
        partitioner: partitioning.Partitioner,
        *,
        log_dir: str | None = None,
        required: bool = False,
    ):
        self.sources: dict[str, DataSource] = {}
        self._parts: dict[str, tuple[Evaluator | None, TaskMetrics | None]] = {}
        for name, each in expand(evaluations).items():
            own, batches, task_metrics = each.objective or objective, None, None
            each.data.check(own.features)
            if benchmarks.has_labels(each.data):
                batches = Evaluator(own, each.data, partitioner, each.batches, model.vocab_size)
            if _computes_task_metrics(each, own, model, partitioner, required):
                examples = each.num_examples
                if examples is None and each.batches is not None:
                    examples = each.batches * each.data.batch_size
                task_metrics = TaskMetrics(own, each.data, model, partitioner, examples, log_dir, each.decoding)
            self.sources[name] = each.data
            self._parts[name] = batches, task_metrics

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the evaluations whose metrics are computed: splits with labels."""
        return tuple(name for name, (batches, _) in self._parts.items() if batches is not None)

    def metric_names(self, params: Any) -> dict[str, dict[str, float]]:
        """Returns evaluation -> metric of its objective -> NaN.

        Args:
          params: Shapes of the parameters.
        """
        return {
            name: dict.fromkeys(batches.metric_names(params), math.nan)
            for name, (batches, _) in self._parts.items()
            if batches is not None
        }

    def task_metric_names(self) -> dict[str, dict[str, float]] | None:
        """Returns evaluation -> metric of its task -> NaN, or None if they are unknown before the first evaluation."""
        found = {name: each.names() if each else [] for name, (_, each) in self._parts.items()}
        if None in found.values():
            return None
        return {name: dict.fromkeys(each, math.nan) for name, each in found.items()}

    def submissions(self, params: Any) -> Iterator[tuple[str, str]]:
        """Yields name and content of each file with predictions that a benchmark reads.

        Every process must read all of them.

        Args:
          params: `{"model": …, "objective": …}`.
        """
        for name, (_, task_metrics) in self._parts.items():
            if task_metrics is None or not benchmarks.is_submitted(self.sources[name]):
                continue
            for found in task_metrics.predictions(params):
                split, benchmark = self.sources[name].split, found.task.benchmark
                yield from benchmark.files(split, found.examples, found.predictions, found.outputs).items()

    def __call__(self, params: Any, *, step: int | None = None) -> dict[str, dict[str, float]]:
        """Computes all metrics of `params`.

        Args:
          params: `{"model": …, "objective": …}`.
          step: Number of updates, for the names of the files in `log_dir`.

        Returns:
          Evaluation -> metric -> value, the same in every process. Metrics of tasks are named `<task>/<metric>`.
          Splits without labels are omitted.
        """
        return {
            name: batches(params) | (task_metrics(params, step=step) if task_metrics else {})
            for name, (batches, task_metrics) in self._parts.items()
            if batches is not None
        }


def _computes_task_metrics(
    evaluation: Evaluation,
    objective: Objective,
    model: ModelConfig,
    partitioner: partitioning.Partitioner,
    required: bool,
) -> bool:
    """Returns whether to compute the metrics of the task; see `Evaluation.task_metrics` and `Evaluations`."""
    if evaluation.task_metrics is False:
        return False
    if not evaluation.data.has_metrics():
        if evaluation.task_metrics:
            raise UserError(
                f"task_metrics=True: {evaluation.data.name} has no metrics of predictions; a cache never has any. Give "
                "None or False."
            )
        return False
    obstacle = predictions.find_obstacle(objective, evaluation.data, model, partitioner)
    if obstacle is None:
        return True
    if evaluation.task_metrics or required:
        raise UserError(f"{obstacle}. Give --gin.TASK_METRICS=False to compute only the metrics of the objective.")
    logging.warning("%s: only the metrics of the objective are computed", obstacle)
    return False
