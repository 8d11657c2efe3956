"""Checks a configuration: missing values, unknown parameters, wrong types, and settings that are not used."""

import collections.abc
import difflib
import functools
import inspect
import types
import typing
from collections.abc import Collection
from typing import Any

import gin

from t5x_like.config.files import STORED, Setting, Statements
from t5x_like.config.search import shipped_references, shipped_users
from t5x_like.config.trust import MODULE_PARAMETER, Trust, module_refusal
from t5x_like.config.values import (
    ConfigError,
    IncompleteConfig,
    Macro,
    Reference,
    format_value,
    nearest,
    references_in,
)
from t5x_like.config.walk import Reached, applicable, resolved, signature


def check(
    statements: Statements,
    reached: Reached,
    given: Collection[str],
    root: str,
    trust: Trust,
    used: Reached,
    inputs: Collection[str] = (),
) -> None:
    """Checks a configuration.

    Args:
      statements: All statements.
      reached: The settings that the command reaches.
      given: Parameters of `root` that its caller passes.
      root: Name of the command's function.
      trust: Modules that a stored configuration may use.
      used: The settings that count as used: those that the command reaches, and others that it accepts.
      inputs: Macros that derivations read, which the command need not reach.

    Raises:
      ConfigError: The configuration is invalid. The message has one line per problem. An `IncompleteConfig` if a
        required value is missing.
    """
    if refused := [statements.refused[name] for name in reached.callables if name in statements.refused]:
        raise ConfigError("\n".join(refused))
    missing = list(_missing(statements, reached, given, root))
    problems = [
        *statements.problems,
        *_untrusted_modules(statements, reached, trust),
        *reached.problems,
        *_unknown_parameters(statements, reached),
        *missing,
        *_text_for_references(reached),
        *_functions_for_results(reached),
        *_wrong_types(statements, reached),
        *_unused(statements, used, inputs),
    ]
    if problems:
        kind = IncompleteConfig if missing or reached.is_incomplete else ConfigError
        raise kind("\n".join(dict.fromkeys(problems)))  # two parameters may read the same macro


def _untrusted_modules(statements, reached, trust):
    """Task modules that only a stored configuration names."""
    for (_, _, parameter), setting in reached.bindings.items():
        setting, _ = _origin(setting, parameter, statements)
        settings = [
            setting,
            *(_origin(Setting(item, "", ""), "", statements)[0] for item in references_in(setting.value)),
        ]
        stored = next((one for one in settings if one.origin == STORED), None)
        if parameter != MODULE_PARAMETER or stored is None:
            continue
        value = resolved(setting.value, statements)
        for module in [value] if isinstance(value, str) else value or ():
            if not trust.may_import(module):
                yield module_refusal(stored.where, module)


def _unknown_parameters(statements, reached):
    for (_, name, parameter), setting in reached.bindings.items():
        known = signature(statements.callables[name])
        if parameter not in known.parameters and not known.takes_any:
            hint = nearest(parameter, known.parameters) or f". Its parameters are {', '.join(known.parameters)}"
            yield f"{setting.where}: {name} has no parameter {parameter}{hint}"


def _missing(statements, reached, given, root):
    for (name, scope), called_by in reached.called.items():
        missing = []
        bound = set(applicable(statements, name, scope)) | (set(given) if name == root else set())
        for parameter, description in signature(statements.callables[name]).parameters.items():
            needed = description.default is inspect.Parameter.empty or description.default is gin.REQUIRED
            if needed and parameter not in bound:
                missing.append(parameter)
        where = called_by if name == root else f"{called_by}: {name}"
        if missing and (name == root or len(missing) > 1):
            yield (
                f"{where} requires {', '.join(missing)}, which is not set. Give a --gin_file that sets it, such as one "
                "of runs/"
            )
        elif missing:
            yield f"{where} requires {missing[0]}, which is not set. Give {name}.{missing[0]} = …"


def _unused(statements, reached, inputs):
    for name, setting in statements.macros.items():
        if setting.set_by_user and name not in reached.macros and name not in inputs:
            yield f"{setting.where}: {name} is not used{_user_of(name, statements, reached, inputs)}"
    for (scope, name), settings in statements.bindings.items():
        for parameter, setting in settings.items():
            if setting.set_by_user and (scope, name, parameter) not in reached.bindings:
                shown = f"{scope}/{name}" if scope else name
                last, others = name.rpartition(".")[2], {known.rpartition(".")[2] for known in reached.callables}
                hint = "" if name in reached.callables else nearest(last, others)
                yield f"{setting.where}: {shown}.{parameter} is not used in this run{hint}"


def _user_of(macro, statements, reached, inputs):
    """Returns a hint for an unused macro: a parameter outside of the run that uses it, or the nearest name."""
    for (_, name), settings in statements.bindings.items():
        for parameter, setting in settings.items():
            if Macro(macro) in references_in(setting.value):
                return f": only {name}.{parameter} ({setting.where}) uses it, which is not part of this run"
    # A name that shipped files use is not misspelled.
    return shipped_users(macro) or nearest(macro, [*reached.macros, *inputs])


