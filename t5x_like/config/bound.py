"""Reads the arguments that are bound to a configured function."""

import copy
import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

import gin


def arguments(function: Callable, *, without: Collection[str] = ()) -> dict[str, Any]:
    """Returns the arguments of a function: those that gin or a `functools.partial` binds, and defaults for the others.

    Args:
      function: A function that gin configures, or a `functools.partial`.
      without: Parameters to omit. gin does not build the objects of omitted parameters.

    Returns:
      Arguments by parameter.
    """
    if isinstance(function, functools.partial):
        bound, function = dict(function.keywords), function.func
    else:
        bound = gin.get_bindings(function, resolve_references=False)
        # gin evaluates references and macros when they are copied.
        bound = {name: copy.deepcopy(value) for name, value in bound.items() if name not in without}
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty and name not in without
    }
    return defaults | bound
