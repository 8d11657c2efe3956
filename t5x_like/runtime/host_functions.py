"""Functions of a user that a compiled program calls on the host, and their errors, which JAX would hide in its own."""

import contextlib
from collections.abc import Iterator

_raised: list[Exception] = []


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Remembers the exception that its block raises, for `explained`."""
    try:
        yield
    except Exception as error:
        _raised.append(error)
        raise


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raises the first remembered exception in place of the error by which JAX reports it."""
    _raised.clear()
    try:
        yield
    except Exception as error:
        if _raised:
            first = _raised[0]
            _raised.clear()
            raise first from error
        raise
