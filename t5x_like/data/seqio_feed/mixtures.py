"""Mixtures of SeqIO tasks: construction from rates, numbers of examples, and checks of their tasks."""

import difflib
import functools
from collections.abc import Mapping, Sequence

import seqio
import tensorflow as tf
from absl import logging

from t5x_like.data import mixing, task_arguments
from t5x_like.data.seqio_feed.registry import find_provider
from t5x_like.errors import UserError


def make(name: str, rates: mixing.Rates | Mapping[str, float], split: str) -> seqio.Mixture:
    """Returns a mixture with the given rates.

    Args:
      name: Name of a registered mixture, or of the new one if the rates name its tasks.
      rates: Rates; those that need numbers of examples are computed when the mixture is first read.
      split: Split whose examples are counted.

    Raises:
      UserError: the name or the names of tasks do not suit the rates.
    """
    tasks = mixing.task_names(rates)
    if name in seqio.TaskRegistry.names():
        raise UserError(
            f"MIXTURE_OR_TASK_NAME={name!r} is a task, but RATES mixes tasks. Give a mixture, or RATES=None."
        )
    if tasks is None or name in seqio.MixtureRegistry.names():
        tasks = [task.name for task in find_provider(name).tasks]
        mixing.check_names(rates, tasks, name)
    for task in tasks:
        _check_registered(task)
    if isinstance(rates, mixing.Rates):
        pairs = [(task, functools.partial(_rate, rates=rates, tasks=tasks, split=split)) for task in tasks]
    else:
        pairs = [(task, float(rates[task])) for task in tasks]
    try:
        return seqio.Mixture(name, pairs)
    except ValueError as error:  # tasks with different features
        raise UserError(
            f"mixture {name}: its tasks do not have the same features ({' '.join(str(error).split())}). Mix tasks that "
            "have the same features."
        ) from error


def _check_registered(task: str) -> None:
    names = seqio.TaskRegistry.names()
    if task not in names:
        near = difflib.get_close_matches(task, names, n=3)
        raise UserError(
            f"RATES: the task {task!r} is not registered. "
            + (f"The nearest names are {', '.join(near)}. " if near else "")
            + "For your own task, set MIXTURE_OR_TASK_MODULE to the module that registers it."
        )


def _rate(task: seqio.Task, *, rates: mixing.Rates, tasks: Sequence[str], split: str) -> float:
    return rates.of({name: count_examples(seqio.TaskRegistry.get(name), split) for name in tasks})[task.name]


def count_examples(task: seqio.Task, split: str) -> int:
    """Returns the number of examples of a task before its preprocessors, from its source or by reading all of them.

    Raises:
      UserError: the split is empty.
    """
    if split not in task.splits:
        return 0
    if not (count := _count(task.source, task.name, split, repr(task_arguments.current(task.name)))):
        raise UserError(
            f"task {task.name}: the split {split!r} has no examples, so it has no rate. Remove the task from the "
            "mixture, or give other data."
        )
    return count


@functools.cache
def _count(source: seqio.DataSource, task: str, split: str, arguments: str) -> int:
    """Counts examples; `arguments` distinguishes the data that one source reads with different task arguments."""
    if (count := source.num_input_examples(split)) is not None:
        return int(count)
    logging.info("task %s: counting the examples of the split %r, because its source does not know them", task, split)
    ds = source.get_dataset(split=split, shuffle=False)
    return int(ds.reduce(tf.constant(0, tf.int64), lambda count, _: count + 1))


def tasks_with_split(provider: seqio.Task | seqio.Mixture, split: str) -> list[seqio.Task]:
    """Returns the task, or the tasks of a mixture, that have a split.

    Raises:
      UserError: no task has the split, or the data of a task is missing; the message names the task.
    """
    tasks = seqio.get_subtasks(provider)
    splits = {task.name: _splits(task) for task in tasks}
    found = [task for task in tasks if split in splits[task.name]]
    if not found:
        known = sorted({known for of_task in splits.values() for known in of_task})
        has_argument = any(split in task_arguments.names(task.name) for task in tasks)
        file = f", or its file in TASK_ARGUMENTS, {{{split!r}: …}}" if has_argument else ""
        without = ". Without evaluation, give --gin.EVAL_DATA=None" if split == "validation" else ""
        raise UserError(f"{provider.name} has no split {split!r}. Give one of {', '.join(known)}{file}{without}.")
    return found


def _splits(task: seqio.Task) -> Sequence[str]:
    try:
        return task.splits
    except UserError as error:
        if task.name in str(error):
            raise
        raise UserError(f"task {task.name}: {error}") from error
    except Exception as error:  # SeqIO's ValueError if there is no split, or an error of a library that TFDS uses
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        advice = (
            f"Set its data with TASK_ARGUMENTS, such as {{{task.name!r}: {{'data_dir': …}}}}"
            if "data_dir" in task_arguments.names(task.name)
            else "Prepare its data"
        )
        raise UserError(
            f"task {task.name}: its data is missing ({reason}). {advice}, or mix tasks without it."
        ) from error


def check_offline_caches(tasks: Sequence[seqio.Task]) -> None:
    """Checks that SeqIO's offline cache of each task exists.

    Raises:
      UserError: a task has none.
    """
    for task in tasks:
        if not task.supports_caching or task.cache_dir is None:
            raise UserError(
                f"USE_CACHED_TASKS=True: no offline cache of {task.name!r} found. Set it to False, or write a cache "
                "with seqio's cache_tasks_main and register its directory with seqio.add_global_cache_dirs."
            )


def check_vocabularies(mixture: seqio.Mixture) -> None:
    """Checks that all tasks of a mixture have the same vocabularies and dtypes.

    Raises:
      UserError: two tasks differ; the message names the tasks and the feature.
    """
    first, *others = mixture.tasks
    for name, feature in first.output_features.items():
        for task in others:
            other = task.output_features[name]
            if (different := "vocabulary" if feature.vocabulary != other.vocabulary else None) or (
                different := "dtype" if feature.dtype != other.dtype else None
            ):
                raise UserError(
                    f"mixture {mixture.name}: the feature {name!r} of {task.name} has another {different} than in "
                    f"{first.name}. Mix tasks with the same vocabularies."
                )
