"""`--dry_run`: checks and describes a command as far as possible on this machine, without computing or writing."""

import glob
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from t5x_like import ablate, cache_logits, config, infer, paths
from t5x_like import cache as caching
from t5x_like import eval as evaluation
from t5x_like.adapters import quantization
from t5x_like.cli import execute, run_checks
from t5x_like.cli.arguments import ELSEWHERE, Arguments
from t5x_like.cli.checklist import Checklist
from t5x_like.cli.commands import Command
from t5x_like.cli.path_checks import check_paths
from t5x_like.inference.loaded import Loaded
from t5x_like.inference.predictors import make_examples, predictor_for
from t5x_like.inference.records import STANDARD, read
from t5x_like.loading import open_teacher
from t5x_like.models import build
from t5x_like.models.base import for_platform
from t5x_like.partitioning import Partitioner
from t5x_like.runtime import protocol
from t5x_like.training import warm_start
from t5x_like.training.checkpoints import checkpoint_choice
from t5x_like.training.evaluation import Evaluation
from t5x_like.training.weight_source import InitialWeights

# Arguments of a command, or settings of its recipe, with paths that it writes and reads; the former with their macro.
WRITTEN = {name: name.upper() for name in ("model_dir", "output_dir", "output_path", "cache_dir", "json_path")} | {
    "logits_dir": "TEACHER_LOGITS"
}
READ = ("initial_checkpoint_path", "checkpoint_path", "input_path")
# Files of TPUs and GPUs, which a dry run does not open: another process may use them.
_ACCELERATORS = ("/dev/accel*", "/dev/vfio/[0-9]*", "/dev/nvidia[0-9]*")


def dry_run(command: Command, arguments: Arguments) -> int:
    """Checks and describes a command.

    Args:
      command: The command.
      arguments: The parsed command line.

    Returns:
      The exit code: 0, or `protocol.NOT_CHECKED` if some checks were not possible here.

    Raises:
      UserError: The command would fail before its first batch.
    """
    checklist = Checklist(elsewhere=arguments.dry_run == ELSEWHERE, knows_devices=arguments.cpu_devices is not None)
    has_accelerators = any(map(glob.glob, _ACCELERATORS))
    if command.multi_process and arguments.cpu_devices is None and (checklist.elsewhere or has_accelerators):
        checklist.skip("the mesh", "the devices of the command are not used. Give their number with --cpu_devices=N")
    if (resolved := _resolve(command, arguments, checklist)) is not None:
        for line in _describe(command, arguments, resolved, checklist):
            print(f"  {line}")
    for line in checklist.lines():
        print(line)
    print("dry run: nothing was computed or written")
    return protocol.NOT_CHECKED if checklist.unchecked else protocol.SUCCESS


def _resolve(command: Command, arguments: Arguments, checklist: Checklist) -> config.Resolved | None:
    """Returns the configuration of a command after a check of its paths; None if it cannot be read here."""
    macros = execute.given_macros(arguments)
    _check_paths(command, macros, checklist)
    run = None
    if command.needs_run and not arguments.gin_files:
        names = [name for name in ("MODEL_DIR", "CHECKPOINT_PATH") if macros.get(name)]
        subject = " and ".join(f"{name}={macros[name]}" for name in names)
        run = checklist.run(subject, lambda: execute.find_run(arguments))
        if run is None and subject in checklist.unchecked:
            return None
    resolved = checklist.run("the configuration", lambda: execute.resolve(arguments, run))
    if resolved is not None:
        _check_paths(command, resolved.macros, checklist)
    return resolved


def _check_paths(command: Command, macros: Mapping[str, Any], checklist: Checklist) -> None:
    for name in command.paths:
        subject = f"{name}={macros.get(name)}"
        checklist.run(subject, lambda name=name: check_paths([name], macros, command.files))


