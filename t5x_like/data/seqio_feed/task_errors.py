"""Explains errors in a task's data: reads it again to find the task, the preprocessor, the example and its line.

TensorFlow only names the operation that failed. A binary search over the number of examples finds the failing example.
Applying one preprocessor after the other to this example finds the failing preprocessor.
"""

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t5x_like.data import blocked
from t5x_like.data.seqio_feed import inner_sizes
from t5x_like.data.seqio_feed.task_access import TaskAccess
from t5x_like.errors import RunFailed, UserError

SEARCH_SECONDS = 60.0
_SHOWN = 160
_GRAPH_NAMES = re.compile(r"\{\{[^{}]*\}\}\s*|\s*\[Op:.*|Error in user-defined function .* with iterator: \S+: ")


@contextlib.contextmanager
def explain_errors(source: TaskAccess) -> Iterator[None]:
    """Converts TensorFlow errors of reading a task into errors that name the example.

    Raises:
      UserError: an example fails again when the data is read again, or a file cannot be opened.
      RunFailed: no example fails again, for example because a store was unreachable.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if (known := _of_source(source) or inner_sizes.user_error(error)) is not None:
            raise known from None
        if isinstance(error, tf.errors.NotFoundError | tf.errors.PermissionDeniedError):
            raise UserError(
                f"{source.name}, split {source.split!r}: {_first_line(error)}. Check the files that the task reads."
            ) from error
        found = next(filter(None, (_find(task, source) for task in source.tasks)), None)
        if found is None:
            raise RunFailed(
                f"{source.name}, split {source.split!r}: reading failed ({_first_line(error)}), but did not fail "
                "again on a second read. Retry the command."
            ) from error
        raise UserError(f"{found}. Correct the example, or skip such examples in the preprocessor.") from error


def _of_source(source: TaskAccess) -> Exception | None:
    """Returns the error that Python code of a task's source has raised, of which TensorFlow only has the text."""
    found = [task.source.take_error() for task in source.tasks if hasattr(task.source, "take_error")]
    return next((error for error in found if error is not None), None)


def explain_each(batches: Iterator[Any], source: TaskAccess) -> Iterator[Any]:
    """Yields the batches of a task under `explain_errors`, and reports one that is waited for."""
    with explain_errors(source):
        yield from blocked.report(batches, f"{source.name}, split {source.split!r}")


