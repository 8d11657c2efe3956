"""The checks of a run, each a function. `train` and `cli.run_checks.check_run` call them in the same order."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from t5x_like import parameters
from t5x_like.checkpoints.checkpointer import Checkpointer
from t5x_like.data import provenance
from t5x_like.errors import UserError
from t5x_like.metrics.best import BestMetric, flatten
from t5x_like.models.base import ModelConfig
from t5x_like.runtime import distributed
from t5x_like.stored import frozen_base, run_tokenizer, run_vocabulary, warm_start
from t5x_like.training import forks, run_feed
from t5x_like.training.early_stopping import EarlyStopping
from t5x_like.training.evaluation import Evaluations
from t5x_like.training.program import Program
from t5x_like.training.recipe import Recipe
from t5x_like.training.runs import run_directory, run_teachers, stored_config
from t5x_like.vocabularies.vocabulary_digest import TextVocabulary

Result = TypeVar("Result")
# The split of the rows of training metrics.
_TRAIN = "train"


class RunCheck(Protocol):
    """Runs a check. A dry run notes a check that is not possible on its machine, and continues with the next."""

    def __call__(self, subject: str, check: Callable[[], Result]) -> Result | None:
        """Returns the result of a check; None if it is not possible here.

        Args:
          subject: What is checked, for messages.
          check: Raises a `UserError` if it is invalid.
        """


def run_check(subject: str, check: Callable[[], Result]) -> Result:
    """Runs a check, all of whose errors are errors of the run."""
    return check()


@dataclasses.dataclass(frozen=True)
class Checked:
    """The results of the checks of a recipe. None stands for a result that a dry run does not have.

    Attributes:
      vocabulary: The vocabulary of the text of the run.
      evaluations: The evaluations of the run.
      starts_from: The path of the pretrained weights, which fit; None for a run without them, or that resumes.
    """

    vocabulary: TextVocabulary | None
    evaluations: Evaluations | None
    starts_from: str | None


def check_settings(recipe: Recipe, run: RunCheck = run_check) -> None:
    """Checks the settings that need neither data nor a mesh.

    Args:
      recipe: The recipe of the run.
      run: Runs a check.

    Raises:
      UserError: A setting is invalid.
    """
    storage = recipe.storage
    run(f"LOGGERS={storage.loggers}", storage.check_loggers)
    storage.check(recipe.periods)
    if storage.local is not None:
        run(f"LOCAL_DIRECTORY={storage.local.directory}", storage.local.check_writable)


def check_recipe(recipe: Recipe, program: Program, run: RunCheck = run_check) -> Checked:
    """Checks the data and the initial weights of a run, before its directory is created.

    Args:
      recipe: The recipe of the run.
      program: Its program, which is traced already.
      run: Runs a check.

    Returns:
      The `Checked`.

    Raises:
      UserError: Data, evaluations, vocabulary or initial weights do not suit the run, or a reference is trained.
    """
    config, partitioner, periods = program.config, program.partitioner, recipe.periods
    run(f"the objective {type(recipe.objective).__name__}", lambda: _check_frozen(recipe, program))
    vocabulary = run(f"the data {recipe.data.name}", lambda: _check_data(recipe, config))

    def open_evaluations() -> Evaluations:
        evaluations = Evaluations(recipe.evaluations or {}, recipe.predicting, config, partitioner)
        _check_evaluations(evaluations.names if periods.evaluate is not None else (), periods.patience)
        return evaluations

    evaluations = run("the evaluation data", open_evaluations)
    model_dir = recipe.storage.model_dir
    resumes = run(f"MODEL_DIR={model_dir}", lambda: run_directory.may_resume(model_dir))
    path = recipe.initial.path
    if recipe.fork and not resumes:
        run(f"FORK={recipe.fork}", lambda: forks.check(recipe, program, vocabulary))
        return Checked(vocabulary, evaluations, recipe.fork)
    if not path or resumes:
        return Checked(vocabulary, evaluations, None)

    def check_initial() -> str:
        for source in recipe.initial.sources:
            warm_start.check(source, program.param_shapes, config, partitioner, recipe.objective)
            if vocabulary is not None:
                run_tokenizer.check_initial(source, vocabulary)
        return path

    return Checked(vocabulary, evaluations, run(f"INITIAL_CHECKPOINT_PATH={path}", check_initial))


def _check_data(recipe: Recipe, config: ModelConfig) -> TextVocabulary:
    data, features = recipe.data, recipe.objective.features
    data.check(features)
    data.check_vocabulary(config.vocab_size)
    return run_tokenizer.of_data(data, features, recipe.vocabulary_path)


def _check_frozen(recipe: Recipe, program: Program) -> None:
    """Checks that no parameter is trained that the objective needs as it was."""
    trained = {parameters.stored_name(name)[0] for name in parameters.named_leaves(program.shapes[0].params)}
    if found := sorted(trained & recipe.objective.frozen_names(program.config)):
        raise UserError(
            f"{type(recipe.objective).__name__}: trains {found[0]!r}, a parameter of its reference model. Freeze it: "
            "give FROZEN='^objective/reference/', or with adapters the file of adapters/ after the recipe."
        )


def check_first_batch(recipe: Recipe, config: ModelConfig) -> None:
    """Checks the first batch of the training data in stored order, as the feed of a run checks each batch.

    Args:
      recipe: The recipe of the run.
      config: The configuration of its model.

    Raises:
      UserError: A token id or a label is too large, or the batch has no targets.
    """
    check = run_feed.BatchCheck(recipe, config.vocab_size)
    for batch in recipe.data.eval_batches(recipe.objective.features, 1, process_index=0, process_count=1):
        check(batch)


def check_stored(
    model_dir: str, recipe: Recipe, vocabulary: TextVocabulary | None, run_config: run_directory.RunConfig | None
) -> None:
    """Checks that a run to resume has the configuration, teachers, vocabulary and frozen base that it started with.

    Args:
      model_dir: The run directory.
      recipe: The recipe of the run.
      vocabulary: The vocabulary of its text; None if it is not known.
      run_config: The resolved configuration; None for a run started from Python.

    Raises:
      UserError: One of them differs or is missing.
    """
    stored_config.check(model_dir, run_config)
    run_teachers.check(model_dir, recipe.teachers, run_config)
    if not run_directory.may_resume(model_dir):
        return
    if vocabulary is not None:
        run_tokenizer.check(model_dir, vocabulary)
        run_vocabulary.check_ids_are_equal(model_dir, recipe.data.vocabulary_kind(recipe.objective.features))
    if (base := frozen_base.of_run(model_dir)) is not None:
        base.check_exists()


def check_data_agreement(
    recipe: Recipe, evaluations: Evaluations, vocabulary: TextVocabulary
) -> dict[str, list[dict[str, Any]]]:
    """Checks that all processes of a run have the same data.

    Args:
      recipe: The recipe of the run.
      evaluations: Its evaluations.
      vocabulary: The vocabulary of its text.

    Returns:
      Split of the metrics, `train` or the name of an evaluation -> the description of its data.

    Raises:
      UserError: They have other data, in every process.
    """
    sources = {"train": recipe.data} | evaluations.sources
    described = {split: provenance.describe(source) for split, source in sources.items()}
    distributed.heartbeat("the other processes, to compare their data")
    provenance.check_agreement(described, vocabulary.digest)
    return described


def check_best_metric(recipe: Recipe, program: Program, evaluations: Evaluations, checkpointer: Checkpointer) -> None:
    """Checks that the metrics of the evaluations can be computed, and that one of them decides which are the best.

    Args:
      recipe: The recipe of the run.
      program: Its program.
      evaluations: Its evaluations.
      checkpointer: The checkpoints of the run, which name the metric.

    Raises:
      UserError: A package of a metric is missing, or no evaluation has the metric.
    """
    periods = recipe.periods
    if not evaluations.names or periods.evaluate is None:
        return
    decides = periods.patience is not None or checkpointer.keep_best
    _check_metrics(evaluations, checkpointer.best_metric if decides else None, program.param_shapes)


def _check_evaluations(names: Sequence[str], patience: int | None) -> None:
    """Checks the evaluations of a run before it starts.

    Args:
      names: The names of the evaluations.
      patience: See `EarlyStopping`.

    Raises:
      UserError: A name is reserved for the training metrics, or the patience is not positive or has no evaluations.
    """
    if _TRAIN in names:
        raise UserError(f"EVALUATIONS: the name {_TRAIN!r} is reserved for the training metrics. Give another name.")
    EarlyStopping(BestMetric(), patience)
    if patience is not None and not names:
        raise UserError(f"PATIENCE={patience}: the run has no evaluation. Set EVALUATIONS and EVAL_PERIOD, or None.")


def _check_metrics(evaluations: Evaluations, best: BestMetric | None, params: Any) -> None:
    """Checks that the metrics can be computed and that one of them is the best metric, before the run starts.

    Args:
      evaluations: The evaluations of a run.
      best: The metric that decides which evaluations are the best, if one does.
      params: Shapes of the parameters.

    Raises:
      UserError: A metric of predictions needs a package that is not installed, or no evaluation has the best metric.
        The latter is not raised if the names of a task's metrics are not yet known.
    """
    of_tasks = evaluations.task_metric_names()
    if best is not None and of_tasks is not None:
        names = evaluations.metric_names(params)
        best.value(flatten({name: each | of_tasks[name] for name, each in names.items()}))
