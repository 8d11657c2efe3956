"""Records the arguments that objects are built with, so that a run started from Python can store its configuration."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_ORIGIN = "_t5x_like_origin"
_Factory = TypeVar("_Factory", bound=Callable[..., Any])


def recorded(factory: _Factory) -> _Factory:
    """Decorates a function or class so that `origin` returns the arguments that its result was built with."""
    signature = inspect.signature(factory)

    def remember(made, maker, args, kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        object.__setattr__(made, _ORIGIN, (maker, dict(bound.arguments)))  # the object may be frozen

    if not isinstance(factory, type):

        @functools.wraps(factory)
        def make(*args, **kwargs):
            made = factory(*args, **kwargs)
            remember(made, make, args, kwargs)
            return made

        return make

    init = factory.__init__

    @functools.wraps(init)
    def record_init(self, *args, **kwargs):
        init(self, *args, **kwargs)
        if type(self) is factory:  # a subclass has its own arguments
            remember(self, factory, args, kwargs)

    factory.__init__ = record_init
    return factory


def origin(thing: Any) -> tuple[Callable[..., Any], Mapping[str, Any]] | None:
    """Returns the function or class that built `thing` and its arguments with defaults, or None if unknown."""
    if found := getattr(thing, _ORIGIN, None):
        return found
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        fields = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing) if field.init}
        return type(thing), fields
    return None
