"""`t5x_like eval`: evaluates checkpoints by their loss and by the metrics of a task."""

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import logging

from t5x_like import paths
from t5x_like.checkpoints import checkpoint_choice
from t5x_like.checkpoints.stored_checkpoints import StoredCheckpoints
from t5x_like.data import benchmarks, provenance
from t5x_like.data.source import DataSource
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.metrics.best import flatten
from t5x_like.metrics.evaluation_table import EvaluationTable, Result
from t5x_like.runtime import distributed
from t5x_like.stored.loaded import Loaded
from t5x_like.training.evaluation import Evaluation, Evaluations
from t5x_like.training.runs import run_directory, run_lock

WATCH = "watch"
# Values of CHECKPOINT for several checkpoints.
_SEVERAL = (checkpoint_choice.ALL, WATCH)
# Directory in a run directory for results.
RESULTS = "eval"


@distributed.with_watchdog()
def evaluate(
    loaded: Loaded,
    *,
    data: DataSource,
    splits: str | Sequence[str] | None = None,
    eval_steps: int | None = None,
    task_metrics: bool | None = None,
    num_examples: int | None = None,
    output_dir: str | None = None,
    poll_seconds: float = 10.0,
) -> dict[str, float]:
    """Evaluates one or several checkpoints.

    The results are added to `results.json` and `results.md`. A checkpoint with results for the same settings is not
    evaluated again.

    Args:
      loaded: The model; see `open_model`. Its objective computes loss and metrics with teacher forcing. Its checkpoint
        may also be `all`, or `watch`: all, and new ones as they appear, until the run has finished or failed, or was
        killed.
      data: The evaluation data. SeqIO's Evaluator also evaluates tasks with metric functions. Each task of a mixture is
        evaluated by itself.
      splits: The split, or several; by default `data`'s. For a split without labels, predictions are written to
        `output_dir` in the format of the task's benchmark; for several checkpoints, to directories `step_<step>`.
      eval_steps: Batches of the teacher-forced evaluation; None for all.
      task_metrics: Whether to compute the task's metrics from predictions and scores. By default, they are computed if
        the task has any.
      num_examples: Examples to predict; None for all.
      output_dir: Directory for results, and for each example with its prediction. By default, results are written to
        the directory `eval` of the run, and predictions are not written.
      poll_seconds: Seconds between two looks for new checkpoints.

    Returns:
      The metrics of the last checkpoint by name, `<evaluation>/<metric>` for several tasks or splits. The task's
      metrics have names `<task>/<metric>`.

    Raises:
      UserError: A checkpoint is not found, the model cannot predict what a metric of the task needs, or the split has
        no labels and there is no `output_dir`.
      ProcessLost: Another process of the run has exited.
    """
    objective, checkpoint = loaded.objective, loaded.checkpoint
    options = {
        "batches": eval_steps,
        "task_metrics": task_metrics,
        "num_examples": num_examples,
        "decoding": loaded.decoding,
    }
    about_model = {"model": loaded.config, "objective": objective, "averaged": loaded.averaged}
    settings = _digest({**about_model, "data": data, "splits": splits, **options})
    shown = _shown(data, **options)
    evaluations = open_evaluations(
        loaded, Evaluation(data=data, splits=splits, per_task=True, **options), output_dir=output_dir
    )
    unlabeled = _unlabeled(evaluations)
    titles = {name: _title(source) for name, source in evaluations.sources.items()}
    if eval_steps is not None:
        logging.info(
            "EVAL_STEPS=%d: only %d rows are evaluated (BATCH_SIZE=%d), so the results depend on BATCH_SIZE",
            *(eval_steps, eval_steps * data.batch_size, data.batch_size),
        )
    table = _Table(output_dir, loaded.path)

    def evaluate_one(path: str) -> dict[str, float]:
        step, fingerprint = checkpoint_choice.find_step(path), _fingerprint(path)
        with _explain_storage_errors(output_dir):
            result = None if unlabeled else table.find(path, fingerprint, settings)
            if result is None:
                params = loaded.read(path)
                found = evaluations(params, step=step)
                result = _result(path, step, fingerprint, settings, shown, found, evaluations.sources)
                table.add(result)
                _write_submissions(evaluations, params, output_dir, step if checkpoint in _SEVERAL else None)
        _log(path, step, result)
        return flatten(
            {name: result.evaluations[title] for name, title in titles.items() if title in result.evaluations}
        )

    if checkpoint not in _SEVERAL:
        return checkpoint_choice.read(loaded.path, checkpoint, evaluate_one)[1]
    values: dict[str, float] = {}
    for path in _several(loaded.path, checkpoint, poll_seconds):
        with _skip_if_deleted(path):
            values = evaluate_one(path)
    return values


