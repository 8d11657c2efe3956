"""Errors of the workers of Apache Beam."""

import contextlib
import re
from collections.abc import Iterator

from t5x_like.errors import RunFailed, UserError

# Beam appends the name of the transform to the message of an error.
_WHILE = re.compile(r" \[while running .*", re.DOTALL)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raises the `UserError` or `RunFailed` of a worker with its own message, and other errors as they are."""
    try:
        yield
    except Exception as error:
        if (original := _original(error)) is None:
            raise
        raise original from error


def _original(error: Exception) -> UserError | RunFailed | None:
    """Returns the error of a worker, None for errors of other kinds.

    Within this process, Beam raises the error with a longer message. Runners with other processes raise an error whose
    message is the traceback of the worker.
    """
    for kind in (UserError, RunFailed):
        if isinstance(error, kind):
            return kind(_WHILE.sub("", str(error)))
        if found := re.findall(rf"^{re.escape(kind.__module__)}\.{kind.__name__}: (.*)$", str(error), re.MULTILINE):
            return kind(_WHILE.sub("", found[-1]))
    return None
