"""The vocabulary that a recipe names, or its copy in the run directory."""

import dataclasses
from typing import TYPE_CHECKING, Any

from absl import logging

from t5x_like import paths
from t5x_like.data import task_arguments
from t5x_like.runtime.run_files import TOKENIZER
from t5x_like.training.runs import run_directory
from t5x_like.vocabularies import tokenizer_files

if TYPE_CHECKING:
    from t5x_like.training.recipe import Recipe

# The argument of tasks and of `SeqIOSource`.
_PATH = task_arguments.VOCABULARY


def with_copy(recipe: "Recipe") -> "Recipe":
    """Replaces the vocabulary of a run to resume by its copy in the run directory, if it is no longer at its path.

    Args:
      recipe: the recipe of the run.

    Returns:
      The recipe, in which `data`, `evaluations` and `vocabulary_path` may have changed.
    """
    sources = [recipe.data, *(each.data for each in (recipe.evaluations or {}).values())]
    if not (_is_missing(recipe.vocabulary_path) or any(map(_missing_path, sources))):
        return recipe
    model_dir = recipe.storage.model_dir
    if not run_directory.may_resume(model_dir):
        return recipe
    if (copy := tokenizer_files.find(paths.join(model_dir, TOKENIZER))) is None:
        return recipe
    evaluations = {
        name: dataclasses.replace(each, data=_with_copy(each.data, copy))
        for name, each in (recipe.evaluations or {}).items()
    }
    path = copy if _is_missing(recipe.vocabulary_path) else recipe.vocabulary_path
    return dataclasses.replace(
        recipe, data=_with_copy(recipe.data, copy), evaluations=evaluations, vocabulary_path=path
    )


def _with_copy(data: Any, copy: str) -> Any:
    """Returns a source whose vocabulary is the copy, if one that it names is missing."""
    if (missing := _missing_path(data)) is None:
        return data
    arguments = getattr(data, "task_arguments", None) or {}
    logging.info("VOCABULARY_PATH=%s not found; its copy in the run directory replaces it: %s", missing, copy)
    changes = {"task_arguments": task_arguments.without(arguments, _PATH)} if arguments else {}
    return dataclasses.replace(data, vocabulary_path=copy, **changes)


def _missing_path(data: Any) -> str | None:
    """Returns the path of a vocabulary that a source names and that does not exist, or None."""
    arguments = getattr(data, "task_arguments", None) or {}
    return next(filter(_is_missing, (arguments.get(_PATH), getattr(data, _PATH, None))), None)


def _is_missing(path: str | None) -> bool:
    return bool(path) and not paths.exists(path)
