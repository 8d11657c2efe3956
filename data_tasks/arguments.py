"""What a task lets its user set after it has been registered: patterns, paths, splits.

A task declares names and defaults when it is registered, and reads their values when its data is first needed. From a
configuration they come through `SeqIOSource.task_arguments`, in Python through `update`.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5x_like.errors import UserError

_DECLARED: dict[str, "Arguments"] = {}


class Arguments(Mapping[str, Any]):
    """The current values of a task's arguments, by name."""

    def __init__(self, defaults: Mapping[str, Any]):
        self._defaults, self._values = dict(defaults), dict(defaults)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def reset(self) -> None:
        """Back to the defaults."""
        self._values = dict(self._defaults)

    def set(self, name: str, value: Any) -> None:
        self._values[name] = value


def declare(task: str, **defaults: Any) -> Arguments:
    """Declares the arguments of a task, with their defaults."""
    _DECLARED[task] = Arguments(defaults)
    return _DECLARED[task]


def names(task: str) -> tuple[str, ...]:
    """The arguments that a task declares."""
    return tuple(_DECLARED.get(task, ()))


def update(tasks: Sequence[str], values: Mapping[str, Any]) -> None:
    """Sets arguments of every one of `tasks` that declares them; the others go back to their defaults.

    Raises:
      UserError: no task declares one of them, or a value is of another kind than its default; nothing is set then.
    """
    declared = {task: _DECLARED[task] for task in tasks if task in _DECLARED}
    known = sorted({name for arguments in declared.values() for name in arguments})
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise UserError(
                f"task_arguments: {', '.join(tasks)} has no argument {name!r}"
                + (f"; did you mean {near[0]!r}? There are {', '.join(known)}" if near else "")
                + ("" if near else f"; there are {', '.join(known)}" if known else ", nor any other")
            )
        for arguments in declared.values():
            _check_kind(name, value, arguments.get(name))
    for arguments in declared.values():
        arguments.reset()
        for name, value in values.items():
            if name in arguments:
                arguments.set(name, value)


def _check_kind(name: str, value: Any, default: Any) -> None:
    """A default of None stands for a text that is not given."""
    kinds = (int, float) if isinstance(default, float) else (str, type(None)) if default is None else (type(default),)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise UserError(f"task_arguments: {name}={value!r} must be of type {kinds[0].__name__}")