def open_evaluations(loaded: Loaded, evaluation: Evaluation, *, output_dir: str | None) -> Evaluations:
    """Opens the evaluations of a command, and checks what is known before the parameters are read.

    Args:
      loaded: The model.
      evaluation: Its data, and what is computed.
      output_dir: Directory for results.

    Raises:
      UserError: See `evaluate`.
    """
    loaded.check_vocabulary(evaluation.data)
    log_dir = paths.join(output_dir, "inference_eval") if output_dir else None
    evaluations = Evaluations(
        {"": evaluation}, loaded.objective, loaded.resolved, loaded.partitioner, log_dir=log_dir, required=True
    )
    if (unlabeled := _unlabeled(evaluations)) and not output_dir:
        raise UserError(
            f"SPLIT={unlabeled[0].split}: {unlabeled[0].name} has no labels there. Give OUTPUT_DIR, to which the "
            "predictions are written."
        )
    return evaluations


def _unlabeled(evaluations: Evaluations) -> list[DataSource]:
    return [source for source in evaluations.sources.values() if not benchmarks.has_labels(source)]


def _digest(settings: Mapping[str, Any]) -> str | None:
    """Returns a hash of the settings that the results depend on, or None if one cannot be described."""
    from t5x_like.config.derived import derive

    text, unknown = derive("t5x_like.eval.evaluate", settings)
    return None if unknown else hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _shown(
    data: DataSource, batches: int | None, task_metrics: bool | None, num_examples: int | None, decoding: Decoding
) -> dict[str, str]:
    """Returns the settings that users change between evaluations of a run, for the table of results."""
    values = {
        "EVAL_STEPS": batches,
        "BATCH_SIZE": getattr(data, "batch_size", None),
        "NUM_EXAMPLES": num_examples,
        "TASK_METRICS": task_metrics,
        "TASK_FEATURE_LENGTHS": getattr(data, "task_feature_lengths", None),
    }
    values |= {field.name: getattr(decoding, field.name) for field in dataclasses.fields(decoding)}
    return {name: str(dict(value) if isinstance(value, Mapping) else value) for name, value in values.items()}


def _several(path: str, checkpoint: str, poll_seconds: float) -> Iterator[str]:
    """Yields the checkpoints to evaluate, `all` or `watch`, the same in every process."""
    if checkpoint == checkpoint_choice.ALL:
        yield from distributed.compute_in_main(lambda: checkpoint_choice.choose(path, checkpoint, several=True))
        return
    checkpoint_choice.check_is_run(path, checkpoint)
    seen: set[str] = set()
    run = checkpoint_choice.run_of(path)

    lock = run_lock.LockObserver(run)

    def look() -> tuple[bool, list[str]]:
        # The status and the lock are read first: a run saves nothing after it has ended.
        state = (run_directory.read_status(run) or {}).get("state")
        is_stale = lock.is_stale()
        is_killed = state == "running" and is_stale
        found = checkpoint_choice.existing(path)
        if is_killed and seen.issuperset(found):
            logging.warning(
                "%s: the run no longer renews its lock, so it was killed, and no longer saves checkpoints. Repeat the "
                "command when the run has been resumed",
                run,
            )
        return is_killed or state in ("finished", "failed"), found

    while True:
        ended, found = distributed.compute_in_main(look)
        new = [each for each in found if each not in seen]
        seen.update(new)
        yield from new
        if ended and not new:
            return
        if not new:
            distributed.heartbeat(f"new checkpoints of {run}")
            time.sleep(poll_seconds)


