"""Arguments that a registered task lets its user set: patterns, paths, splits.

A task declares the names and defaults of its arguments when it is registered, and reads their values when its data is
first needed. A configuration sets them through `SeqIOSource.task_arguments`, Python code through `update`. A source
without arguments reads the values that Python code set, whatever another source of the task has set.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t5x_like.errors import UserError

VOCABULARY = "vocabulary_path"
"""The argument with the vocabulary, for tasks that can use any."""

OF_FILES = {
    "pattern": "data_files",
    "validation_pattern": "validation_files",
    "text_column": "text_column",
    "on_bad_record": "on_bad_record",
}
"""The arguments of tasks that read any files of text -> the attribute of `SeqIOSource` that sets them."""

ROW_LENGTH = "row_length"
"""The argument with the length of a row of continuous data, for tasks whose documents are made of such rows.

The source sets it from its lengths, since tasks get no lengths of continuous data.
"""

_DECLARED: dict[str, "Arguments"] = {}


class Unset(NamedTuple):
    """A default of None for an argument whose values have the type `kind`."""

    kind: type


class Arguments(Mapping[str, Any]):
    """The current values of a task's arguments by name.

    Args:
      defaults: argument name -> default value.
    """

    def __init__(self, defaults: Mapping[str, Any]):
        self._defaults, self._kept = dict(defaults), None
        self.reset()

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def reset(self) -> None:
        """Restores the defaults."""
        self._values = {name: None if isinstance(value, Unset) else value for name, value in self._defaults.items()}

    def default(self, name: str) -> Any:
        """Returns the default of one argument."""
        return self._defaults[name]

    def set(self, name: str, value: Any) -> None:
        """Sets one argument; `update` checks names and types first."""
        self._values[name] = value

    def keep(self) -> None:
        """Keeps the current values, before a source sets others; values that are kept already stay."""
        self._kept = dict(self) if self._kept is None else self._kept

    def release(self, *, restore: bool) -> None:
        """Ends `keep`, and sets the kept values if `restore`."""
        kept, self._kept = self._kept, None
        for name, value in (kept or {}).items() if restore else ():
            self.set(name, value)


class _Extended(Arguments):
    """The arguments of another task, which keeps their values, and more.

    Args:
      base: the arguments of the other task.
      defaults: argument name -> default value of the others.
    """

    def __init__(self, base: Arguments, defaults: Mapping[str, Any]):
        self._base = base
        super().__init__(defaults)

    def __getitem__(self, name: str) -> Any:
        return self._base[name] if name in self._base else super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        yield from super().__iter__()

    def __len__(self) -> int:
        return len(self._base) + super().__len__()

    def reset(self) -> None:
        """Restores the defaults."""
        self._base.reset()
        super().reset()

    def default(self, name: str) -> Any:
        """Returns the default of one argument."""
        return self._base.default(name) if name in self._base else super().default(name)

    def set(self, name: str, value: Any) -> None:
        """Sets one argument; `update` checks names and types first."""
        (self._base.set if name in self._base else super().set)(name, value)


def declare(task: str, **defaults: Any) -> Arguments:
    """Declares the arguments of a task with their defaults."""
    _DECLARED[task] = Arguments(defaults)
    return _DECLARED[task]


def share(task: str, other: str) -> None:
    """Declares that the task `other` has the arguments of `task`, with the same values."""
    _DECLARED[other] = _DECLARED[task]


def extend(task: str, other: str, **defaults: Any) -> Arguments:
    """Declares that the task `other` has the arguments of `task`, with the same values, and more of its own."""
    _DECLARED[other] = _Extended(_DECLARED[task], defaults)
    return _DECLARED[other]


def names(task: str) -> tuple[str, ...]:
    """Returns the names of the arguments that a task declares."""
    return tuple(_DECLARED.get(task, ()))


def current(task: str) -> dict[str, Any]:
    """Returns the current values of the arguments of a task by name; empty if it declares none."""
    return dict(_DECLARED.get(task, {}))


def reset() -> None:
    """Restores the defaults of the arguments of all tasks."""
    for arguments in _DECLARED.values():
        arguments.release(restore=False)
        arguments.reset()


def restore(tasks: Sequence[str]) -> None:
    """Sets the arguments of tasks to the values that they had before sources set others."""
    for task in tasks:
        if task in _DECLARED:
            _DECLARED[task].release(restore=True)


def update(tasks: Sequence[str], values: Mapping[str, Any], *, of_source: bool = False) -> None:
    """Sets arguments of all `tasks` that declare them, and resets their other arguments to the defaults.

    Args:
      tasks: names of tasks.
      values: argument name -> value, for all tasks that declare the argument; or task name -> arguments of this task,
        which take precedence.
      of_source: whether the values are those of a source, so that `restore` sets the earlier ones again.

    Raises:
      UserError: none of the tasks declares one of the arguments, an entry is for another task, or a value does not have
        the type of its default. No argument is changed then.
    """
    shared, own = _split(tasks, values)
    _check(tasks, shared)
    for task, arguments in own.items():
        _check([task], arguments)
    for task in tasks:
        if task in _DECLARED:
            if of_source:
                _DECLARED[task].keep()
            else:
                _DECLARED[task].release(restore=False)
            _DECLARED[task].reset()
            for name, value in for_task(task, values).items():
                _DECLARED[task].set(name, value)


def for_task(task: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments in `values`, as for `update`, that one task declares."""
    own = values.get(task, {})
    found = values | own if isinstance(own, Mapping) else values
    return {name: value for name, value in found.items() if name in names(task)}


