"""The arguments that a configured function would be called with, for those who call something else with them."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gin


def arguments(function: Callable) -> dict[str, Any]:
    """The arguments that are bound to a function, by gin or in a `functools.partial`, and the defaults of the others.

    What gin has to build for them is built.
    """
    if isinstance(function, functools.partial):
        bound, function = dict(function.keywords), function.func
    else:
        bound = gin.get_bindings(function)
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    return defaults | bound


def taken(function: Callable, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given arguments that a function takes."""
    return {name: given[name] for name in inspect.signature(function).parameters if name in given}
