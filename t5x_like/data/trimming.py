"""Whether the preprocessors of a task trim token ids to their lengths, which hides what a row loses."""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping

_IS_ON: contextvars.ContextVar[bool] = contextvars.ContextVar("trimming", default=True)


@contextlib.contextmanager
def enabled(is_on: bool) -> Iterator[None]:
    """Sets whether the preprocessors that read `lengths` trim, for the tasks that are built in this context."""
    token = _IS_ON.set(is_on)
    try:
        yield
    finally:
        _IS_ON.reset(token)


def lengths(sequence_length: Mapping[str, int] | None) -> Mapping[str, int]:
    """Returns task feature -> length to which a preprocessor trims it; empty for no trimming."""
    return (sequence_length or {}) if _IS_ON.get() else {}
