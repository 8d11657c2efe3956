"""What a command reaches: from its own function through references and macros, the way gin would call them."""

import dataclasses
import inspect
from collections.abc import Collection
from typing import Any, NamedTuple

import gin

from t5x_like.config.files import Setting, Statements, shipped_setters
from t5x_like.config.values import REQUIRED, Macro, Reference, inner, nearest, replace

Key = tuple[str, str, str]  # (scope, name of the callable, parameter)


@dataclasses.dataclass
class Reached:
    """What a walk met, in the order in which it met it.

    Attributes:
      callables: name → the scopes that it is called in.
      called: names that gin itself calls, with the place that asks for it; others are handed on as functions.
      bindings: the settings that apply somewhere.
      macros: the macros that are read.
      problems: what cannot be run.
    """

    callables: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    called: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    bindings: dict[Key, Setting] = dataclasses.field(default_factory=dict)
    macros: dict[str, Setting] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)


def prefixes(scope: str) -> list[str]:
    """The scopes whose bindings apply in `scope`, from the outermost: `""`, `a`, `a/b`."""
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:length]) for length in range(len(parts) + 1)]


def applicable(statements: Statements, name: str, scope: str) -> dict[str, Setting]:
    """The settings of a callable in a scope, an inner scope's before an outer one's."""
    settings: dict[str, Setting] = {}
    for prefix in prefixes(scope):
        settings |= statements.bindings.get((prefix, name), {})
    return settings


def walk(statements: Statements, root: str, *, leave_out: Collection[Key] = ()) -> Reached:
    """Everything that `root` reaches, as gin would evaluate it.

    A reference without a scope inherits the one it is evaluated in, a reference with one replaces it, and what a macro
    stands for is evaluated in a scope of the macro's name. Functions that their own module made configurable are called
    by code, not by references, so their bindings count as reached.

    Args:
      statements: what was read.
      root: name of the command's function.
      leave_out: settings that are not followed.
    """
    reached = Reached()
    _Walk(statements, reached, set(leave_out)).callable(root, "", f"the command {root}")
    for scope, name in statements.bindings:
        if name in statements.callables and _is_decorated(statements.callables[name]):
            _Walk(statements, reached, set(leave_out)).callable(name, scope, "")
    return reached


class _Walk:
    def __init__(self, statements: Statements, reached: Reached, leave_out: set[Key]):
        self._statements, self._reached, self._leave_out = statements, reached, leave_out
        self._within: list[str] = []  # the macros being expanded

    def callable(self, name: str, scope: str, called_by: str) -> None:
        if called_by:
            self._reached.called.setdefault((name, scope), called_by)
        scopes = self._reached.callables.setdefault(name, [])
        if scope in scopes:
            return
        scopes.append(scope)
        for prefix in prefixes(scope):
            for parameter, setting in self._statements.bindings.get((prefix, name), {}).items():
                if (prefix, name, parameter) not in self._leave_out:
                    self._reached.bindings[(prefix, name, parameter)] = setting
        for parameter, setting in self._in_order(name, applicable(self._statements, name, scope)):
            if not {(prefix, name, parameter) for prefix in prefixes(scope)} & self._leave_out:
                if setting.value == REQUIRED:
                    self._reached.problems.append(f"{name}.{parameter} is required ({setting.where}): nothing sets it")
                self.value(setting, scope)

    def _in_order(self, name: str, settings: dict[str, Setting]) -> list[tuple[str, Setting]]:
        order = list(signature(self._statements.callables.get(name)).parameters)
        return sorted(settings.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))

    def value(self, setting: Setting, scope: str) -> None:
        for item in inner(setting.value):
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
                self._problem(f"{where}: nothing sets %{name}{hint}")
            return
        if name in self._within:
            self._problem(f"{setting.where}: {' → '.join([*self._within, name])} goes round in a circle")
            return
        known = name in self._reached.macros
        self._reached.macros.setdefault(name, setting)
        if setting.value == REQUIRED:
            if not known:
                self._problem(f"{name} is required ({where} reads it): give --gin.{name}=…, or a gin file that sets it")
            return
        self._within.append(name)
        self.value(setting, name)
        self._within.pop()

    def _problem(self, text: str) -> None:
        if text not in self._reached.problems:
            self._reached.problems.append(text)


def resolved(value: Any, statements: Statements) -> Any:
    """`value` with every macro replaced by what it stands for."""

    def expand(item: Reference | Macro) -> Any:
        if isinstance(item, Macro) and item.name in statements.macros:
            return resolved(statements.macros[item.name].value, statements)
        return item

    return replace(value, expand)


class Signature(NamedTuple):
    """The parameters of a callable that gin can set by name, and whether it takes others too."""

    parameters: dict[str, inspect.Parameter]
    takes_any: bool


def signature(function: Any) -> Signature:
    """The signature of a function or class; one that does not tell takes anything."""
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
    """Whether its own module made a function configurable, so that gin gives it parameters whoever calls it."""
    try:
        return gin.get_configurable(function) is function
    except ValueError:
        return False


def _is_constant(name: str) -> bool:
    """Whether a module has defined a gin constant of this name."""
    try:
        gin.query_parameter(name)
    except ValueError:
        return False
    return "." in name
