"""The checks of `--dry_run` by command; `cli.commands` names the one of each.

Each check gets the arguments with which the command would be called, and yields lines that describe it.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from t5x_like import ablate, cache_logits, config, infer, parameters, paths
from t5x_like import cache as caching
from t5x_like import eval as evaluation
from t5x_like.checkpoints import checkpoint_choice
from t5x_like.cli import run_checks
from t5x_like.cli.checklist import Checklist
from t5x_like.inference.predictors import make_examples, predictor_for
from t5x_like.inference.records import STANDARD, read
from t5x_like.loading import open_teacher
from t5x_like.models import build
from t5x_like.models.base import for_platform
from t5x_like.partitioning import Partitioner
from t5x_like.stored import warm_start
from t5x_like.stored.loaded import Loaded
from t5x_like.stored.weight_source import InitialWeights
from t5x_like.training.evaluation import Evaluation

# Arguments of a command, or settings of its recipe, with paths that it writes and reads; the former with their macro.
WRITTEN = {name: name.upper() for name in ("model_dir", "output_dir", "output_path", "cache_dir", "json_path")} | {
    "logits_dir": "TEACHER_LOGITS"
}
READ = ("initial_checkpoint_path", "checkpoint_path", "input_path")

Check = Callable[[dict[str, Any], Checklist], Iterator[str]]


def _with_resources(check: Check) -> Check:
    """Adds the paths and the mesh of a command to its check."""

    @functools.wraps(check)
    def complete(given: dict[str, Any], checklist: Checklist) -> Iterator[str]:
        yield from check(given, checklist)
        yield from _resources(given, checklist)

    return complete


def check_training(given: dict[str, Any], checklist: Checklist) -> Iterator[str]:
    """Checks a run that is trained."""
    recipe = given["recipe"]
    yield from run_checks.check_run(recipe, checklist, given["run_config"])
    read_and_written = {"model_dir": recipe.storage.model_dir, "initial_checkpoint_path": recipe.initial.path}
    yield from _resources({**given, **read_and_written}, checklist)


@_with_resources
def check_program(given: dict[str, Any], checklist: Checklist) -> Iterator[str]:
    """Checks the training step of a run."""
    if (program := run_checks.trace_program(given["recipe"], checklist)) is not None:
        yield from run_checks.describe_program(program, given["recipe"])


def check_ablation(given: dict[str, Any], checklist: Checklist) -> Iterator[str]:
    """Checks the runs of a grid."""
    trained = set()
    grid = {name: value for name, value in given.items() if name not in ("metric", "title")}
    for row, column, seed, directory, cell in ablate.resolve_cells(**grid):
        yield f"{row}, {column}:" if seed is None else f"{row}, {column}, seed {seed}:"
        recipe = checklist.run("the configuration", lambda cell=cell: config.arguments(cell.configured())["recipe"])
        if recipe is None:
            continue
        yield from (f"  {line}" for line in run_checks.check_cell(recipe, directory, trained, checklist, cell.text))
        trained.add(directory)


@_with_resources
def check_loaded(given: dict[str, Any], checklist: Checklist) -> Iterator[str]:
    """Checks the model of a command, and the data that it reads."""
    loaded, source = given.get("loaded"), given.get("data")
    if loaded is None:
        return
    yield from _check_model(loaded, checklist)
    if source is not None and loaded.objective is not None:

        def check() -> bool:
            source.check(loaded.objective.features)
            source.check_vocabulary(loaded.config.vocab_size)
            loaded.check_vocabulary(source)
            return True

        if checklist.run(f"the data {source.name}", check):
            yield from run_checks.describe_data("data", source, loaded.objective, checklist)


def _check_model(loaded: Loaded, checklist: Checklist) -> Iterator[str]:
    """Checks that the checkpoint exists and has the tensors of the model."""
    here = for_platform(loaded.config, "cpu")
    one = Partitioner(devices=jax.devices()[:1])
    params = {"model": build.shapes(here, one)}
    yield f"model: {type(loaded.config).__name__}, {parameters.count(params):,} parameters"

    def check() -> str:
        path = checkpoint_choice.choose(loaded.path, loaded.checkpoint, several=True)[0]
        source = InitialWeights(path=path, network=loaded.network, averaged=loaded.averaged)
        warm_start.check(source, params, here, one)
        return path

    if loaded.checkpoint != evaluation.WATCH:
        path = checklist.run(f"CHECKPOINT_PATH={loaded.path}", check)
        if path is not None:
            yield f"weights: {path} fits"


@_with_resources
def check_eval(given: dict[str, Any], checklist: Checklist) -> Iterator[str]:
    """Checks a model, and the data on which it is evaluated."""
    loaded = given["loaded"]
    yield from _check_model(loaded, checklist)
    data = Evaluation(
        data=given["data"],
        splits=given.get("splits"),
        batches=given.get("eval_steps"),
        task_metrics=given.get("task_metrics"),
        num_examples=given.get("num_examples"),
        decoding=loaded.decoding,
        per_task=True,
    )
    evaluations = checklist.run(
        "the evaluation data",
        lambda: evaluation.open_evaluations(loaded, data, output_dir=given.get("output_dir")),
    )
    if evaluations is None:
        return
    checklist.run("the evaluation step", lambda: evaluations.metric_names(loaded.shapes))
    for name, source in evaluations.sources.items():
        yield from run_checks.describe_data(name or "data", source, loaded.objective, checklist)


@_with_resources
def check_infer(given: dict[str, Any], checklist: Checklist) -> Iterator[str]:
    """Checks a model, and the records from which it predicts."""
    loaded, path = given["loaded"], given.get("input_path")
    yield from _check_model(loaded, checklist)
    names = ("input_path", "output_path", "overwrite", "interactive", "mode")
    names += ("eos_id", "score_eos", "per_position", "separator")
    settings = {name: given[name] for name in names if name in given}
    options = checklist.run("the settings", lambda: infer.check_settings(loaded, **settings))
    if loaded.tokenizer is not None:
        yield f"data: text with the vocabulary of the run, {loaded.tokenizer.vocab_size:,} token ids"
    if options is None or path in (None, STANDARD):
        return
    predictor = checklist.run("the predictions", lambda: predictor_for(loaded, options))
    if predictor is not None:
        checklist.run(f"INPUT_PATH={path}", lambda: make_examples(loaded, predictor, path, read(path)))


@_with_resources
def check_cache(given: dict[str, Any], checklist: Checklist) -> Iterator[str]:
    """Checks the data of a cache."""
    settings = {name: value for name, value in given.items() if name != "console"}
    plans = checklist.run("the data", lambda: caching.make_plans(**settings))
    for name, plan in plans[0].items() if plans is not None else ():
        yield from run_checks.describe_data(name, plan.source, given["objective"], checklist)


@_with_resources
def check_cache_logits(given: dict[str, Any], checklist: Checklist) -> Iterator[str]:
    """Checks a teacher, and the cache that it reads."""
    names = ("cache_dir", "logits_dir", "k", "dtype", "temperature", "batch_size")
    cache_logits.check_settings(*(given[name] for name in names))
    teacher = checklist.run("the teacher", lambda: open_teacher(given["teacher"], given.get("objective")))
    if teacher is None:
        return
    yield f"teacher {teacher}"
    found = checklist.run("the cache", lambda: cache_logits.find_sources(given["cache_dir"], given["splits"]))
    for source in (found or {}).values():
        checklist.run("the cache", lambda source=source: cache_logits.check_cache(source, teacher))
        yield from run_checks.describe_data(source.split, source, teacher.objective, checklist)


def _resources(given: dict[str, Any], checklist: Checklist) -> Iterator[str]:
    """Yields the paths and the mesh of a command."""
    owner = given.get("loaded") or given.get("recipe")
    yield from _paths(given | ({} if given.get("loaded") is None else {"checkpoint_path": owner.path}), checklist)
    partitioner = getattr(owner, "partitioner", None) or given.get("partitioner")
    if "the mesh" not in checklist.unchecked:
        mesh = checklist.run("the mesh", lambda: _mesh(partitioner), opens_store=False)
        if mesh is not None:
            yield f"mesh: {mesh}"


def _paths(given: dict[str, Any], checklist: Checklist) -> Iterator[str]:
    """Yields the paths that a command reads and writes."""
    for name in READ:
        if given.get(name):
            yield f"reads {name}={given[name]}"
    for name, setting in WRITTEN.items():
        path = given.get(name)
        if not isinstance(path, str):
            continue
        if not paths.is_local(path):
            checklist.skip(f"writing to {setting}={path}", "a dry run writes nothing")
        yield f"writes {name}={path}{_resumes(path) if name == 'model_dir' else ''}"


def _resumes(path: str) -> str:
    """Describes the contents of a run directory."""
    if not paths.is_local(path):
        return ""
    steps = [int(step) for step in paths.listdir(paths.join(path, "checkpoints")) if step.isdigit()]
    return f" (resumes after step {max(steps)})" if steps else ""


def _mesh(partitioner: Partitioner | None) -> str:
    """Describes the mesh on the devices of this machine."""
    if partitioner is None:
        return "all devices"
    sizes = {axis: size for axis, size in partitioner.in_one_slice().mesh.shape.items() if size > 1}
    return f"rules {partitioner.rules_name}, {sizes or 'one device'} on this machine"