def build(source: TaskAccess, make: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
    """Builds the dataset of a task or mixture.

    Args:
      source: the task or mixture.
      make: builds the dataset.

    Raises:
      UserError: a preprocessor cannot be applied to the examples, the resulting features differ from those that the
        task declares, or the rate of a mixture cannot be computed.
    """
    try:
        return _build(source, make)
    except UserError as error:
        if source.preprocessing_lengths is not None:
            raise
        raise UserError(
            f"{source.name}: continuous=True reads whole documents, so the preprocessors get no lengths: {error} If "
            "one of them needs lengths, give a task whose examples are documents, such as python_docs_causal_lm."
        ) from error


def _build(source: TaskAccess, make: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
    try:
        return make()
    except UserError:
        raise
    except Exception as error:  # a user's preprocessor or rate may raise anything
        source.mixing_fractions()
        for task in source.tasks:
            ds = task.source.get_dataset(split=source.split, shuffle=False)
            for number, stage in enumerate(stages := _stages(task), 1):
                try:
                    following = _applied(task, ds, [stage], source)
                except Exception as cause:
                    raise UserError(
                        f"task {task.name}: preprocessor {_name(stage)} ({number} of {len(stages)}) cannot be applied: "
                        f"{_with_type(cause)}. Its input is {_element(ds)}."
                    ) from error
                if not isinstance(following, tf.data.Dataset):
                    raise UserError(
                        f"task {task.name}: preprocessor {_name(stage)} ({number} of {len(stages)}) returns a "
                        f"{type(following).__name__}. Return a tf.data.Dataset."
                    ) from error
                ds = following
            _check_outputs(task, source, error)
        raise


def _check_outputs(task: seqio.Task, source: TaskAccess, error: Exception) -> None:
    """Raises the error of SeqIO's check of the features that the preprocessors of a task produce, if any."""
    try:
        task.get_dataset(source.preprocessing_lengths, source.split, use_cached=source.use_cached, shuffle=False)
    except Exception as cause:
        raise UserError(
            f"task {task.name}: {_last_line(cause) or type(cause).__name__}. Correct its preprocessors or its "
            "output_features."
        ) from error


def rates(provider: seqio.Mixture, tasks: Sequence[seqio.Task]) -> dict[str, float]:
    """Returns the rates of some tasks of a mixture.

    Raises:
      UserError: a rate needs the number of examples, which the task's source does not have.
    """
    found = {}
    for task in tasks:
        try:
            found[task.name] = provider.get_rate(task)
        except UserError:
            raise
        except Exception as error:  # seqio.mixing_rate_num_examples computes with None
            raise UserError(
                f"mixture {provider.name}: the rate of the task {task.name} cannot be computed ({_with_type(error)}). "
                "Set the number of examples of its source, such as seqio.TextLineDataSource(…, "
                "num_input_examples={'train': 1000}), or set a number as its rate, or give "
                "--gin.RATES=@mixing.Rates(), which counts the examples."
            ) from error
    return found


def _find(task: seqio.Task, source: TaskAccess) -> str | None:
    """Describes the first failing example of a task, or returns None if none is found in time."""
    if source.split not in task.splits or source.use_cached:
        return None
    raw, stages = task.source.get_dataset(split=source.split, shuffle=False), _stages(task)
    deadline = time.monotonic() + SEARCH_SECONDS
    good, bad = 0, None
    for count in (2**power for power in itertools.count()):
        read, error = _read(_applied(task, raw.take(count), stages, source))
        if error is not None:
            bad = count
            break
        good = count
        if time.monotonic() > deadline or _count(raw, count) < count:
            return None
    while bad - good > 1:
        middle = (good + bad) // 2
        failed = _read(_applied(task, raw.take(middle), stages, source))[1] is not None
        good, bad = (good, middle) if failed else (middle, bad)
    where = f"task {task.name}, split {source.split!r}, example {bad}"
    example = raw.skip(good).take(1)
    (shown,), error = _read(example)[0] or (None,), _read(example)[1]
    if error is not None:
        return f"{where}: cannot be read: {_first_line(error)}"
    where += _line(task, source.split, good, shown)
    for number, stage in enumerate(stages, 1):
        error = _read(_applied(task, example, stages[:number], source))[1]
        if error is not None:
            return (
                f"{where}: preprocessor {_name(stage)} ({number} of {len(stages)}) fails: {_first_line(error)}. The "
                f"example is {_shortened(shown)}"
            )
    return f"{where}: {_first_line(_read(_applied(task, raw.take(bad), stages, source))[1])}"


def _stages(task: seqio.Task) -> list[Callable]:
    return [stage for stage in task.preprocessors if not isinstance(stage, seqio.CacheDatasetPlaceholder)]


def _applied(task: seqio.Task, ds: tf.data.Dataset, stages: Sequence[Callable], source: TaskAccess):
    with seqio.utils.map_seed_manager(source.seed):
        for stage in stages:
            stage = seqio.utils.add_kwargs_to_transform(
                stage, sequence_length=source.preprocessing_lengths, output_features=task.output_features
            )
            ds = stage(ds)
    return ds


def _read(ds: tf.data.Dataset) -> tuple[list[Any], tf.errors.OpError | None]:
    """Reads a dataset to its end. Returns its first element, if any, and the error that ended it, if any."""
    first: list[Any] = []
    try:
        for element in ds:
            first = first or [element]
    except tf.errors.OpError as error:
        return first, error
    return first, None


def _count(ds: tf.data.Dataset, limit: int) -> int:
    return int(ds.take(limit).reduce(0, lambda count, _: count + 1))


def _line(task: seqio.Task, split: str, number: int, example: Any) -> str:
    """Returns the file and line of an example as ` (FILE:LINE)`; empty unless the source knows it."""
    if hasattr(task.source, "place"):
        return f" ({task.source.place(split, number)})"
    if not isinstance(task.source, seqio.TextLineDataSource):
        return ""
    for file in task.source.list_shards(split):
        for at, line in enumerate(tf.data.TextLineDataset(file).as_numpy_iterator(), 1):
            if line == example.numpy():
                return f" ({file}:{at})"
    return ""


def _shortened(example: Any) -> str:
    """Returns the repr of an example, cut to `_SHOWN` characters."""
    shown = tf.nest.map_structure(lambda value: value.numpy() if hasattr(value, "numpy") else value, example)
    text = shown.decode("utf-8", errors="replace") if isinstance(shown, bytes) else shown
    return f"{text!r:.{_SHOWN}}"


def _element(ds: tf.data.Dataset) -> str:
    """Describes the elements of a dataset: their features, or their type if they have none."""
    spec = ds.element_spec
    if isinstance(spec, dict):
        return f"an example with the features {', '.join(map(repr, sorted(spec)))}" if spec else "an empty example"
    return f"a single {spec.dtype.name} tensor" if hasattr(spec, "dtype") else f"a {type(spec).__name__}"


def _name(stage: Callable) -> str:
    stage = getattr(stage, "func", stage)
    return repr(getattr(stage, "__name__", type(stage).__name__))


def _first_line(error: tf.errors.OpError) -> str:
    lines = [line.strip() for line in _GRAPH_NAMES.sub("", error.message.split("\n")[0]).split("\n")]
    return lines[0] or type(error).__name__


def _last_line(error: Exception) -> str:
    """Returns the last line of a message, where TensorFlow repeats the error of traced Python code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _with_type(error: Exception) -> str:
    """Returns the type and message of an error; tracing has already put the type into some messages."""
    name, message = type(error).__name__, _last_line(error)
    if not message:
        return name
    return message if message.startswith(f"{name}: ") else f"{name}: {message}"