def find(values: Mapping[str, Any], name: str) -> Any:
    """Returns the first value of an argument in `values`, as for `update`; None if it is not set."""
    groups = (values, *(own for own in values.values() if isinstance(own, Mapping)))
    return next((group[name] for group in groups if group.get(name) is not None), None)


def without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns `values`, as for `update`, without an argument of all tasks or of one."""
    kept = {key: without(value, name) if isinstance(value, Mapping) else value for key, value in values.items()}
    return {key: value for key, value in kept.items() if key != name}


def _split(tasks: Sequence[str], values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Mapping[str, Any]]]:
    """Returns the arguments of all tasks, and the arguments of single tasks."""
    declared = {name for task in tasks for name in names(task)}
    own = {name: value for name, value in values.items() if isinstance(value, Mapping) and name not in declared}
    if unknown := [name for name in own if name not in tasks]:
        near = difflib.get_close_matches(unknown[0], tasks, n=1)
        raise UserError(
            f"TASK_ARGUMENTS: {unknown[0]!r} is not one of the tasks. "
            + (f"Did you mean {near[0]!r}? " if near else "")
            + f"Give arguments for {', '.join(tasks)}."
        )
    return {name: value for name, value in values.items() if name not in own}, own


def _check(tasks: Sequence[str], values: Mapping[str, Any]) -> None:
    """Checks the names and types of arguments that at least one of `tasks` declares."""
    declared = [_DECLARED[task] for task in tasks if task in _DECLARED]
    known = sorted({name for arguments in declared for name in arguments})
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise UserError(
                f"TASK_ARGUMENTS: {', '.join(tasks)} has no argument {name!r}. "
                + (f"Did you mean {near[0]!r}? " if near else "")
                + (f"Arguments of the task: {', '.join(known)}." if known else "Remove it.")
            )
        for arguments in declared:
            if name in arguments:
                _check_type(name, value, arguments.default(name))


def _check_type(name: str, value: Any, default: Any) -> None:
    """Checks a value against its default; a default of None stands for a string that is not set."""
    default = Unset(str) if default is None else default
    types = (float, int) if isinstance(default, float) else (type(default),)
    if isinstance(default, Unset):
        types = (default.kind, type(None))
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UserError(
            f"TASK_ARGUMENTS: {name}={value!r} has the type {type(value).__name__}. Give a value of type "
            f"{types[0].__name__}."
        )
