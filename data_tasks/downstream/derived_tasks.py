"""Registered tasks in another form: the same data, arguments and metrics, with other features."""

import functools
from collections.abc import Callable, Mapping, Sequence

import seqio

from data_tasks.downstream import templates
from t5x_like.data import task_arguments


def texts_of(preprocessor: Callable) -> tuple[str, ...]:
    """Returns the features whose texts a preprocessor places into a row by `templates.fill`; empty for others."""
    is_fill = getattr(preprocessor, "func", None) is templates.fill
    return preprocessor.keywords["texts"] if is_fill else ()


def with_fill(preprocessors: Sequence[Callable], fill: Callable) -> list[Callable]:
    """Returns preprocessors in which another function takes the place of `templates.fill`, with its arguments."""
    return [functools.partial(fill, **each.keywords) if texts_of(each) else each for each in preprocessors]


def add(
    task: seqio.Task, name: str, *, preprocessors: Sequence[Callable], output_features: Mapping[str, seqio.Feature]
) -> seqio.Task:
    """Registers a task once more. Both tasks have the same arguments.

    Args:
      task: a registered task with declared arguments.
      name: the name of the new task.
      preprocessors: those of the new task.
      output_features: those of the new task.
    """
    task_arguments.share(task.name, name)
    return seqio.TaskRegistry.add(
        name,
        source=task.source,
        preprocessors=list(preprocessors),
        output_features=dict(output_features),
        postprocess_fn=task.postprocess_fn,
        metric_fns=task.metric_fns,
    )
