"""Work in a thread beside the preparation of a run, such as the compilation of its step. Does not import JAX."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType

_NAME = "background work"


class Background:
    """Runs a generator in a thread. Use it as a context manager; an early exit stops the generator at its next `yield`.

    Args:
      work: Function that returns the generator.
    """

    def __init__(self, work: Callable[[], Iterator[None]]):
        self._work, self._error, self._is_needed = work, None, True
        self._thread = threading.Thread(target=self._run, name=_NAME)

    def __enter__(self) -> "Background":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_needed = False

    def wait(self) -> None:
        """Waits for the end of the work, and raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            for _ in self._work():
                if not self._is_needed:
                    return
        except BaseException as error:  # `wait` raises it
            self._error = error


def is_running() -> bool:
    """Returns whether the process has work in the background."""
    return any(thread.name == _NAME for thread in threading.enumerate())


def exit_without_waiting(code: int) -> None:
    """Exits the process at once.

    A normal exit would wait for work in the background, and a compilation, which nobody needs any more, cannot be
    interrupted.

    Args:
      code: The exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