@contextlib.contextmanager
def _skip_if_deleted(path: str) -> Iterator[None]:
    """Ignores errors about a checkpoint that the run has deleted in the meantime."""
    try:
        yield
    except Exception:
        if not checkpoint_choice.is_deleted(path):
            raise
        logging.warning("%s is skipped, because the run has deleted it", path)


def _explain_storage_errors(output_dir: str | None) -> contextlib.AbstractContextManager:
    if output_dir is None:  # results in the run directory are optional
        return contextlib.nullcontext()
    return paths.explain_storage_errors("OUTPUT_DIR", output_dir)


def _fingerprint(path: str) -> str | None:
    step = checkpoint_choice.find_step(path)
    return None if step is None else StoredCheckpoints(checkpoint_choice.locate(path)[0]).fingerprint(step)


def _result(
    path: str,
    step: int | None,
    fingerprint: str | None,
    settings: str | None,
    options: Mapping[str, str],
    found: Mapping[str, Mapping[str, float]],
    sources: Mapping[str, DataSource],
) -> Result:
    of_benchmarks: list[tuple[benchmarks.Benchmark, dict[str, float]]] = []
    for name, values in found.items():
        of_task = {metric: value for metric, value in values.items() if "/" in metric}
        of_benchmarks += [(benchmark, of_task) for benchmark in benchmarks.of(sources[name])]
    titled = {_title(sources[name]): values for name, values in found.items()}
    data = {_title(sources[name]): [*map(provenance.identity, provenance.describe(sources[name]))] for name in found}
    return Result(path, step, fingerprint, settings, titled, benchmarks.averages(of_benchmarks), options, data)


def _title(source: DataSource) -> str:
    split = getattr(source, "split", None)
    return f"{source.name}, split {split}" if split else source.name


class _Table:
    """The results of a command, which process 0 writes.

    Results in the run directory are optional: it may belong to somebody else.
    """

    def __init__(self, output_dir: str | None, checkpoint_path: str):
        self._optional = output_dir is None
        if output_dir is None and checkpoint_choice.find_step(checkpoint_path) is not None:
            run = checkpoint_choice.run_of(checkpoint_path)
            output_dir = paths.join(run, RESULTS)
        self._table = EvaluationTable(output_dir) if output_dir else None

    def find(self, path: str, fingerprint: str | None, settings: str | None) -> Result | None:
        def find() -> dict[str, Any] | None:
            found = self._table.find(path, fingerprint, settings) if self._table else None
            return None if found is None else vars(found)

        found = distributed.compute_in_main(find)
        if found is None:
            return None
        logging.info("%s has been evaluated with the same settings before", path)
        return Result(**found)

    def add(self, result: Result) -> None:
        if self._table is None or jax.process_index() or not result.evaluations:
            return
        try:
            self._table.add(result)
        except OSError as error:
            if not self._optional:
                raise
            logging.warning("the results are not written: %s. Give OUTPUT_DIR", error)


def _write_submissions(evaluations: Evaluations, params: Any, output_dir: str | None, step: int | None) -> None:
    if output_dir is None:
        return
    for name, text in evaluations.submissions(params):
        path = paths.join(output_dir, *([] if step is None else [f"step_{step}"]), name)
        if jax.process_index() == 0:
            paths.write_atomic(path, text)
            logging.info("wrote %s", path)


def _log(path: str, step: int | None, result: Result) -> None:
    stored = path if step is None else f"step {step} of {checkpoint_choice.run_of(path)}"
    for title, values in result.evaluations.items():
        logging.info("%s, %s:", stored, title)
        for name, value in values.items():
            logging.info("%s = %s", name, value)
    for name, value in result.averages.items():
        logging.info("%s average = %s", name, value)
