"""`t5x_like compare`: size, memory, latency and score of stored models in one table, beside the first of them."""

import contextlib
import datetime
import fnmatch
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence

import jax
from absl import logging

from t5x_like import parameters, paths
from t5x_like.benchmarking import comparison, prediction, report, scores, timing
from t5x_like.benchmarking.comparison import Comparison, Measured
from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.errors import UserError
from t5x_like.inference.codec import has_task
from t5x_like.inference.progress import Progress
from t5x_like.loading import open_model
from t5x_like.partitioning import Partitioner
from t5x_like.reporting import plots
from t5x_like.runtime import console_log
from t5x_like.stored import weight_sizes
from t5x_like.stored.loaded import Loaded


@console_log.enabled()
def compare(
    *,
    models: str | Sequence[str],
    rows: int | str | Sequence[int] = (1, 32),
    task_feature_lengths: Mapping[str, int] | None = None,
    metric: str | None = None,
    rounds: int = 20,
    warmup_rounds: int = 2,
    max_seconds: float = 600.0,
    json_path: str | None = None,
    plot_path: str | None = None,
) -> Comparison:
    """Measures stored models on one device, prints a table, and stores it with the first model.

    All models are in memory at the same time, and their predictions are timed in turn, so that other work on the
    machine slows down all of them alike. A prediction is what `infer` computes: the outputs of a head, or greedily
    generated text. Nothing is evaluated: scores are the results of `t5x_like eval` in the directory of a model, or of
    the last evaluation during its training.

    Args:
      models: Run directories, checkpoints, or Hugging Face directories. Shares are of the first one. If it is a run,
        its directory gets `comparison.json`, which `t5x_like report` shows. A pattern such as `runs/sst2-seed_*`
        stands for one model that was trained with several seeds: its score is the mean of all, and everything else is
        measured with the first.
      rows: Numbers of rows of the timed batches, in a list or separated by commas.
      task_feature_lengths: Length of each task feature in tokens; by default the lengths of the first model. All rows
        are full.
      metric: Metric of the scores, such as `accuracy`. The default is the first metric of the task, or else of the
        objective.
      rounds: How often each prediction is timed.
      warmup_rounds: Number of calls of each prediction before the first round, which are not timed.
      max_seconds: Time in seconds after which no further round starts.
      json_path: A file to write the result to, as JSON.
      plot_path: A file to draw the scores over the sizes to, as PNG.

    Returns:
      The `Comparison`.

    Raises:
      UserError: A number is not positive, a directory is given twice or has no model with weights, a pattern matches
        nothing or different models, a model predicts nothing, no evaluation has the metric, or no score can be drawn.
    """
    # ---- settings ----------------------------------------------------------------------------------------------------
    given = [path.rstrip("/") for path in ([models] if isinstance(models, str) else models)]
    rows = _numbers(rows)
    if plot_path and not plot_path.endswith(".png"):
        raise UserError(f"--plot={plot_path}: not a .png file, which is what is drawn. Give a name that ends in .png.")
    _check(given, rows, rounds=rounds, warmup_rounds=warmup_rounds)
    one_device = Partitioner(devices=jax.devices()[:1], ici={"data": 1})

    # ---- models, and what is known about their scores ----------------------------------------------------------------
    seeds = {path: _seeds(path) for path in given}
    runs = {}
    for path in dict.fromkeys(itertools.chain.from_iterable(seeds.values())):
        with _named(path):
            runs[path] = open_model(path, partitioner=one_device)
    for path, directories in seeds.items():
        _check_seeds(path, {each: runs[each] for each in directories})
    evaluated = [scores.read(loaded) for loaded in runs.values()]
    score_of = dict(zip(runs, scores.choose(list(runs.values()), evaluated, metric), strict=True))
    opened = [runs[seeds[path][0]] for path in given]
    found_scores = [scores.over_seeds([score_of[run] for run in seeds[path]]) for path in given]
    if plot_path and all(score is None or score.problem for score in found_scores):
        raise UserError(f"--plot={plot_path}: no score to draw. Run `t5x_like eval` for the models, and compare again.")

    # ---- weights of all models: invalid weights are errors before anything is compiled -------------------------------
    lengths = task_feature_lengths or opened[0].task_feature_lengths
    predictions, weights = [], []
    for path, loaded in zip(given, opened, strict=True):
        with _named(path):
            predictions.append(prediction.Prediction(loaded, {**loaded.task_feature_lengths, **lengths}))
            weights.append(predictions[-1].load())

    # ---- compiled predictions ----------------------------------------------------------------------------------------
    names, sizes, calls = _names(given), {}, {}
    for name, path, loaded, made, params in zip(names, given, opened, predictions, weights, strict=True):
        with _named(path):
            compiled = {}
            for number in rows:
                logging.info("compiling the prediction of %s, batch size %d", name, number)
                compiled[number] = made.compile(params, number)
                calls[f"{name}, {number}"] = compiled[number].call
            sizes[name] = _sizes(loaded, params) | {
                "peak_bytes": {number: each.peak_bytes for number, each in compiled.items()},
                "computed": made.description,
            }

    # ---- measure -----------------------------------------------------------------------------------------------------
    for call in calls.values():
        for _ in range(warmup_rounds):
            timing.time_call(call)
    times = timing.time_in_turn(calls, _with_progress(rounds), time.monotonic() + max_seconds)

    # ---- report ------------------------------------------------------------------------------------------------------
    measured = []
    for name, path, loaded, score in zip(names, given, opened, found_scores, strict=True):
        of_rows = {number: times[f"{name}, {number}"] for number in rows}
        without_score = next((run for run in seeds[path] if score_of[run] is None), None)
        measured.append(
            Measured(
                name=name,
                path=loaded.checkpoint_path,
                seconds={number: (each.median, each.min, each.max) for number, each in of_rows.items()},
                score=None if score is None else score.value,
                evaluation=None if score is None else score.title,
                problem=_how_to_evaluate(without_score, runs[without_score]) if score is None else score.problem,
                deviation=None if score is None else score.deviation,
                seeds=len(seeds[path]),
                **sizes[name],
            )
        )
    found = Comparison(
        models=measured,
        metric=next((score.metric for score in found_scores if score is not None), None),
        rounds=len(next(iter(times.values())).seconds),
        created=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        environment=report.environment(one_device),
    )
    contents = json.dumps(comparison.as_json(found), indent=2) + "\n"
    _store(opened[0], contents)
    print(comparison.text(found))
    if json_path:
        paths.write_output("JSON_PATH", json_path, contents)
    if plot_path:
        paths.write_output("PLOT_PATH", plot_path, plots.png(plots.draw_scores(found)))
    return found


