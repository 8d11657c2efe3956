"""The files of a run directory and how to recognize one. Imports no JAX."""

import json
from collections.abc import Mapping
from typing import Any

from t5x_like import paths
from t5x_like.errors import UserError

# The resolved configuration of the run.
CONFIG = "config.gin"
# Name, shape, logical axes and sharding of each parameter.
MODEL_INFO = "model_info.txt"
# Whether the run is running, finished, preempted or failed.
STATUS = "status.json"
# The directory with a copy of the tokenizer, and of the files that describe the model that the run started from.
TOKENIZER = "tokenizer"
# The digest of the vocabulary of the run, and its kind.
VOCABULARY = "vocabulary.json"
# Path and digest of each teacher that the run learns from.
TEACHERS = "teachers.json"
# The identifier of a run that also has local checkpoints, by which they are recognized.
RUN_ID = "run_id.txt"
# The directory with a subdirectory per saved step.
CHECKPOINTS = "checkpoints"
# Suffix of the object that marks an uploaded checkpoint as complete, in stores that Orbax cannot write to.
COMMITTED = ".committed"


def is_run(directory: str) -> bool:
    """Returns whether `directory` is a run directory, which stores its configuration."""
    return paths.is_file(paths.join(directory, CONFIG))


def not_a_run(setting: str, directory: str) -> UserError:
    """Returns the error for a directory that is not a run directory.

    Args:
      setting: what the user set, such as `MODEL_DIR`.
      directory: its value.
    """
    missing = CONFIG if paths.exists(directory) else "directory"
    return UserError(
        f"{setting}={directory} is not a run directory: {missing} not found. Give the directory of an existing run."
    )


def has_checkpoints(directory: str) -> bool:
    """Returns whether the run in `directory` has a complete checkpoint."""
    names = paths.listdir(paths.join(directory, CHECKPOINTS))
    return any(name.removesuffix(COMMITTED).isdigit() for name in names)


def read_status(directory: str) -> Mapping[str, Any] | None:
    """Returns the last status of a run, or None. A run with the state `running` may have been killed since."""
    path = paths.join(directory, STATUS)
    return json.loads(paths.read_text(path)) if paths.exists(path) else None
