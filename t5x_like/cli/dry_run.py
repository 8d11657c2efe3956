"""`--dry_run`: checks and describes a command as far as possible on this machine, without computing or writing."""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from t5x_like import ablate, config, partitioning, paths
from t5x_like.adapters import quantization
from t5x_like.cli.commands import Command
from t5x_like.data.source import DataSource
from t5x_like.inference.codec import has_task
from t5x_like.inference.predictors import predicts_text
from t5x_like.mesh import DeviceMismatchError
from t5x_like.models import build
from t5x_like.models.base import ModelConfig, for_platform
from t5x_like.objectives.base import Objective
from t5x_like.training import export_note, warm_start, weight_files
from t5x_like.training.evaluation import Evaluation
from t5x_like.training.recipe import Recipe
from t5x_like.training.runs import run_directory, run_tokenizer, run_vocabulary
from t5x_like.training.weight_source import InitialWeights

# After this time without an answer, a store is reported as not checked.
ANSWER_SECONDS = 30.0
# Arguments of a command, or settings of its recipe, with paths that it writes and reads.
WRITTEN = ("model_dir", "output_dir", "output_path", "cache_dir")
READ = ("initial_checkpoint_path", "checkpoint_path", "input_path")


def dry_run(command: Command, resolved: config.Resolved) -> None:
    """Prints a description of a command.

    Args:
      command: The command.
      resolved: Its configuration.

    Raises:
      UserError: The command would fail before its first batch.
    """
    function = resolved.configured()
    if command.function == "t5x_like.ablate.ablate":
        cells = ablate.resolve_cells(**config.arguments(function, without=("metric", "title")))
        trained = set()
        for row, column, seed, directory, cell in cells:
            print(f"{row}, {column}:" if seed is None else f"{row}, {column}, seed {seed}:")
            arguments = _arguments(cell.configured()) | {"model_dir": directory}
            if (path := arguments["initial_checkpoint_path"]) in trained:
                print(f"  initial weights: of {path}, which is trained first")
                arguments |= {"initial": None, "initial_checkpoint_path": None}
            _print(describe(arguments))
            trained.add(directory)
    else:
        arguments = _arguments(function)
        _print(describe(arguments))
        print(f"  mesh: {_mesh(arguments.get('partitioner'))}")
    print("dry run: nothing was computed or written")


def _arguments(function: Callable) -> dict[str, Any]:
    """Returns the arguments of a command, with the parts of a recipe or of an opened model in its place."""
    arguments = config.arguments(function)
    if (loaded := arguments.get("loaded")) is not None:
        names = ("objective", "data", "partitioner")
        of_model = {"model": loaded.config, "checkpoint_path": loaded.path}
        return of_model | {name: getattr(loaded, name) for name in names} | arguments
    if (recipe := arguments.pop("recipe", None)) is None:
        return arguments
    recipe.storage.check(recipe.periods)
    found = _with_timeout(lambda: run_vocabulary.with_copy(recipe))
    recipe = found if isinstance(found, Recipe) else recipe  # MODEL_DIR could not be read
    return arguments | {
        **{field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)},
        "model_dir": recipe.storage.model_dir,
        "initial_checkpoint_path": recipe.initial.path,
        "total_steps": recipe.periods.total,
    }


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        print(f"  {line}")