def _numbers(rows: int | str | Sequence[int]) -> tuple[int, ...]:
    if not isinstance(rows, str):
        return (rows,) if isinstance(rows, int) else tuple(rows)
    try:
        return tuple(int(number) for number in rows.split(","))
    except ValueError as error:
        raise UserError(f"ROWS={rows!r}: not numbers separated by commas. Give one or several, such as 1,32") from error


def _check(models: Sequence[str], rows: Sequence[int], **numbers: int) -> None:
    if not models:
        raise UserError("MODELS=(): no model. Give run directories or Hugging Face directories, the dense one first.")
    if repeated := [each for each in models if models.count(each) > 1]:
        raise UserError(f"MODELS={repeated[0]}: given twice. Give each model once.")
    if not rows or len(set(rows)) < len(rows):
        raise UserError(f"ROWS={rows!r}: not different numbers of rows. Give one or several, such as (1, 32).")
    for name, value in [("ROWS", each) for each in rows] + [(f"--{name}", value) for name, value in numbers.items()]:
        if type(value) is not int or value < 1:
            raise UserError(f"{name}={value!r}: not a positive integer. Give 1 or more.")
    for path in models:
        if _is_pattern(path) and not _seeds(path):
            raise UserError(
                f"MODELS={path}: no directory matches. Give a path, or a pattern in its last name, such as "
                "'runs/sst2-seed_*'."
            )
        if not _is_pattern(path) and not _exists(path):
            raise weight_files.not_found("MODELS", path, "a run directory, a checkpoint, or a Hugging Face directory")


