"""Scores of stored models, from evaluations that were made before, and which of them can be compared."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from t5x_like import metrics, paths
from t5x_like.checkpoints import checkpoint_choice
from t5x_like.data import provenance
from t5x_like.errors import UserError
from t5x_like.metrics import best
from t5x_like.metrics.evaluation_table import JSON, EvaluationTable
from t5x_like.stored import run_tokenizer
from t5x_like.stored.loaded import Loaded

# Directory of the results of `t5x_like eval`.
RESULTS = "eval"
# Settings of `eval` that change which rows are evaluated.
_ROWS = ("EVAL_STEPS", "NUM_EXAMPLES")
_NOT_METRICS = ("step", "split", "time")


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """An evaluation of a model.

    Attributes:
      title: Task and split, or split and `during training`.
      values: Metric -> value.
      rows: Settings that change which rows are evaluated, by name.
      data: Hashes of the data of each task; empty if they are not known.
    """

    title: str
    values: Mapping[str, float]
    rows: Mapping[str, str] = dataclasses.field(default_factory=dict)
    data: Sequence[str | None] = ()


@dataclasses.dataclass(frozen=True)
class Score:
    """The score of a model, or of several seeds of it.

    Attributes:
      metric: Name of the metric.
      value: Its value; the mean over seeds.
      title: The evaluation that it comes from; see `Evaluated.title`.
      problem: Why it cannot be compared with the score of the first model; None if it can.
      deviation: Standard deviation over seeds; None for one.
    """

    metric: str
    value: float
    title: str
    problem: str | None = None
    deviation: float | None = None


def read(loaded: Loaded) -> list[Evaluated]:
    """Returns the evaluations of the checkpoint of a model, the last one of `eval` first, then those of its training.

    Args:
      loaded: The model. The results of a Hugging Face directory are those in its directory `eval`.

    Raises:
      UserError: A file with results is damaged.
    """
    step = checkpoint_choice.find_step(loaded.checkpoint_path)
    directory = _directory(loaded)
    results = paths.join(directory, RESULTS)
    found = {}
    try:
        for result in EvaluationTable(results).read():
            if result.step == step:
                rows = {name: result.options[name] for name in _ROWS if name in result.options}
                for title, values in result.evaluations.items():
                    found[title] = Evaluated(title, values, rows, tuple(result.data.get(title, ())))
    except (ValueError, TypeError, AttributeError) as error:
        file = paths.join(results, JSON)
        raise UserError(f"{file}: damaged ({error}). Delete it, and evaluate the model again.") from error
    evaluated = list(found.values())[::-1]
    last = {}
    if step is not None:
        last = {row["split"]: row for row in metrics.read_metrics(directory) if row["step"] <= step}
    for split, row in last.items():
        if split != "train":
            values = {name: value for name, value in row.items() if name not in _NOT_METRICS}
            data = _data(directory, split, row["step"])
            evaluated.append(Evaluated(f"{split}, during training", values, data=data))
    return evaluated


def _data(directory: str, split: str, step: int) -> tuple[str | None, ...]:
    """Returns the hashes of the data of an evaluation of a run after a step."""
    starts = [start for start in metrics.read_starts(directory) if start.get("step", 0) < step]
    return tuple(map(provenance.identity, starts[-1].get("data", {}).get(split, ()))) if starts else ()


def choose(
    models: Sequence[Loaded], evaluated: Sequence[Sequence[Evaluated]], metric: str | None = None
) -> list[Score | None]:
    """Returns the score of each model.

    The scores are from the evaluation of the first model that most models share. A model without this evaluation gets
    the score of its own preferred evaluation, which is not compared.

    Args:
      models: The models.
      evaluated: The evaluations of each model, the preferred one first.
      metric: Name of the metric; see `metrics.best.find`. None for the first metric of the task, or else of the
        objective, or else the loss.

    Raises:
      UserError: No evaluation has the metric.
    """
    titles = [{each.title for each in found} for found in evaluated]
    reference = max(evaluated[0], key=lambda each: sum(each.title in found for found in titles), default=None)
    chosen = [
        next((each for each in found if reference and each.title == reference.title), next(iter(found), None))
        for found in evaluated
    ]
    metric = metric or next((_main_metric(each.values) for each in chosen if each is not None), None)
    values = [None if each is None else best.find(each.values, metric) for each in chosen]
    if metric is not None and all(value is None for value in values) and any(chosen):
        known = sorted({name for each in chosen if each is not None for name in each.values})
        raise UserError(f"METRIC={metric!r}: no evaluation has this metric. Give one of {', '.join(known)}.")
    digests = [run_tokenizer.stored_digest(_directory(each)) for each in models]
    return [
        None
        if value is None
        else Score(metric, value, each.title, _problem(reference, each, metric, models[0], model, digests[0], digest))
        for model, each, value, digest in zip(models, chosen, values, digests, strict=True)
    ]


def over_seeds(found: Sequence[Score | None]) -> Score | None:
    """Returns the mean score of the seeds of a model.

    Args:
      found: The scores of all seeds.

    Returns:
      The mean with the standard deviation of the sample, and the evaluation of the first seed; None if one of them has
      no score.
    """
    if None in found:
        return None
    problem = next((each.problem for each in found if each.problem is not None), None)
    values = [each.value for each in found]
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return dataclasses.replace(found[0], value=statistics.mean(values), problem=problem, deviation=deviation)


def _main_metric(values: Mapping[str, float]) -> str | None:
    others = [name for name in values if name != "loss"]
    return next((name for name in others if "/" in name), next(iter(others), next(iter(values), None)))


def _problem(
    reference: Evaluated | None,
    own: Evaluated,
    metric: str,
    first: Loaded,
    model: Loaded,
    digest_of_first: str | None,
    digest: str | None,
) -> str | None:
    """Returns why two scores cannot be compared, or None."""
    if reference is None or best.find(reference.values, metric) is None:
        return "the first model has no score"
    if own.title != reference.title:
        return f"its score is from {own.title}, and the score of the first model from {reference.title}"
    for name in _ROWS:
        if (here := own.rows.get(name)) != (there := reference.rows.get(name)):
            return f"it was evaluated on other rows: with {name}={here}, and the first model with {name}={there}"
    if own.data and reference.data and None not in (*own.data, *reference.data) and own.data != reference.data:
        return (
            f"it was evaluated on other data: with the hash {', '.join(own.data)}, and the first model with "
            f"{', '.join(reference.data)}"
        )
    if "/" in metric:  # a metric of the task, which compares texts or labels
        return None
    objectives = type(first.objective).__name__, type(model.objective).__name__
    if objectives[0] != objectives[1]:
        return f"{metric} of {objectives[1]} and of {objectives[0]} are different metrics"
    if None not in (digest_of_first, digest) and digest_of_first != digest:
        return f"its vocabulary differs from the vocabulary of the first model, so {metric} counts other tokens"
    return None


def _directory(loaded: Loaded) -> str:
    """Returns the run directory of a checkpoint, or the Hugging Face directory."""
    step = checkpoint_choice.find_step(loaded.checkpoint_path)
    return loaded.path if step is None else checkpoint_choice.run_of(loaded.checkpoint_path)
