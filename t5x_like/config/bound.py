"""The arguments that a configured function would be called with, for those who call something else with them."""

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import gin


def arguments(function: Callable, *, without: Collection[str] = ()) -> dict[str, Any]:
    """The arguments that are bound to a function, by gin or in a `functools.partial`, and the defaults of the others.

    What gin has to build for them is built, except for those in `without`, which are left out.
    """
    if isinstance(function, functools.partial):
        bound, function = dict(function.keywords), function.func
    else:
        bound = gin.get_bindings(function, resolve_references=False)
        # A copy of a reference or a macro is what it stands for: gin calls functions with such copies.
        bound = {name: copy.deepcopy(value) for name, value in bound.items() if name not in without}
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty and name not in without
    }
    return defaults | bound


def taken(function: Callable, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given arguments that a function takes."""
    return {name: given[name] for name in inspect.signature(function).parameters if name in given}
