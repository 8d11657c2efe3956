"""Errors of Apache Beam: of its options and of its workers."""

import contextlib
import re
import sys
import threading
from collections.abc import Iterator, Sequence

from t5x_like.errors import RunFailed, UserError
from t5x_like.runtime import background, protocol

# Beam appends the name of the transform to the message of an error.
_WHILE = re.compile(r" \[while running .*", re.DOTALL)
_ENDED = re.compile(r"Worker subprocess exited with return code (-?\d+)")


def check_options(options: Sequence[str] | None) -> None:
    """Checks that the setting BEAM has options of a pipeline.

    Raises:
      UserError: it is not a list of strings.
    """
    if options is None or (isinstance(options, list | tuple) and all(isinstance(option, str) for option in options)):
        return
    raise UserError(
        f"BEAM={options!r} is not a list of pipeline options. Give one such as "
        "--gin.BEAM=\"['--runner=DataflowRunner', …]\", or omit it to run on this machine."
    )


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
