"""Functions of a user that a compiled program calls on the host, and their errors, which JAX would hide in its own.

A device whose function fails ends its program, and other devices may then wait for it forever, and the process for
them. An error that does not end a run within a while therefore ends the process.
"""

import contextlib
import threading
from collections.abc import Iterator

from t5x_like.runtime import failures

_raised: list[Exception] = []
# Set when the blocks of `explained` have ended.
_ended: list[threading.Event] = []


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Remembers the exception that its block raises, for `explained`."""
    try:
        yield
    except Exception as error:
        _raised.append(error)
        if _ended:
            threading.Thread(target=failures.exit_unless, args=(_ended[-1], error), daemon=True).start()
        raise


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raises the first remembered exception in place of the error by which JAX reports it."""
    _raised.clear()
    _ended.append(threading.Event())
    try:
        yield
    except Exception as error:
        if _raised:
            first = _raised[0]
            _raised.clear()
            raise first from error
        raise
    finally:
        _ended.pop().set()
