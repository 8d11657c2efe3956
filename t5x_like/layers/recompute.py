"""Cheap functions whose backward pass recomputes intermediate results instead of reading saved ones."""

import contextlib
import contextvars
import functools
from collections.abc import Callable

import jax

_IN_SCAN: contextvars.ContextVar[bool] = contextvars.ContextVar("in_scan", default=False)


@contextlib.contextmanager
def in_scan():
    """Marks a part of a trace as the body of a scan."""
    token = _IN_SCAN.set(True)
    try:
        yield
    finally:
        _IN_SCAN.reset(token)


def recomputed(function: Callable) -> Callable:
    """Returns a function that saves only its arguments for the backward pass.

    `jax.checkpoint` keeps XLA from sharing results between the passes by a barrier, which it cannot fuse across. In a
    scan, each pass is a loop of its own and shares nothing. There is no barrier then, so a fusion reads the saved
    arrays of a layer from the stack of all layers, without a copy.

    Args:
      function: Any function of arrays.
    """

    @functools.wraps(function)
    def call(*args):
        return jax.checkpoint(function, prevent_cse=not _IN_SCAN.get())(*args)

    return call


def recomputed_in_scan(function: Callable) -> Callable:
    """Returns `recomputed(function)` in the body of a scan, and the function itself elsewhere."""
    return recomputed(function) if _IN_SCAN.get() else function
