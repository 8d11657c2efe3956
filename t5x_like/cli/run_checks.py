"""The dry run of a recipe: the checks of `training.checks`, which `train` runs as well, and a description."""

import dataclasses
from collections.abc import Collection, Iterator

import jax

from t5x_like import parameters, paths
from t5x_like.cli.checklist import Checklist
from t5x_like.data.source import DataSource
from t5x_like.distillation import names
from t5x_like.models.base import for_platform
from t5x_like.objectives.base import Objective
from t5x_like.partitioning import Partitioner
from t5x_like.training import checks, export_note
from t5x_like.training.program import Program, make_program
from t5x_like.training.recipe import Recipe
from t5x_like.training.runs import recipe_vocabulary, run_directory

# Stands for the run directory of a run without one, or with one in a bucket, which is not opened for its settings.
_NEW_RUN = "runs/1"


def check_run(recipe: Recipe, checklist: Checklist, run_config: run_directory.RunConfig | None = None) -> Iterator[str]:
    """Checks and describes a training run.

    Args:
      recipe: The recipe of the run.
      checklist: Runs the checks.
      run_config: The resolved configuration of the run.

    Yields:
      Lines of text.

    Raises:
      UserError: The run would fail before its first step.
    """
    model_dir = recipe.storage.model_dir
    recipe = checklist.run(f"MODEL_DIR={model_dir}", lambda: recipe_vocabulary.with_copy(recipe)) or recipe
    checks.check_settings(recipe, checklist.run)
    if (program := trace_program(recipe, checklist)) is None:
        return
    yield from describe_program(program, recipe)
    if (export := export_note.describe(for_platform(recipe.model, "cpu"), recipe.predicting)) is not None:
        yield f"export: {export[0]}"
    checked = checks.check_recipe(recipe, program, checklist.run)
    vocabulary, evaluations = checked.vocabulary, checked.evaluations
    if vocabulary is not None:
        subject = f"the first batch of {recipe.data.name}"
        checklist.run(subject, lambda: checks.check_first_batch(recipe, program.config))
        yield from describe_data("data", recipe.data, recipe.objective, checklist)
    if evaluations is not None:
        for name, source in evaluations.sources.items():
            yield from describe_data(name, source, recipe.predicting, checklist)
    if checked.starts_from:
        yield f"initial weights: {checked.starts_from} fits"
    if model_dir:
        subject = f"MODEL_DIR={model_dir}"
        checklist.run(subject, lambda: checks.check_stored(model_dir, recipe, vocabulary, run_config))
    if evaluations is not None:

        def check_best() -> None:
            is_local = bool(model_dir) and paths.is_local(model_dir)
            directory = paths.join(model_dir if is_local else _NEW_RUN, "checkpoints")
            with run_directory.closing(recipe.storage.checkpoints(directory, read_only=True)) as checkpointer:
                checks.check_best_metric(recipe, program, evaluations, checkpointer)

        checklist.run("the metrics of the evaluations", check_best)
    yield f"steps: {recipe.periods.total:,}"


def check_cell(
    recipe: Recipe, directory: str, trained: Collection[str], checklist: Checklist, text: str
) -> Iterator[str]:
    """Checks and describes a run of an ablation.

    Args:
      recipe: The recipe of the run.
      directory: Its run directory.
      trained: The run directories of the runs before it.
      checklist: Runs the checks.
      text: The configuration of the run.

    Yields:
      Lines of text.
    """
    if (path := recipe.initial.path) in trained:
        yield f"initial weights: of {path}, which is trained first"
        recipe = dataclasses.replace(recipe, initial=dataclasses.replace(recipe.initial, path=None))
    storage = dataclasses.replace(recipe.storage, model_dir=directory)
    run_config = run_directory.RunConfig(text)
    yield from check_run(dataclasses.replace(recipe, storage=storage), checklist, run_config)


def trace_program(recipe: Recipe, checklist: Checklist) -> Program | None:
    """Makes and traces the program of a run, on the fake devices of a dry run; None if that is not possible.

    If the mesh does not fit the devices of this machine, the program of one device is checked.
    """
    model, update = recipe.model, recipe.update
    if update.compiler_options:
        checklist.skip("the XLA options", "only the compiler for the devices of the run knows them")
    if getattr(model, "scan_layers", False) is None:
        model = dataclasses.replace(model, scan_layers=True)  # as on TPUs; a scan is traced in less time
    recipe = dataclasses.replace(recipe, model=model, update=dataclasses.replace(update, compiler_options={}))
    given = recipe.partitioner or Partitioner()
    one = Partitioner(rules=given.rules, devices=jax.devices()[:1], attention=given.attention)
    for partitioner in _meshes(given, checklist) or (one,):
        of_mesh = dataclasses.replace(recipe, partitioner=partitioner)
        program = checklist.run("the training step", lambda recipe=of_mesh: make_program(recipe), opens_store=False)
        if program is not None:
            checklist.run("the training step", program.trace, opens_store=False)
            return program
    return None


def _meshes(given: Partitioner, checklist: Checklist) -> tuple[Partitioner, ...]:
    """Returns the partitioner whose mesh fits the devices of this machine, if one does."""
    here = given.in_one_slice() if len(jax.devices()) > 1 else given
    return () if checklist.run("the mesh", lambda: here.mesh) is None else (here,)


def describe_program(program: Program, recipe: Recipe) -> Iterator[str]:
    """Yields lines about the model, its heads and its teachers."""
    count, heads = (parameters.count(program.param_shapes[name]) for name in ("model", "objective"))
    yield (
        f"model: {type(program.config).__name__}, {count:,} parameters, heads of "
        f"{type(recipe.objective).__name__} {heads:,}"
    )
    for name, teacher in recipe.teachers.items():
        yield f"{names.label(name)}: {teacher}"


def describe_data(name: str, source: DataSource, objective: Objective, checklist: Checklist) -> Iterator[str]:
    """Yields lines about a data source, its batches, and what is wrong with its text."""
    subject, spec = f"the data {source.name}", objective.features
    if (lines := checklist.run(subject, source.describe)) is None:
        return
    yield f"{name}: {lines[0].removeprefix('data: ')}"
    yield from (
        f"  {feature} {list(shape)} {spec.dtypes[feature]}" for feature, shape in source.batch_shapes(spec).items()
    )
    problems = checklist.run(subject, lambda: source.text_problems(spec))
    yield from (f"  warning: {problem}" for problem in problems or ())
