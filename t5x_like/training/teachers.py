"""Reads teachers from their directories, and recognizes them when a run resumes."""

import concurrent.futures
import contextlib
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import fsspec
import jax
from absl import logging

from t5x_like import config, interop, parameters, paths
from t5x_like.data.choices import choices_of
from t5x_like.distillation.teachers import LoadedTeacher, Teacher
from t5x_like.errors import UserError
from t5x_like.interop import description
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.base import Objective
from t5x_like.partitioning import Partitioner
from t5x_like.runtime import run_files
from t5x_like.training import (
    checkpoint_choice,
    checksums,
    run_directory,
    run_tokenizer,
    warm_start,
    weight_files,
    weight_source,
)
from t5x_like.training.checkpoints import Checkpoints

_DIGEST_BYTES = 16
_BLOCK_BYTES = 1 << 24
_THREADS = 4
# The parts of a checkpoint that determine its parameters.
_STATE = "state"
GIN = ".gin"


def load(teacher: Teacher, student: Objective | None = None, *, weights: bool = True) -> LoadedTeacher:
    """Reads the configuration of a teacher. Its parameters are read by `LoadedTeacher.read`.

    Args:
      teacher: The teacher.
      student: The objective of the student, which a Hugging Face directory without the head of a downstream task gets.
      weights: Whether it must have weights. Otherwise it may also be a gin recipe, or a directory with config.json
        alone.

    Returns:
      The loaded teacher.

    Raises:
      UserError: The directory is neither a run nor a Hugging Face directory, does not have the checkpoint, or does not
        describe a model and an objective.
    """
    path, checkpoint = teacher.path.rstrip("/"), teacher.path.rstrip("/")
    if not weights and path.endswith(GIN):
        model = _configured(path, with_objective=False, files=(path,))["model"]
        return LoadedTeacher(teacher, model, teacher.objective or student, None, _without_weights, str)
    if not paths.exists(path.removesuffix("/best")):
        raise UserError(f"TEACHER={path}: not found. Give a run directory or a Hugging Face directory.")
    if is_huggingface := weight_files.is_huggingface(path) or (not weights and "config.json" in paths.listdir(path)):
        directory = path
        model, objective = _of_huggingface(path, teacher.objective, student, weights)
    else:
        directory = _run_of(path)
        model, objective = _of_run(directory, teacher.objective)
    if weights:
        (checkpoint,) = checkpoint_choice.choose(path, teacher.checkpoint)
        checkpoint, names = (path, interop.head_names(path)) if is_huggingface else _stored_names(checkpoint)
        _check_heads(path, _heads(model, objective), names, objective)

    def read(shapes: Any, resolved: ModelConfig, partitioner: Partitioner) -> dict[str, Any]:
        return warm_start.load(checkpoint, shapes, resolved, partitioner)

    return LoadedTeacher(
        teacher=teacher,
        config=model,
        objective=objective,
        vocabulary=run_tokenizer.stored_digest(directory) if weights else None,
        reader=read if weights else _without_weights,
        hasher=lambda: _digest(checkpoint),
    )


def _without_weights(shapes: Any, resolved: ModelConfig, partitioner: Partitioner) -> dict[str, Any]:
    raise ValueError("the teacher was loaded without weights")


def network(*, model: ModelConfig, objective: Objective) -> None:
    """Has the settings of a teacher as parameters; `_of_run` reads them from the configuration of its run.

    Args:
      model: The configuration of its model.
      objective: What it predicts.
    """


def _of_run(directory: str, objective: Objective | None) -> tuple[ModelConfig, Objective]:
    """Returns model and objective of a run from its own configuration, apart from that of the student."""
    found = _configured(directory, with_objective=objective is None, run_directory=directory)
    return found["model"], found.get("objective", objective)


def _configured(source: str, *, with_objective: bool, **read: Any) -> dict[str, Any]:
    """Returns the model, and optionally the objective, of a configuration."""
    root = f"{network.__module__}.{network.__qualname__}"
    wanted = {"model": "%MODEL"} | ({"objective": "%OBJECTIVE"} if with_objective else {})
    bindings = [(f"{root}.{name}", macro) for name, macro in wanted.items()]
    try:
        return config.load(root, bindings=bindings, given=() if with_objective else ("objective",), **read).build()
    except UserError as error:
        raise UserError(f"TEACHER={source}: {error}") from error


def _of_huggingface(
    directory: str, objective: Objective | None, student: Objective | None, weights: bool
) -> tuple[ModelConfig, Objective]:
    """Returns model and objective of a Hugging Face directory."""
    model = interop.config_from_huggingface(directory)
    if objective is not None:
        return model, objective
    if student is None:
        return model, description.objective_of(model, interop.task_head(directory))
    if (head := interop.task_head(directory)) is not None:
        return model, description.objective_of(model, head, choices_of(student.features))
    has_heads = not weights or _heads(model, student) <= interop.head_names(directory)
    return model, student if has_heads else description.objective_of(model)


def _heads(model: ModelConfig, objective: Objective) -> set[str]:
    """Returns the stored names of the parameters of the heads of an objective."""
    shapes = jax.eval_shape(model.make, jax.random.key(0))
    heads = jax.eval_shape(objective.init, jax.random.key(0), shapes)
    return set(parameters.stack(parameters.named_leaves({"objective": heads})))


def _check_heads(path: str, needed: set[str], found: set[str], objective: Objective) -> None:
    if missing := sorted(needed - found):
        raise UserError(
            f"TEACHER={path}: {type(objective).__name__} needs {missing[0]!r}, which it does not have. Give a teacher "
            "with this head, or its objective as TEACHER_OBJECTIVE."
        )


def _run_of(path: str) -> str:
    """Returns the run directory of a run, its directory `checkpoints`, or one of its checkpoints."""
    directory = path
    for _ in range(3):
        if run_files.is_run(directory):
            return directory
        directory = directory.rpartition("/")[0]
    if weight_files.find_t5x(path):
        raise UserError(
            f"TEACHER={path} is a T5X checkpoint, which does not describe its model. Convert it to a run with "
            "`t5x_like convert`."
        )
    raise run_files.not_a_run("TEACHER", path)


def _stored_names(checkpoint: str) -> tuple[str, set[str]]:
    """Returns the path of a checkpoint with its step, and the stored names of its parameters."""
    directory, step = checkpoint_choice.locate(checkpoint)
    with contextlib.closing(Checkpoints(directory, read_only=True)) as reader:
        names = {name.removeprefix(weight_source.PARAMS) for name in reader.shapes(step, verify=False)}
    return paths.join(directory, str(step)), names


# ---- identity ------------------------------------------------------------------------------------------------------


def _digest(checkpoint: str) -> str:
    """Returns a hash of the parameters: of the checksums of a checkpoint, or of the files of a Hugging Face model."""
    if weight_files.is_huggingface(checkpoint):
        files = [name for name in paths.listdir(checkpoint) if name.endswith(".safetensors")] + ["config.json"]
    else:
        checkpoint = paths.join(checkpoint, _STATE)
        files = [checksums.MANIFEST]
        if not paths.exists(paths.join(checkpoint, checksums.MANIFEST)):
            raise UserError(f"TEACHER={checkpoint}: {checksums.MANIFEST} not found. Give a checkpoint with checksums.")
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        hashes = pool.map(lambda name: _hash(paths.join(checkpoint, name)), sorted(files))
        for name, found in zip(sorted(files), hashes, strict=True):
            digest.update(f"{name} {found}\n".encode())
    return digest.hexdigest()


def _hash(file: str) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with fsspec.open(file, "rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def check(model_dir: str, teachers: Mapping[str, LoadedTeacher], run_config: run_directory.RunConfig | None) -> None:
    """Checks that the teachers of a run to resume are those that it started with.

    Args:
      model_dir: The run directory.
      teachers: Name -> teacher.
      run_config: Its `override` accepts other teachers.

    Raises:
      UserError: A teacher has changed. The message has both digests.
    """
    file = paths.join(model_dir, run_files.TEACHERS)
    if not run_files.has_checkpoints(model_dir) or not paths.exists(file):
        return
    stored = {name: each["digest"] for name, each in json.loads(paths.read_text(file)).items()}
    given = {name: each.digest for name, each in teachers.items()}
    for name in sorted(stored.keys() | given.keys()):
        if stored.get(name) == given.get(name):
            continue
        path = teachers[name].teacher.path if name in teachers else "missing"
        change = (
            f"MODEL_DIR={model_dir} was distilled from another teacher {name!r}: digest {stored.get(name)} stored, "
            f"{given.get(name)} of {path}"
        )
        if run_config is None or not run_config.override:
            raise UserError(f"{change}. Give the same teacher, another MODEL_DIR, or --override_config to accept it.")
        logging.warning("%s: accepted because of --override_config", change)


def store(model_dir: str, teachers: Mapping[str, LoadedTeacher]) -> None:
    """Writes path and digest of each teacher to the run directory."""
    if not teachers:
        return
    described = {
        name: {"path": each.teacher.path, "digest": each.digest, "vocabulary": each.vocabulary}
        for name, each in teachers.items()
    }
    paths.write_atomic(paths.join(model_dir, run_files.TEACHERS), json.dumps(described, indent=2) + "\n")
