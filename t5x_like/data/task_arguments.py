"""Arguments that a registered task lets its user set: patterns, paths, splits.

A task declares the names and defaults of its arguments when it is registered, and reads their values when its data is
first needed. A configuration sets them through `SeqIOSource.task_arguments`, Python code through `update`.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5x_like.errors import UserError

_DECLARED: dict[str, "Arguments"] = {}


class Arguments(Mapping[str, Any]):
    """The current values of a task's arguments by name.

    Args:
      defaults: argument name -> default value.
    """

    def __init__(self, defaults: Mapping[str, Any]):
        self._defaults, self._values = dict(defaults), dict(defaults)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def reset(self) -> None:
        """Restores the defaults."""
        self._values = dict(self._defaults)

    def set(self, name: str, value: Any) -> None:
        """Sets one argument; `update` checks names and types first."""
        self._values[name] = value


def declare(task: str, **defaults: Any) -> Arguments:
    """Declares the arguments of a task with their defaults."""
    _DECLARED[task] = Arguments(defaults)
    return _DECLARED[task]


def names(task: str) -> tuple[str, ...]:
    """Returns the names of the arguments that a task declares."""
    return tuple(_DECLARED.get(task, ()))


def update(tasks: Sequence[str], values: Mapping[str, Any]) -> None:
    """Sets arguments of all `tasks` that declare them, and resets their other arguments to the defaults.

    Args:
      tasks: names of tasks.
      values: argument name -> value.

    Raises:
      UserError: none of the tasks declares one of the arguments, or a value does not have the type of its default. No
        argument is changed then.
    """
    declared = {task: _DECLARED[task] for task in tasks if task in _DECLARED}
    known = sorted({name for arguments in declared.values() for name in arguments})
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise UserError(
                f"TASK_ARGUMENTS: {', '.join(tasks)} has no argument {name!r}. "
                + (f"Did you mean {near[0]!r}? " if near else "")
                + (f"Arguments of the task: {', '.join(known)}." if known else "Remove it.")
            )
        for arguments in declared.values():
            _check_type(name, value, arguments.get(name))
    for arguments in declared.values():
        arguments.reset()
        for name, value in values.items():
            if name in arguments:
                arguments.set(name, value)


def _check_type(name: str, value: Any, default: Any) -> None:
    """Checks a value against its default; a default of None stands for a string that is not set."""
    types = (int, float) if isinstance(default, float) else (str, type(None)) if default is None else (type(default),)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UserError(
            f"TASK_ARGUMENTS: {name}={value!r} has the type {type(value).__name__}. Give a value of type "
            f"{types[0].__name__}."
        )
