"""Sets the arguments of the tasks of a source, and with them the vocabulary of tasks that can use any."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import seqio
from absl import logging

from t5x_like.data import task_arguments
from t5x_like.data.task_arguments import VOCABULARY
from t5x_like.errors import UserError
from t5x_like.vocabularies import vocabulary_digest


def set_all(
    tasks: Sequence[seqio.Task],
    values: Mapping[str, Any],
    *,
    files: Mapping[str, str],
    row_lengths: Mapping[str, int],
    vocabulary_path: str | None,
) -> None:
    """Sets all arguments of the tasks of a source.

    Args:
      tasks: The tasks.
      values: Argument name -> value.
      files: See `with_files`.
      row_lengths: See `with_row_length`.
      vocabulary_path: See `update`.

    Raises:
      UserError: An argument is unknown or has the wrong type.
    """
    values = with_row_length(tasks, with_files(tasks, values, files), row_lengths)
    update(tasks, values, vocabulary_path)


def update(tasks: Sequence[seqio.Task], values: Mapping[str, Any], vocabulary_path: str | None) -> None:
    """Sets arguments of tasks; see `task_arguments.update`.

    A task without the argument `vocabulary_path` has its own vocabulary, and is named in a warning if that is another.

    Args:
      tasks: the tasks of a source.
      values: argument name -> value.
      vocabulary_path: value of the argument `vocabulary_path` of the tasks that declare it. `values` takes precedence.

    Raises:
      UserError: an argument is unknown or has the wrong type.
    """
    if vocabulary_path:
        own = [task for task in tasks if VOCABULARY not in task_arguments.names(task.name)]
        for task in own:
            _warn_if_other(task, vocabulary_path)
        if len(own) < len(tasks):
            values = {VOCABULARY: vocabulary_path, **values}
    task_arguments.update([task.name for task in tasks], values, of_source=True)


def with_files(tasks: Sequence[seqio.Task], values: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """Adds the files of a source to the values of arguments.

    Args:
      tasks: the tasks of a source.
      values: argument name -> value, which takes precedence.
      files: argument name -> value, of `task_arguments.OF_FILES`.

    Raises:
      UserError: no task has an argument.
    """
    known = {name for task in tasks for name in task_arguments.names(task.name)}
    for name, value in files.items():
        if name not in known:
            raise UserError(
                f"{task_arguments.OF_FILES[name].upper()}={value!r}: {', '.join(task.name for task in tasks)} does not "
                "read files with this setting. Give a task that has it, such as text_files_span_corruption, or remove "
                "the setting."
            )
    return {**files, **values}


def with_row_length(
    tasks: Sequence[seqio.Task], values: Mapping[str, Any], lengths: Mapping[str, int]
) -> Mapping[str, Any]:
    """Adds the length of a row of continuous data to the values of arguments, if a task has an argument for it.

    Args:
      tasks: the tasks of a source.
      values: argument name -> value, which takes precedence.
      lengths: task feature -> length of a row.
    """
    if not lengths or not any(task_arguments.ROW_LENGTH in task_arguments.names(task.name) for task in tasks):
        return values
    return {task_arguments.ROW_LENGTH: max(lengths.values()), **values}


@functools.cache
def _warn_if_other(task: seqio.Task, path: str) -> None:
    """Logs one warning per task and path."""
    vocabularies = [feature.vocabulary for feature in task.output_features.values()]
    digest = vocabulary_digest.of_path(path)
    if digest is not None and digest in map(vocabulary_digest.of_vocabulary, vocabularies):
        return
    logging.warning(
        "task %s has its own vocabulary %s: VOCABULARY_PATH=%s is not used for it. Give a task with the argument "
        "vocabulary_path, or a model for this vocabulary",
        *(task.name, ", ".join(sorted(set(map(str, vocabularies)))), path),
    )
