"""Computes a task's own metrics from a model's predictions or scores with SeqIO's Evaluator."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import seqio
import tensorflow as tf
from absl import logging
from seqio.metrics import ModelOutputType

from t5x_like.data import buckets, prompts
from t5x_like.data.batches import repeat_last_row
from t5x_like.data.features import FeatureSpec
from t5x_like.data.feed import HostBatch
from t5x_like.data.seqio_feed import task_errors
from t5x_like.data.seqio_feed.converter import SpecConverter
from t5x_like.data.seqio_feed.source import SeqIOSource
from t5x_like.data.token_ids import check_ids
from t5x_like.errors import UserError
from t5x_like.packages import MissingPackageError
from t5x_like.runtime import distributed

# Examples whose targets give the names of metrics.
_FEW = 8
# Function from a full batch and the indices of its examples to its outputs by name, `[batch, …]` each. `predictions` is
# required, and is what SeqIO decodes; the others are SeqIO's `aux_values`.
Predict = Callable[[HostBatch, np.ndarray], Mapping[str, np.ndarray]]
# Function from a full batch to its outputs by name, `[batch]` each. `scores`, the log-probabilities of the targets, is
# required; the others are SeqIO's intermediates.
Score = Callable[[HostBatch], Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class TaskPredictions:
    """The predictions for all examples of a task.

    Attributes:
      task: The task.
      examples: Task features of each example, with those that only its postprocessor reads.
      predictions: What the task's postprocessor makes of the prediction for each example.
      outputs: All outputs of the model for each example by name.
    """

    task: seqio.Task
    examples: Sequence[Mapping[str, Any]]
    predictions: Sequence[Any]
    outputs: Mapping[str, Sequence[np.ndarray]]


class TaskEvaluator:
    """Evaluates the tasks of a source that define metrics.

    The examples are read at the first evaluation and stay in memory. With several processes, each one reads all of
    them and calls `predict` and `score` on the same global batches; process 0 computes the metrics.

    Args:
      source: Task or mixture, split and lengths. Examples are never packed here.
      spec: Features of the objective.
      num_examples: Maximum number of examples per task; None for all.
      log_dir: Directory in which SeqIO writes each example with its prediction; None to write none.
    """

    def __init__(
        self, source: SeqIOSource, spec: FeatureSpec, *, num_examples: int | None = None, log_dir: str | None = None
    ):
        self._source, self._spec, self._num_examples, self._log_dir = source, spec, num_examples, log_dir
        self._evaluator: seqio.Evaluator | None = None
        self._names: list[list[str] | None] | None = None
        self._batches: dict[str, list[tuple[np.ndarray, HostBatch]]] = {}

    def metrics(self, predict: Predict, score: Score, *, step: int | None = None) -> dict[str, float]:
        """Computes the metrics of the tasks.

        Args:
          predict: Called if a metric reads predictions.
          score: Called if a metric reads scores.
          step: Number of updates, for the names of the files in `log_dir`.

        Returns:
          `<task>/<metric>` -> value; the same in every process.

        Raises:
          UserError: The task does not exist, its data cannot be read, or a metric cannot be computed. A package that a
            metric of predictions misses is found before anything is predicted.
        """
        evaluator, outputs = self._open(), {}
        self.metric_names()  # raises if a package is missing

        def predictions(dataset):
            key = (id(dataset), "predict")
            if key not in outputs:
                outputs[key] = self._run(dataset, predict)
            return outputs[key]

        def scores(dataset):
            key = (id(dataset), "score")
            if key not in outputs:
                outputs[key] = self._run(dataset, lambda batch, _: score(batch))
            return outputs[key]

        def without_aux(dataset, model_feature_shapes=None):
            indices, found = predictions(dataset)
            return list(zip(indices, found["predictions"], strict=True))

        def with_aux(dataset, model_feature_shapes=None):
            aux = {name: list(rows) for name, rows in predictions(dataset)[1].items() if name != "predictions"}
            return without_aux(dataset), aux

        def scored(dataset, model_feature_shapes=None):
            indices, found = scores(dataset)
            return list(zip(indices, map(float, found["scores"]), strict=True))

        def scored_with_intermediates(dataset, model_feature_shapes=None):
            others = {name: list(rows) for name, rows in scores(dataset)[1].items() if name != "scores"}
            return scored(dataset), others

        functions = {
            ModelOutputType.PREDICTION: without_aux,
            ModelOutputType.PREDICTION_WITH_AUX: with_aux,
            ModelOutputType.SCORE: scored,
            ModelOutputType.SCORE_WITH_INTERMEDIATES: scored_with_intermediates,
        }
        with task_errors.explain_errors(self._source):
            evaluator.evaluate(compute_metrics=False, model_fns=functions)

        def compute():
            with _original_user_error():
                found, _ = evaluator.evaluate(compute_metrics=True, model_fns=functions, step=step)
            return {
                f"{task}/{name}": float(getattr(value, "value", value))
                for task, values in found.result().items()
                for name, value in values.items()
            }

        return distributed.compute_in_main(compute)

    def metric_names(self) -> list[str] | None:
        """Returns `<task>/<metric>` of the metrics, computed with the targets of a few examples as predictions.

        Returns:
          The names, or None if a metric reads other outputs of the model, or cannot be computed from targets.

        Raises:
          UserError: A metric of predictions needs a package that is not installed.
        """
        evaluator = self._open()
        if self._names is None:
            self._names = distributed.compute_in_main(
                lambda: [self._task_metric_names(task) for task in evaluator.eval_tasks]
            )
        return None if None in self._names else sum(self._names, [])

    def _task_metric_names(self, task: seqio.Task) -> list[str] | None:
        examples = list(self._open().cached_task_datasets[task.name].take(_FEW).as_numpy_iterator())
        names = []
        try:
            targets = [_target(task, example) for example in examples]
            for metric in task.predict_metric_fns:
                names += [f"{task.name}/{name}" for name in metric(targets, targets)]
        except MissingPackageError:
            raise
        except ModuleNotFoundError as error:
            raise MissingPackageError(
                f"task {task.name}: a metric needs {error.name}, which is not installed. Install it."
            ) from error
        except Exception as error:  # a metric of the user, for which predictions differ from targets
            logging.debug("the metrics of %s cannot be computed from targets: %s", task.name, error)
            return None
        return None if len(task.predict_metric_fns) < len(task.metric_objs) else names

    def predictions(self, predict: Predict) -> Iterator[TaskPredictions]:
        """Yields the predictions for each task, also for splits without labels."""
        evaluator = self._open()
        for task in evaluator.eval_tasks:
            vocabulary = task.output_features["targets"].vocabulary
            examples = list(evaluator.cached_task_datasets[task.name].as_numpy_iterator())
            with task_errors.explain_errors(self._source):
                _, outputs = self._run(evaluator.cached_model_datasets[task.name], predict)
            predictions = [
                task.postprocess_fn(vocabulary.decode(row), example=example, is_target=False)
                for row, example in zip(outputs["predictions"], examples, strict=True)
            ]
            yield TaskPredictions(task, examples, predictions, outputs)

    def _open(self) -> seqio.Evaluator:
        if self._evaluator is None:
            distributed.heartbeat("the examples for the metrics of the task")
            source, spec = self._source, self._spec
            source.provider  # noqa: B018 (registers the user's tasks and checks the name)
            log_dir = self._log_dir if jax.process_index() == 0 else None
            if log_dir:
                tf.io.gfile.makedirs(log_dir)
            with task_errors.explain_errors(source), prompts.separated(spec.separator):
                self._evaluator = seqio.Evaluator(
                    mixture_or_task_name=source.mixture_or_task_name,
                    feature_converter=SpecConverter(
                        spec,
                        pack=False,
                        padding_ids=source.padding_ids(),
                        data=source.name,
                        inputs_eos=prompts.missing_eos(source, spec),
                    ),
                    eval_split=source.split,
                    use_cached=source.use_cached,
                    seed=source.seed,
                    # SeqIO only keeps the lengths of task features, and a key may give the length of several of them.
                    sequence_length={**source.task_feature_lengths, **spec.task_lengths(source.task_feature_lengths)},
                    num_examples=self._num_examples,
                    logger_cls=[seqio.JSONLogger] if log_dir else [],
                    log_dir=log_dir,
                    async_compute_metrics=False,
                )
        return self._evaluator

    def _run(self, dataset: tf.data.Dataset, compute: Predict) -> tuple[list[int], dict[str, list[np.ndarray]]]:
        """Returns the indices of the examples in ascending order, and the outputs by name in the same order."""
        indices: list[int] = []
        outputs: dict[str, list[np.ndarray]] = {}
        for of_batch, batch in self._read(dataset):
            known = len(indices)
            indices.extend(map(int, of_batch))
            for name, rows in compute(
                batch, repeat_last_row(of_batch, self._source.batch_size - len(of_batch))
            ).items():
                outputs.setdefault(name, []).extend(rows[: len(indices) - known])
            distributed.heartbeat(f"prediction {len(indices)} of the evaluation")
        order = np.argsort(indices)
        return [indices[at] for at in order], {name: [rows[at] for at in order] for name, rows in outputs.items()}

    def _read(self, dataset: tf.data.Dataset) -> list[tuple[np.ndarray, HostBatch]]:
        """Returns (indices, batch) pairs of an enumerated dataset, the longest examples first.

        The last batch is padded with copies of its last row.
        """
        (task,) = (name for name, known in self._open().cached_model_datasets.items() if known is dataset)
        if task not in self._batches:
            limits, size = self._source.id_limits(self._spec), self._source.batch_size
            examples = [(int(index), row) for index, row in dataset.as_numpy_iterator()]
            examples.sort(key=lambda example: -buckets.row_length(example[1]))
            batches = []
            for first in range(0, len(examples), size):
                indices, rows = zip(*examples[first : first + size], strict=True)
                batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
                check_ids(batch, limits, data=self._source.mixture_or_task_name, holder="its vocabulary")
                padded = {name: repeat_last_row(array, size - len(rows)) for name, array in batch.items()}
                batches.append((np.array(indices), padded))
            self._batches[task] = batches
        return self._batches[task]


def _target(task: seqio.Task, example: Mapping[str, Any]) -> Any:
    """Returns the target of an example as the metrics of its task read it."""
    target = example.get("targets_pretokenized")
    if target is None:
        target = task.output_features["targets"].vocabulary.decode(list(example["targets"]))
    elif isinstance(target, bytes):
        target = target.decode()
    return task.postprocess_fn(target, example=example, is_target=True)


@contextlib.contextmanager
def _original_user_error() -> Iterator[None]:
    """Raises the `UserError` of a metric instead of SeqIO's error about it."""
    try:
        yield
    except ValueError as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise
