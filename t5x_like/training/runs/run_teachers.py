"""The teachers of a run, which it recognizes when it resumes."""

import json
from collections.abc import Mapping

from absl import logging

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.runtime import run_files
from t5x_like.stored.loaded_teachers import LoadedTeacher
from t5x_like.training.runs import run_directory


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
        path = teachers[name].path if name in teachers else "missing"
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
        name: {"path": each.path, "digest": each.digest, "vocabulary": each.vocabulary}
        for name, each in teachers.items()
    }
    paths.write_atomic(paths.join(model_dir, run_files.TEACHERS), json.dumps(described, indent=2) + "\n")