def describe(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Describes the model, the data sources and the paths of a command.

    Args:
      arguments: Arguments of the command by name.

    Yields:
      Lines of text.

    Raises:
      UserError: The command would fail before its first batch.
    """
    model, objective = arguments.get("model"), arguments.get("objective")
    if model is not None:
        yield f"model: {type(model).__name__}, {_parameters(model, objective)}"
        trains = objective is not None and "total_steps" in arguments
        if trains and (export := export_note.describe(for_platform(model, "cpu"), objective)) is not None:
            yield f"export: {export[0]}"
    for name, teacher in (arguments.get("teachers") or {}).items():
        yield f"teacher {name}: {teacher}"
    vocabulary = _vocabulary_of_run(arguments)
    for name, source in _sources(arguments):
        if vocabulary is not None:
            yield f"{name}: text with the vocabulary of the run, {vocabulary.vocab_size:,} token ids"
        elif "input_path" in arguments and not has_task(source):
            if source.vocabulary_path:
                yield f"{name}: text with the vocabulary {source.vocabulary_path}"
        elif objective is not None:
            yield f"{name}: {_data(source, arguments).removeprefix('data: ')}"
            shapes, dtypes = source.batch_shapes(objective.features), objective.features.dtypes
            yield from (f"  {feature} {list(shape)} {dtypes[feature]}" for feature, shape in shapes.items())
    if model is not None and (initial := _initial_weights(model, arguments)) is not None:
        yield f"initial weights: {initial}"
    if model is not None and (weights := _weights(model, arguments.get("checkpoint_path"))) is not None:
        yield f"weights: {weights}"
    if arguments.get("total_steps") is not None:
        yield f"steps: {arguments['total_steps']:,}"
    for name in READ:
        if arguments.get(name):
            yield f"reads {name}={arguments[name]}{_reachable(arguments[name])}"
    for name in WRITTEN:
        if arguments.get(name):
            yield f"writes {name}={arguments[name]}{_existing(name, arguments[name])}"


def _sources(arguments: Mapping[str, Any]) -> Iterator[tuple[str, DataSource]]:
    """Yields name and source of the training data and of all evaluation data."""
    splits = arguments.get("splits")
    for name in ("data", "eval_data"):
        if (source := arguments.get(name)) is not None:
            evaluation = Evaluation(data=source, splits=splits or getattr(source, "split", None))
            yield from ((name, each.data) for each in evaluation.per_split().values())
    for name, evaluation in (arguments.get("evaluations") or {}).items():
        if evaluation.data is not None:
            yield from (("/".join(filter(None, (name, at))), each.data) for at, each in evaluation.per_split().items())


def _vocabulary_of_run(arguments: Mapping[str, Any]) -> Any:
    """Returns the vocabulary with which `infer` encodes text, or None if a task makes the examples."""
    if "input_path" not in arguments or not predicts_text(arguments["loaded"].features):
        return None
    return arguments["loaded"].tokenizer


def _parameters(model: ModelConfig, objective: Objective | None) -> str:
    config_here = for_platform(model, "cpu")
    if objective is None:
        return f"{quantization.count(build.shapes(config_here)):,} parameters"
    shapes = build.params_shapes(config_here, objective)
    heads = f"heads of {type(objective).__name__} {quantization.count(shapes['objective']):,}"
    return f"{quantization.count(shapes['model']):,} parameters, {heads}"


def _initial_weights(model: ModelConfig, arguments: Mapping[str, Any]) -> str | None:
    """Checks that the initial weights and their layers fit the model, unless the run resumes."""
    source = arguments.get("initial")
    if source is None or source.path is None:
        return None

    def check() -> str | None:
        if run_directory.may_resume(arguments.get("model_dir")):
            return None
        fit = _fit(source, model, arguments["objective"])
        run_tokenizer.check_initial(source, arguments["data"].text_vocabulary(arguments["objective"].features))
        return fit

    return _with_timeout(check)


def _weights(model: ModelConfig, path: str | None) -> str | None:
    """Checks that the weights of other libraries that a command reads fit the model."""

    def check() -> str | None:
        is_other = weight_files.is_huggingface(path) or weight_files.find_t5x(path) is not None
        return _fit(InitialWeights(path=path), model) if is_other else None

    return _with_timeout(check) if path else None


def _fit(source: InitialWeights, model: ModelConfig, objective: Objective | None = None) -> str:
    """Checks that weights fit the model, or a network of the objective."""
    here, partitioner = for_platform(model, "cpu"), partitioning.Partitioner(devices=jax.devices()[:1])
    if source.target is None:
        params = {"model": build.shapes(here, partitioner)}
    else:
        params = build.params_shapes(here, objective, partitioner)
    warm_start.check(source, params, here, partitioner, objective)
    return f"{source.path} fits"


def _data(source: DataSource, arguments: Mapping[str, Any]) -> str:
    """Checks a data source, and describes it."""
    model, objective = arguments.get("model"), arguments["objective"]

    def check() -> str:
        source.check(objective.features)
        if model is not None:
            source.check_vocabulary(model.vocab_size)
        if (loaded := arguments.get("loaded")) is not None:
            loaded.check_vocabulary(source)
        return source.describe()[0]

    return _with_timeout(check)


def _with_timeout(check: Callable[[], Any]) -> Any:
    """Runs a check and returns its result, or why it is not possible: an unreachable store is not an error."""
    found: list[Any] = []

    def run():
        try:
            found.append(check())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if not found:
        return f"not checked: no answer within {ANSWER_SECONDS:.0f} s"
    if isinstance(found[0], Exception):
        if "://" not in str(found[0]) and not isinstance(found[0], ConnectionError | TimeoutError):
            raise found[0]
        return f"not checked: {str(found[0]).splitlines()[0]}"
    return found[0]


def _reachable(path: str) -> str:
    if paths.is_local(path):
        return ""

    def check() -> str:
        if not paths.exists(path):
            raise FileNotFoundError(f"{path} not found from here")
        return "found"

    try:
        return f" ({_with_timeout(check)})"
    except (ImportError, OSError) as error:
        return f" (not checked: {error})"


def _existing(name: str, path: str) -> str:
    """Describes the contents of a run directory."""
    if not paths.is_local(path):
        return " (not checked)"
    if name != "model_dir":
        return ""
    steps = [int(step) for step in paths.listdir(paths.join(path, "checkpoints")) if step.isdigit()]
    return f" (resumes after step {max(steps)})" if steps else ""


def _mesh(partitioner: partitioning.Partitioner | None) -> str:
    """Describes the mesh on the devices of this machine. The mesh of a TPU slice cannot be created here."""
    if partitioner is None:
        return "all devices"
    try:
        sizes = {axis: size for axis, size in partitioner.mesh.shape.items() if size > 1}
    except DeviceMismatchError as error:
        devices = f"{jax.device_count()} {jax.default_backend()} device(s)"
        return f"not checked on the {devices} of this machine: {str(error).splitlines()[0]}"
    return f"rules {partitioner.rules_name}, {sizes or 'one device'} on this machine"
