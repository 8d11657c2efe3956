"""Formats and filters log lines, for commands and for runs started from Python. Imports no heavy modules."""

import contextlib
import logging
import os
import sys
import sysconfig
from collections.abc import Iterator

import t5x_like

# SeqIO's evaluator warns about lengths and loggers, which this project's settings choose.
_ADVICE = os.path.join("seqio", "evaluation.py")
_PACKAGES = frozenset({"site-packages", "dist-packages"})  # names of the directories of installed packages
# The threads of Orbax log each error with its traceback, and Orbax raises it again in the thread that waits for them.
_CHECKPOINTS = os.path.join("", "orbax", "checkpoint", "")


class _Handler(logging.StreamHandler):
    """Writes to the current `sys.stderr`, which a progress bar may replace."""

    stream = property(lambda self: sys.stderr, lambda self, value: None)


def handler(*, everything: bool = False) -> logging.Handler:
    """Creates a handler for log lines of this project and the user's modules, and for warnings of other packages.

    Args:
      everything: whether to also show all other lines of other packages.
    """
    here = os.path.dirname(os.path.abspath(t5x_like.__file__))
    own = (here + os.sep, os.path.join(os.path.dirname(here), "data_tasks") + os.sep)
    standard_library = sysconfig.get_path("stdlib") + os.sep

    def is_wanted(record: logging.LogRecord) -> bool:
        path = record.pathname
        if record.levelno == logging.WARNING and path.endswith(_ADVICE):
            return False
        if record.exc_info and _CHECKPOINTS in path:
            return False
        if record.levelno >= logging.WARNING or path.startswith(own):
            return True
        # Packages may lie in several directories: of the environment, of the user, or of the system.
        return not path.startswith(standard_library) and _PACKAGES.isdisjoint(path.split(os.sep))

    made = _Handler()
    made.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
    if not everything:
        made.addFilter(is_wanted)
    return made


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
    level = absl_logging.get_absl_logger().level  # by default that of the root logger, which `set_verbosity` replaces
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
