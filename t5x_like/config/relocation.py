"""The paths in the configuration of a run, which may have been moved since it was stored."""

from collections.abc import Mapping
from typing import Any

from t5x_like import paths
from t5x_like.data import task_arguments
from t5x_like.runtime import run_files
from t5x_like.vocabularies import tokenizer_files


def macros(directory: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the macros with paths in a run directory.

    MODEL_DIR and CHECKPOINT_PATH become the directory. Its copy of the tokenizer replaces VOCABULARY_PATH and the
    vocabulary in TASK_ARGUMENTS and EVAL_TASK_ARGUMENTS.

    Args:
      directory: The run directory.
      stored: The stored value of each macro.
    """
    found: dict[str, Any] = dict.fromkeys(("MODEL_DIR", "CHECKPOINT_PATH"), directory)
    if (tokenizer := tokenizer_files.find(paths.join(directory, run_files.TOKENIZER))) is not None:
        found["VOCABULARY_PATH"] = tokenizer
        for name in ("TASK_ARGUMENTS", "EVAL_TASK_ARGUMENTS"):
            if isinstance(arguments := stored.get(name), Mapping):
                found[name] = task_arguments.without(arguments, task_arguments.VOCABULARY)
    return found
