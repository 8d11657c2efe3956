"""Finds the settings that a command uses, by following references and macros as gin evaluates them."""

import dataclasses
import functools
import inspect
from collections.abc import Collection
from typing import Any, NamedTuple

import gin

from t5x_like.config.files import Setting, Statements
from t5x_like.config.search import comment_of, shipped_setters
from t5x_like.config.values import REQUIRED, Macro, Reference, nearest, references_in, replace

Key = tuple[str, str, str]  # (scope, name of the callable, parameter)


@dataclasses.dataclass
class Reached:
    """The callables, bindings and macros that a command reaches, in the order of the walk.

    Attributes:
      callables: Name -> scopes in which it is used.
      called: (Name, scope) of callables that gin calls -> location of the reference. The others are passed as
        functions.
      bindings: Settings that apply in some scope.
      macros: Settings of the macros in use.
      problems: Error messages.
      is_incomplete: Whether one of them is about a missing value.
    """

    callables: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    called: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    bindings: dict[Key, Setting] = dataclasses.field(default_factory=dict)
    macros: dict[str, Setting] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)
    is_incomplete: bool = False


def prefixes(scope: str) -> list[str]:
    """Returns the scopes whose bindings apply in `scope`, outermost first: `""`, `a`, `a/b`."""
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:length]) for length in range(len(parts) + 1)]


def applicable(statements: Statements, name: str, scope: str) -> dict[str, Setting]:
    """Returns the settings of a callable in a scope. Inner scopes take precedence over outer scopes."""
    settings: dict[str, Setting] = {}
    for prefix in prefixes(scope):
        settings |= statements.bindings.get((prefix, name), {})
    return settings


def walk(statements: Statements, root: str, *others: str, excluded: Collection[Key] = ()) -> Reached:
    """Finds everything that `root`, and other functions, reach, with the scopes in which gin evaluates it.

    A reference without scope inherits the current scope, and a reference with scope replaces it. The value of a macro
    is evaluated in a scope with the name of the macro. A function that its own module made configurable is called by
    code and not through references, so its bindings always count as reached.

    Args:
      statements: All statements.
      root: Name of the command's function.
      *others: Names of further functions.
      excluded: Settings that are not followed.

    Returns:
      The reached settings.
    """
    reached = Reached()
    for name in (root, *others):
        _Walk(statements, reached, set(excluded)).callable(name, "", f"the command {name}")
    for scope, name in statements.bindings:
        if name in statements.callables and _is_decorated(statements.callables[name]):
            _Walk(statements, reached, set(excluded)).callable(name, scope, "")
    return reached


class _Walk:
    def __init__(self, statements: Statements, reached: Reached, excluded: set[Key]):
        self._statements, self._reached, self._excluded = statements, reached, excluded
        self._expanding: list[str] = []  # the macros being expanded

    def callable(self, name: str, scope: str, called_by: str) -> None:
        if called_by:
            self._reached.called.setdefault((name, scope), called_by)
        scopes = self._reached.callables.setdefault(name, [])
        if scope in scopes:
            return
        scopes.append(scope)
        for prefix in prefixes(scope):
            for parameter, setting in self._statements.bindings.get((prefix, name), {}).items():
                if (prefix, name, parameter) not in self._excluded:
                    self._reached.bindings[(prefix, name, parameter)] = setting
        for parameter, setting in self._in_order(name, applicable(self._statements, name, scope)):
            if not {(prefix, name, parameter) for prefix in prefixes(scope)} & self._excluded:
                if setting.value == REQUIRED:
                    self._reached.problems.append(f"{name}.{parameter} is required ({setting.where}) and not set")
                    self._reached.is_incomplete = True
                self.value(setting, scope)

    def _in_order(self, name: str, settings: dict[str, Setting]) -> list[tuple[str, Setting]]:
        order = list(signature(self._statements.callables.get(name)).parameters)
        return sorted(settings.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))

    def value(self, setting: Setting, scope: str) -> None:
        for item in references_in(setting.value):
            if isinstance(item, Reference):
                called_by = setting.where if item.evaluate else ""
                self.callable(item.selector, item.scope or scope, called_by)
            elif item != REQUIRED:
                self.macro(item.name, setting.where)

    def macro(self, name: str, where: str) -> None:
        setting = self._statements.macros.get(name)
        if setting is None:
            if not _is_constant(name):
                hint = shipped_setters(name) or nearest(name, self._statements.macros)
                self._problem(f"{where}: undefined macro %{name}{hint}")
                self._reached.is_incomplete = True
            return
        if name in self._expanding:
            self._problem(f"{setting.where}: {' → '.join([*self._expanding, name])} is a circular macro")
            return
        known = name in self._reached.macros
        self._reached.macros.setdefault(name, setting)
        if setting.value == REQUIRED:
            if not known:
                meaning = f": {comment}" if (comment := comment_of(setting.where)) else ""
                flag = self._statements.flags.get(name, f"--gin.{name}=…")
                self._problem(f"{name} is required ({where} uses it){meaning}. Give {flag}, or a gin file that sets it")
                self._reached.is_incomplete = True
            return
        self._expanding.append(name)
        self.value(setting, name)
        self._expanding.pop()

    def _problem(self, text: str) -> None:
        if text not in self._reached.problems:
            self._reached.problems.append(text)


def resolved(value: Any, statements: Statements) -> Any:
    """Replaces every macro in `value` by its value."""

    def expand(item: Reference | Macro) -> Any:
        if isinstance(item, Macro) and item.name in statements.macros:
            return resolved(statements.macros[item.name].value, statements)
        return item

    return replace(value, expand)


class Signature(NamedTuple):
    """The signature of a callable.

    Attributes:
      parameters: Parameters that gin can set by name.
      takes_any: Whether it accepts other keyword arguments.
    """

    parameters: dict[str, inspect.Parameter]
    takes_any: bool


@functools.cache
def signature(function: Any) -> Signature:
    """Returns the signature of a function or class. Without an available signature, every parameter is accepted."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return Signature({}, True)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return Signature(
        {parameter.name: parameter for parameter in found if parameter.kind in by_name},
        any(parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in found),
    )


def _is_decorated(function) -> bool:
    """Returns whether gin binds a function's parameters for every caller, because its module made it configurable."""
    try:
        return gin.get_configurable(function) is function
    except ValueError:
        return False


def _is_constant(name: str) -> bool:
    """Returns whether a module has defined a gin constant of this name."""
    try:
        gin.query_parameter(name)
    except ValueError:
        return False
    return "." in name
