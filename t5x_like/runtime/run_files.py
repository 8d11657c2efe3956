"""The files of a run directory and how to recognize one. Imports no JAX."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import paths
from t5x_like.errors import UserError

# The resolved configuration of the run.
CONFIG = "config.gin"
# Name, shape, logical axes and sharding of each parameter.
MODEL_INFO = "model_info.txt"
# Whether the run is running, finished, preempted or failed.
STATUS = "status.json"
# One line per start: command line, code, versions, devices and data.
STARTS = "starts.jsonl"
# The log of process 0 of all starts.
LOG = "log.txt"
# The directory with a copy of the tokenizer, and of the files that describe the model that the run started from.
TOKENIZER = "tokenizer"
# The digest of the vocabulary of the run, and its kind.
VOCABULARY = "vocabulary.json"
# Path and digest of each teacher that the run learns from.
TEACHERS = "teachers.json"
# Path and digest of the weights that have the frozen parameters which the checkpoints of the run lack.
BASE = "base.json"
# The phases in this directory, each a run directory; see `cli.phases`.
PHASES = "phases.json"
# The identifier of a run that also has local checkpoints, by which they are recognized.
RUN_ID = "run_id.txt"
# The directory with a subdirectory per saved step.
CHECKPOINTS = "checkpoints"
# Suffix of the object that marks an uploaded checkpoint as complete, in stores that Orbax cannot write to.
COMMITTED = ".committed"


def is_run(directory: str) -> bool:
    """Returns whether `directory` is a run directory, which stores its configuration."""
    return paths.is_file(paths.join(directory, CONFIG))


def find_run(path: str) -> str | None:
    """Returns the run directory of a run, of its directory `checkpoints`, or of one checkpoint in it, or None."""
    directory = path.rstrip("/")
    for _ in range(3):
        if directory and is_run(directory):
            return directory
        directory = directory.rpartition("/")[0]
    return None


def not_a_run(setting: str, directory: str) -> UserError:
    """Returns the error for a directory that is not a run directory.

    Args:
      setting: What the user set, such as `MODEL_DIR`.
      directory: Its value.
    """
    missing = CONFIG if paths.exists(directory) else "directory"
    parent = directory.rstrip("/").rpartition("/")[0]
    advice = f"{setting}={parent}" if parent and is_run(parent) else "the directory of an existing run"
    return UserError(f"{setting}={directory} is not a run directory: {missing} not found. Give {advice}.")


def is_missing(directory: str) -> bool:
    """Returns whether a local directory does not exist; False for stores, and if the file system does not respond."""
    if not paths.is_local(directory):
        return False
    try:
        os.stat(paths.local(directory))
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def newest_checkpoint(directory: str) -> int | None:
    """Returns the step of the newest complete checkpoint of the run in `directory`, or None."""
    names = paths.listdir(paths.join(directory, CHECKPOINTS))
    steps = (name.removesuffix(COMMITTED) for name in names)
    return max((int(step) for step in steps if step.isdigit()), default=None)


def has_checkpoints(directory: str) -> bool:
    """Returns whether the run in `directory` has a complete checkpoint."""
    return newest_checkpoint(directory) is not None


def write_phases(directory: str, phases: Sequence[Mapping[str, Any]]) -> None:
    """Writes the phases whose run directories are in `directory`, in the order in which they run."""
    paths.write_atomic(paths.join(directory, PHASES), json.dumps({"phases": list(phases)}, indent=2) + "\n")


def phase_directories(directory: str) -> list[str]:
    """Returns the run directories of the phases in `directory` that have started, in order; [] if it has no phases.

    Raises:
      UserError: The file that lists the phases is damaged.
    """
    path = paths.join(directory, PHASES)
    if not paths.exists(path):
        return []
    try:
        names = [str(phase["name"]) for phase in json.loads(paths.read_text(path))["phases"]]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error}). Delete it; the command writes it again.") from error
    return [found for found in (paths.join(directory, name) for name in names) if is_run(found)]


def read_status(directory: str) -> Mapping[str, Any] | None:
    """Returns the last status of a run, or None. A run with the state `running` may have been killed since.

    Raises:
      UserError: The file is damaged.
    """
    path = paths.join(directory, STATUS)
    if not paths.exists(path):
        return None
    try:
        return dict(json.loads(paths.read_text(path)))
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error}). Delete it; a run that resumes writes it again.") from error