def _describe(command: Command, arguments: Arguments, resolved: config.Resolved, checklist: Checklist) -> Iterator[str]:
    """Checks a command, and yields lines about it."""
    if command.function == "t5x_like.ablate.ablate":
        grid = checklist.run(
            "the configuration", lambda: config.arguments(resolved.configured(), without=("metric", "title"))
        )
        if grid is not None:
            yield from _check_ablation(grid, checklist)
        return
    given = checklist.run("the configuration", lambda: config.arguments(resolved.configured()))
    if given is None:
        return
    recipe = given.get("recipe")
    if recipe is not None and command.trains:
        run_config = execute.given_arguments(command, arguments, resolved)["run_config"]
        yield from run_checks.check_run(recipe, checklist, run_config)
        given |= {"model_dir": recipe.storage.model_dir, "initial_checkpoint_path": recipe.initial.path}
    elif recipe is not None:
        if (program := run_checks.trace_program(recipe, checklist)) is not None:
            yield from run_checks.describe_program(program, recipe)
    else:
        yield from _CHECKS.get(command.function, _check_loaded)(given, checklist)
        if (loaded := given.get("loaded")) is not None:
            given |= {"checkpoint_path": loaded.path}
    yield from _paths(given, checklist)
    partitioner = getattr(given.get("loaded") or recipe, "partitioner", None) or given.get("partitioner")
    if "the mesh" not in checklist.unchecked:
        mesh = checklist.run("the mesh", lambda: _mesh(partitioner), opens_store=False)
        if mesh is not None:
            yield f"mesh: {mesh}"


def _check_ablation(given: Mapping[str, Any], checklist: Checklist) -> Iterator[str]:
    trained = set()
    for row, column, seed, directory, cell in ablate.resolve_cells(**given):
        yield f"{row}, {column}:" if seed is None else f"{row}, {column}, seed {seed}:"
        recipe = checklist.run("the configuration", lambda cell=cell: config.arguments(cell.configured())["recipe"])
        if recipe is None:
            continue
        yield from (f"  {line}" for line in run_checks.check_cell(recipe, directory, trained, checklist, cell.text))
        trained.add(directory)


def _check_loaded(given: Mapping[str, Any], checklist: Checklist) -> Iterator[str]:
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
    yield f"model: {type(loaded.config).__name__}, {quantization.count(params):,} parameters"

    def check() -> str:
        path = checkpoint_choice.choose(loaded.path, loaded.checkpoint, several=True)[0]
        source = InitialWeights(path=path, network=loaded.network, averaged=loaded.averaged)
        warm_start.check(source, params, here, one)
        return path

    if loaded.checkpoint != evaluation.WATCH:
        path = checklist.run(f"CHECKPOINT_PATH={loaded.path}", check)
        if path is not None:
            yield f"weights: {path} fits"


def _check_eval(given: Mapping[str, Any], checklist: Checklist) -> Iterator[str]:
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


def _check_infer(given: Mapping[str, Any], checklist: Checklist) -> Iterator[str]:
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


def _check_cache(given: Mapping[str, Any], checklist: Checklist) -> Iterator[str]:
    settings = {name: value for name, value in given.items() if name != "console"}
    plans = checklist.run("the data", lambda: caching.make_plans(**settings))
    for name, plan in plans[0].items() if plans is not None else ():
        yield from run_checks.describe_data(name, plan.source, given["objective"], checklist)


def _check_cache_logits(given: Mapping[str, Any], checklist: Checklist) -> Iterator[str]:
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


_CHECKS: Mapping[str, Callable[[Mapping[str, Any], Checklist], Iterator[str]]] = {
    "t5x_like.eval.evaluate": _check_eval,
    "t5x_like.infer.infer": _check_infer,
    "t5x_like.cache.cache": _check_cache,
    "t5x_like.cache_logits.cache_logits": _check_cache_logits,
}


def _paths(given: Mapping[str, Any], checklist: Checklist) -> Iterator[str]:
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
