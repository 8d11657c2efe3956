"""Opens models by their paths: `open_model` for commands and Python, `open_teacher` for a distillation."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import config, interop, parameters, paths
from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.cli import derivations
from t5x_like.config import description
from t5x_like.data.choices import choices_of
from t5x_like.data.source import DataSource
from t5x_like.decoding.settings import Decoding
from t5x_like.distillation.teachers import Teacher
from t5x_like.errors import UserError
from t5x_like.inference.open_model import OpenModel
from t5x_like.inference.prompt_bank import PromptBank
from t5x_like.models import build
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import MODEL
from t5x_like.objectives.base import Objective
from t5x_like.partitioning import Partitioner
from t5x_like.runtime import run_files
from t5x_like.stored import run_tokenizer, weight_source
from t5x_like.stored.loaded_teachers import LoadedTeacher
from t5x_like.stored.network_weights import RunModel

# Its settings describe a model for all commands that read weights.
_GIN_FILE = "commands/infer.gin"
_ROOT = f"{__name__}.open_model"
_GIN = ".gin"


def open_model(
    path: str,
    *,
    checkpoint: str | int = checkpoint_choice.LATEST,
    network: str | None = None,
    model: ModelConfig | None = None,
    objective: Objective | None = None,
    data: DataSource | None = None,
    task_feature_lengths: Mapping[str, int] | None = None,
    decoding: Decoding | None = None,
    other_vocabulary: bool = False,
    averaged: bool = True,
    partitioner: Partitioner | None = None,
    prompts: Mapping[str, str] | None = None,
) -> OpenModel:
    """Opens the model at a path. Its parameters are read when they are first used.

    Without `model`, the configuration at the path describes everything that is not given, as for `t5x_like infer`:
    config.gin of a run, or config.json and the tokenizer of a Hugging Face directory.

    Args:
      path: A run directory, one of its checkpoints, a Hugging Face directory, or a T5X checkpoint.
      checkpoint: Which checkpoint of a run: `latest`, `best` (by its evaluation), or a step; for `evaluate` also `all`
        or `watch`.
      network: Name of a network of a run, such as `generator`, to open with what it predicts by itself; None for the
        model. `model` and `objective` are those of the run.
      model: Configuration of the model; None for that at the path. A T5X checkpoint does not describe it.
      objective: What the model predicts. With `model`, None stands for sequence-to-sequence generation.
      data: The task whose preprocessors and vocabularies encode text, or a source with only a vocabulary. Token ids do
        not need it.
      task_feature_lengths: Maximum lengths of the task features, such as `inputs` and `targets`, in tokens; by default
        those of `data`. Longer sequences are truncated, with a warning.
      decoding: How text is generated. With `model`, the default is greedy.
      other_vocabulary: Whether data may have another vocabulary than that of the model. This is an error otherwise.
      averaged: Whether to read the averages of the parameters of a run with EMA_DECAY, and not its parameters.
      partitioner: Device mesh and sharding rules; all devices by default.
      prompts: Name of a prompt -> the run that trained it. The field `task` of a record names the prompt that its row
        reads. None: the prompt of the model, if it has one.

    Returns:
      The opened model.

    Raises:
      UserError: The path does not describe a model, or the run does not have the network.
    """
    given = {
        "model": model,
        "objective": objective,
        "data": data,
        "task_feature_lengths": task_feature_lengths,
        "decoding": decoding,
        "partitioner": partitioner,
    }
    if model is None:
        given = _described(path) | {name: value for name, value in given.items() if value is not None}
    network = None if network == MODEL else network
    if network is not None:
        run = RunModel.read(path) if given["objective"] is None else RunModel(given["model"], given["objective"])
        found = run.network(network, path)
        given |= {"model": found.model, "objective": found.objective}
    data, lengths = given["data"], given["task_feature_lengths"]
    return OpenModel(
        path=path,
        checkpoint=checkpoint,
        network=network,
        config=given["model"],
        objective=given["objective"],
        data=data,
        task_feature_lengths=dict(lengths or getattr(data, "task_feature_lengths", None) or {}),
        decoding=given["decoding"] or Decoding(),
        other_vocabulary=other_vocabulary,
        averaged=averaged,
        partitioner=given["partitioner"] or Partitioner(),
        prompts=PromptBank(prompts) if prompts else None,
    )


def _described(path: str) -> dict[str, Any]:
    """Returns the arguments of `open_model` that the configuration at a path describes."""
    if weight_files.find_t5x(path):
        raise UserError(f"{path} is a T5X checkpoint, which does not describe its model. Give its model.")
    run = run_files.find_run(path)
    if run is None and not weight_files.is_huggingface(path):
        if not paths.exists(path):
            raise weight_files.not_found("path", path, "a run directory, a checkpoint, or a Hugging Face directory")
        raise UserError(weight_files.explain_missing(path))
    bindings = [] if run else [("CHECKPOINT_PATH", repr(path))]
    resolved = config.load(
        _ROOT,
        files=(_GIN_FILE,),
        bindings=bindings,
        run_directory=run,
        derivations=derivations.of_command("infer"),
    )
    names = ("model", "objective", "data", "task_feature_lengths", "decoding", "partitioner")
    return {name: value for name, value in resolved.build().items() if name in names}


# ---- teachers --------------------------------------------------------------------------------------------------------


def open_teacher(teacher: Teacher, student: Objective | None = None, *, weights: bool = True) -> LoadedTeacher:
    """Opens the model of a teacher, whose configuration comes from its own directory.

    Args:
      teacher: The teacher.
      student: The objective of the student, which a Hugging Face directory without the head of a downstream task gets.
      weights: Whether it must have weights. Otherwise it may also be a gin recipe, or a directory with config.json
        alone.

    Returns:
      The open teacher, whose parameters are not read yet.

    Raises:
      UserError: The directory is neither a run nor a Hugging Face directory, does not have the checkpoint, does not
        describe a model and an objective, or does not have the tensors of its model.
    """
    path = checkpoint_path = teacher.path.rstrip("/")
    vocabulary, network = None, None if teacher.network == MODEL else teacher.network
    if not weights and path.endswith(_GIN):
        model, objective = _configured(path, ("model",), files=(path,))["model"], teacher.objective or student
    elif not paths.exists(path.removesuffix("/best")):
        raise UserError(f"TEACHER={path}: not found. Give a run directory or a Hugging Face directory.")
    elif weight_files.is_huggingface(path) or (not weights and "config.json" in paths.listdir(path)):
        if network is not None:
            raise UserError(f"TEACHER_NETWORK={network!r}: {path} has a model only. Give the directory of a run.")
        model = interop.config_from_huggingface(path)
        objective = teacher.objective or _objective_of_huggingface(path, model, student, weights)
        if weights:
            interop.model_shapes(path, model)  # checks its files
            vocabulary = run_tokenizer.stored_digest(path)
            _check_heads(path, model, objective, interop.head_names(path))
    else:
        run = _run_of(path)
        names = ("model",) if teacher.objective is not None and network is None else ("model", "objective")
        found = _configured(run, names, run_directory=run)
        if network is not None:
            found = vars(RunModel(found["model"], found["objective"]).network(network, path))
        model, objective = found["model"], teacher.objective or found["objective"]
        if weights:
            (checkpoint_path,) = checkpoint_choice.choose(path, teacher.checkpoint, setting="TEACHER_CHECKPOINT")
            vocabulary = run_tokenizer.stored_digest(run)
            _check_heads(path, model, objective, weight_source.stored_names(checkpoint_path, network))
    return LoadedTeacher(
        path=teacher.path,
        checkpoint_path=checkpoint_path,
        network=network,
        config=model if teacher.dtype is None else dataclasses.replace(model, dtype=teacher.dtype),
        objective=objective,
        vocabulary=vocabulary,
        weight=teacher.weight,
        rules=teacher.rules,
        logits=teacher.logits,
    )


def model_of_teacher(*, model: ModelConfig, objective: Objective | None = None) -> None:
    """Does nothing. Its arguments are what a teacher needs of a configuration, which may also describe data.

    Args:
      model: The model.
      objective: What it predicts.
    """


def _configured(source: str, names: Sequence[str], **read: Any) -> dict[str, Any]:
    """Returns arguments of `model_of_teacher` that a configuration has as macros."""
    root = f"{__name__}.{model_of_teacher.__name__}"
    bindings = [(f"{root}.{name}", f"%{name.upper()}") for name in names]
    try:
        return config.load(root, bindings=bindings, **read).build()
    except UserError as error:
        raise UserError(f"TEACHER={source}: {error}") from error


def _objective_of_huggingface(path: str, model: ModelConfig, student: Objective | None, weights: bool) -> Objective:
    """Returns the objective of the head of a directory, or else that of the student if it has its heads."""
    if (head := interop.task_head(path)) is not None:
        return description.objective_of(model, head, None if student is None else choices_of(student.features))
    has_heads = student is not None and (not weights or _heads(model, student) <= interop.head_names(path))
    return student if has_heads else description.objective_of(model)


def _heads(model: ModelConfig, objective: Objective) -> set[str]:
    """Returns the stored names of the parameters of the heads of an objective."""
    heads = {"objective": build.params_shapes(model, objective)["objective"]}
    return set(parameters.stack(parameters.named_leaves(heads)))


def _check_heads(path: str, model: ModelConfig, objective: Objective, found: set[str]) -> None:
    if missing := sorted(_heads(model, objective) - found):
        raise UserError(
            f"TEACHER={path}: {type(objective).__name__} needs {missing[0]!r}, which it does not have. Give a teacher "
            "with this head, or its objective as TEACHER_OBJECTIVE."
        )


def _run_of(path: str) -> str:
    """Returns the run directory of a run, its directory `checkpoints`, or one of its checkpoints."""
    if (run := run_files.find_run(path)) is not None:
        return run
    if weight_files.find_t5x(path):
        raise UserError(
            f"TEACHER={path} is a T5X checkpoint, which does not describe its model. Convert it to a run with "
            "`t5x_like convert`."
        )
    raise run_files.not_a_run("TEACHER", path)
