"""The paths in the configuration of a run, which may have been moved since it was stored."""

from collections.abc import Mapping
from typing import Any

from t5x_like import paths
from t5x_like.data import task_arguments
from t5x_like.runtime import run_files
from t5x_like.vocabularies import tokenizer_files


def macros(directory: str, arguments: Any) -> dict[str, Any]:
    """Returns the macros with paths in a run directory.

    MODEL_DIR and CHECKPOINT_PATH become the directory. Its copy of the tokenizer replaces VOCABULARY_PATH and the
    vocabulary in TASK_ARGUMENTS.

    Args:
      directory: The run directory.
      arguments: The stored value of TASK_ARGUMENTS.
    """
    found: dict[str, Any] = dict.fromkeys(("MODEL_DIR", "CHECKPOINT_PATH"), directory)
    if (tokenizer := tokenizer_files.find(paths.join(directory, run_files.TOKENIZER))) is not None:
        found["VOCABULARY_PATH"] = tokenizer
        if isinstance(arguments, Mapping):
            found["TASK_ARGUMENTS"] = task_arguments.without(arguments, task_arguments.VOCABULARY)
    return found
