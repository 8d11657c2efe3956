"""Formats and filters log lines, for commands and for runs started from Python. Imports no heavy modules."""

import contextlib
import logging
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator

from t5x_like.runtime import terminal

# SeqIO's evaluator warns about lengths and loggers, which this project's settings choose, and raises what it logs.
# Beam warns at each import that it has no client of BigQuery, which no pipeline of this project uses.
_HIDDEN = (
    os.path.join("seqio", "evaluation.py"),
    os.path.join("apache_beam", "io", "gcp", "internal", "clients", "bigquery", "__init__.py"),
)
_PACKAGES = frozenset({"site-packages", "dist-packages"})  # names of the directories of installed packages
_CLOSED_LOOP = "Event loop is closed"  # the message of asyncio's error
# The threads of Orbax log each error with its traceback, and Orbax raises it again in the thread that waits for them.
# gcsfs logs each error of the network before it raises it.
_RAISED_AGAIN = (os.path.join("", "orbax", "checkpoint", ""), os.path.join("", "gcsfs", ""))


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return terminal.visible(super().format(record))


class _Handler(logging.StreamHandler):
    """Writes to the current `sys.stderr`, which a progress bar may replace."""

    stream = property(lambda self: sys.stderr, lambda self, value: None)


def handler(*, everything: bool = False) -> logging.Handler:
    """Creates a handler for log lines of this project and the user's modules, and for warnings of other packages.

    Args:
      everything: Whether to also show all other lines of other packages.
    """
    made = _Handler()
    made.setFormatter(_Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
    if not everything:
        made.addFilter(make_filter())
    return made


def make_filter() -> Callable[[logging.LogRecord], bool]:
    """Returns a filter for lines of this project and the user's modules, and for warnings of other packages."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    own = (here + os.sep, os.path.join(os.path.dirname(here), "data_tasks") + os.sep)
    standard_library = sysconfig.get_path("stdlib") + os.sep

    def is_wanted(record: logging.LogRecord) -> bool:
        path = record.pathname
        if path.endswith(_HIDDEN):
            return False
        if record.exc_info and any(directory in path for directory in _RAISED_AGAIN):
            return False
        if record.levelno >= logging.WARNING or path.startswith(own):
            return True
        # Packages may lie in several directories: of the environment, of the user, or of the system.
        return not path.startswith(standard_library) and _PACKAGES.isdisjoint(path.split(os.sep))

    return is_wanted


@contextlib.contextmanager
def hides_closed_loops() -> Iterator[None]:
    """Hides the errors that TensorStore prints if a write ends after Orbax has raised the error of another write.

    Orbax closes the event loop at the first error, as on a full disk, and then no other write can report its end.
    """
    before = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if not isinstance(unraisable.exc_value, RuntimeError) or str(unraisable.exc_value) != _CLOSED_LOOP:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """Shows log lines from level info on while the context is active, unless the application has configured logging.

    The previous state is restored on exit, so that an application can configure logging later.
    """
    from absl import logging as absl_logging

    root = logging.getLogger()
    if not _is_unconfigured(root):
        yield
        return
    before, verbosity = list(root.handlers), absl_logging.get_verbosity()
    level = absl_logging.get_absl_logger().level  # by default the root logger's, which `set_verbosity` replaces
    made = handler()
    root.handlers[:] = [made]
    absl_logging.set_verbosity(max(verbosity, absl_logging.INFO))
    try:
        yield
    finally:
        root.handlers[:] = [*before, *(each for each in root.handlers if each is not made)]
        absl_logging.set_verbosity(verbosity)
        absl_logging.get_absl_logger().setLevel(level)


def _is_unconfigured(root: logging.Logger) -> bool:
    """Returns whether logging is not configured: no handler, or only the one that absl adds with its first line."""
    if not root.handlers:
        return True
    (first, *others) = root.handlers
    plain = type(first) is logging.StreamHandler and getattr(first.formatter, "_fmt", None) == logging.BASIC_FORMAT
    return plain and not others and root.level == logging.WARNING
