"""Errors of the workers of Apache Beam."""

import contextlib
import re
import sys
import threading
from collections.abc import Iterator

from t5x_like.errors import RunFailed, UserError
from t5x_like.runtime import background, protocol

# Beam appends the name of the transform to the message of an error.
_WHILE = re.compile(r" \[while running .*", re.DOTALL)
_ENDED = re.compile(r"Worker subprocess exited with return code (-?\d+)")


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raises the `UserError` or `RunFailed` of a worker with its own message, and other errors as they are.

    If a worker process of this machine ends, such as by SIGKILL, the process exits with a message: the runner of Beam
    would wait for the worker forever.
    """
    hook = threading.excepthook
    threading.excepthook = _exit_if_worker_ended(hook)
    try:
        yield
    except Exception as error:
        if (original := _original(error)) is None:
            raise
        raise original from error
    finally:
        threading.excepthook = hook


def _exit_if_worker_ended(otherwise):
    """Returns a hook for errors in threads: a thread of Beam waits for each worker process."""

    def hook(args):
        found = _ENDED.fullmatch(str(args.exc_value))
        if found is None:
            return otherwise(args)
        print(
            f"t5x_like: a worker process of Apache Beam ended with code {found[1]} (137: killed, such as for lack of "
            "memory). Repeat the command; for less memory, with fewer workers.",
            file=sys.stderr,
        )
        background.exit_without_waiting(protocol.FAILURE)

    return hook


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