def _seeds(model: str) -> list[str]:
    """Returns the directories that match a pattern such as `runs/sst2-seed_*`, or the only directory of a model."""
    if not _is_pattern(model):
        return [model]
    parent, separator, pattern = model.rpartition("/")
    names = fnmatch.filter(paths.listdir(parent or separator or "."), pattern)
    found = [f"{parent}{separator}{name}" for name in names]
    return [path for path in found if not paths.is_file(path)]


def _is_pattern(model: str) -> bool:
    """Returns whether a model has wildcards and is not the name of a directory that has these characters."""
    return any(sign in model for sign in "*?[") and not _exists(model)


def _exists(model: str) -> bool:
    return paths.exists(model.removesuffix("/checkpoints/best"))


def _check_seeds(model: str, runs: Mapping[str, Loaded]) -> None:
    """Raises an error if the directories that match a pattern have different models."""
    shapes = {
        path: {name: (leaf.shape, leaf.dtype) for name, leaf in parameters.named_leaves(loaded.shapes).items()}
        for path, loaded in runs.items()
    }
    first, *others = runs
    for path in others:
        if shapes[path] != shapes[first]:
            raise UserError(
                f"MODELS={model}: {first} and {path} have different parameters. Give a pattern that matches the seeds "
                "of one model."
            )


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Adds the path of a model to the messages of its errors."""
    try:
        yield
    except UserError as error:
        if path in str(error):
            raise
        raise UserError(f"{path}: {error}") from error


def _names(models: Sequence[str]) -> list[str]:
    """Returns the names of directories, of checkpoints `RUN/STEP`, or whole paths if several have the same name."""
    names = []
    for path in models:
        run, separator, step = path.rpartition("/checkpoints/")
        names.append(f"{run.rpartition('/')[2]}/{step}" if separator else path.rpartition("/")[2])
    return names if len(set(names)) == len(names) else list(models)


def _sizes(loaded: Loaded, params: object) -> dict[str, int]:
    stored = parameters.stack(parameters.named_leaves(loaded.shapes))
    return {
        "parameters": parameters.count(loaded.shapes),
        "stored_bytes": weight_sizes.stored_bytes(loaded.checkpoint_path, stored.keys(), averaged=loaded.averaged),
        "held_bytes": prediction.held_bytes(params),
    }


def _how_to_evaluate(path: str, loaded: Loaded) -> str:
    """Returns how to get the score of a model."""
    step = checkpoint_choice.find_step(loaded.checkpoint_path)
    if step is None:
        source = f"--gin.CHECKPOINT_PATH={path} --gin.OUTPUT_DIR={path}/{scores.RESULTS}"
    else:
        source = f"--gin.MODEL_DIR={checkpoint_choice.run_of(path)}"
        if checkpoint_choice.locate(path)[1] is not None:
            source += f" --gin.CHECKPOINT={step}"
    task = "" if has_task(loaded.data) else " --gin.MIXTURE_OR_TASK_NAME=…"
    return f"no evaluation found. Run `t5x_like eval {source}{task}`, and compare again"


def _with_progress(rounds: int) -> Iterator[int]:
    """Yields the numbers of the rounds and shows their progress."""
    with Progress(rounds, noun="rounds") as progress:
        for number in range(rounds):
            yield number
            progress.advance(1, 0)


def _store(first: Loaded, contents: str) -> None:
    """Writes the comparison to the run directory of the first model, which may belong to somebody else."""
    if checkpoint_choice.find_step(first.checkpoint_path) is None:
        logging.info("%s is not a run, so the comparison is not stored with it", first.path)
        return
    file = paths.join(checkpoint_choice.run_of(first.checkpoint_path), comparison.FILE)
    try:
        paths.write_atomic(file, contents)
        logging.info("wrote %s, which `t5x_like report` shows", file)
    except OSError as error:
        logging.warning("the comparison is not stored: %s. Give --json=FILE", error)