def _text_for_references(reached):
    """Text such as `--gin.OPTIMIZER=adamw` for a macro whose value must be a reference."""
    for name, setting in reached.macros.items():
        if not (setting.set_by_user and isinstance(setting.value, str)):
            continue
        if references := shipped_references(name):
            meant = _plain(setting.value)
            likeness = {
                file: max(
                    difflib.SequenceMatcher(None, meant, _plain(known)).ratio()
                    for known in (
                        file.rpartition("/")[2].removesuffix(".gin"),
                        reference.rpartition(".")[2].strip("()"),
                    )
                )
                for file, reference in references.items()
            }
            file = max(sorted(likeness), key=likeness.get)
            yield (
                f"{setting.where}: {name} = {format_value(setting.value)} is text and must be a reference. Give "
                f"--gin_file={file} after the file of the run, or --gin.{name}={references[file]}"
            )


def _functions_for_results(reached):
    """A reference without parentheses, such as `@optimizers.adamw`, for a macro that shipped files set to results."""
    for name, setting in reached.macros.items():
        value = setting.value
        if setting.set_by_user and isinstance(value, Reference) and not value.evaluate:
            references = shipped_references(name).values()
            if references and all(each.endswith("()") for each in references):
                yield f"{setting.where}: {name} = {value} is a function, not its result. Write {value}()"


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _wrong_types(statements, reached):
    for (_, name, parameter), setting in reached.bindings.items():
        allowed = _allowed_types(_annotation(statements.callables[name], parameter))
        setting, label = _origin(setting, f"{name}.{parameter}", statements)
        value = setting.value
        if allowed is None or _fits(value, allowed):
            continue
        kinds = " or ".join(dict.fromkeys(map(_word, allowed)))
        yield f"{setting.where}: {label} = {format_value(value)} must be {kinds}{_hint(label, value, allowed)}"


_TYPE_WORDS = {int: "an integer", float: "a number", bool: "True or False", str: "a string", types.NoneType: "None"}
_PLURALS = {int: "integers", float: "numbers", bool: "booleans", str: "strings", types.NoneType: "None"}
_LISTS, _DICTIONARIES = (list, tuple, collections.abc.Sequence), (dict, collections.abc.Mapping)


def _origin(setting, label, statements):
    """Follows macros to the setting that has the value, or around a circular macro once."""
    followed = set()
    while isinstance(setting.value, Macro) and setting.value.name in statements.macros.keys() - followed:
        label, setting = setting.value.name, statements.macros[setting.value.name]
        followed.add(label)
    return setting, label


@functools.cache
def _type_hints(function):
    return typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)


def _annotation(function, parameter):
    """Returns the annotation of a parameter; Any for one that cannot be evaluated."""
    try:
        return _type_hints(function)[parameter]
    except Exception:
        return Any


def _allowed_types(annotation):
    """Returns the types that an annotation allows if it only has scalars, lists and dictionaries, else None."""
    options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    allowed = []
    for option in options:
        if typing.get_origin(option) is typing.Literal:
            allowed += [value if isinstance(value, str) else type(value) for value in typing.get_args(option)]
        elif option in _TYPE_WORDS or (typing.get_origin(option) or option) in (*_LISTS, *_DICTIONARIES):
            allowed.append(option)
        else:
            return None
    return allowed


def _is_union(annotation):
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _fits(value, allowed):
    """Returns whether a value has one of the types. References and macros have any type."""
    if isinstance(value, list | tuple | dict):
        kinds = _DICTIONARIES if isinstance(value, dict) else _LISTS
        return any(_fits_elements(value, kind) for kind in allowed if (typing.get_origin(kind) or kind) in kinds)
    if not isinstance(value, str | int | float | bool | None):
        return True
    if isinstance(value, str):
        return value in allowed or str in allowed
    return type(value) in allowed or (type(value) is int and float in allowed)


def _fits_elements(value, kind):
    """Returns whether the elements of a list, or the values of a dictionary, have the types that `kind` allows."""
    allowed = _element_types(kind)
    return allowed is None or all(
        _fits(each, allowed) for each in (value.values() if isinstance(value, dict) else value)
    )


def _element_types(kind):
    arguments = [each for each in typing.get_args(kind) if each is not Ellipsis]
    arguments = arguments[1:] if typing.get_origin(kind) in _DICTIONARIES else arguments
    found = [_allowed_types(each) for each in arguments]
    return None if not found or None in found else [each for options in found for each in options]


def _word(kind):
    """Returns what a type is called in a message."""
    if isinstance(kind, str):
        return repr(kind)
    if kind in _TYPE_WORDS:
        return _TYPE_WORDS[kind]
    return _with_elements("a dictionary" if _is_dictionary(kind) else "a list", kind)


def _with_elements(noun, kind):
    """Returns what lists or dictionaries are called in a message, with their elements."""
    plurals = dict.fromkeys(map(_plural, _element_types(kind) or ()))
    return f"{noun} of {' or '.join(plurals)}" if plurals else noun


def _plural(kind):
    if isinstance(kind, str):
        return repr(kind)
    return _PLURALS.get(kind) or _with_elements("dictionaries" if _is_dictionary(kind) else "lists", kind)


def _is_dictionary(kind):
    return (typing.get_origin(kind) or kind) in _DICTIONARIES


def _hint(label, value, allowed):
    if isinstance(value, float) and int in allowed and value.is_integer():
        return f": write {int(value)}"
    if value is None and str in allowed:
        return f": give --gin.{label}=…"
    if str in allowed and isinstance(value, int | float | bool):
        return f": write --gin.{label}=\"'{value}'\""
    return ""
