"""How log lines look on the terminal, for commands and for runs made from Python. Imports nothing heavy."""

import contextlib
import logging
import os
import sys
import sysconfig
from collections.abc import Iterator

import t5x_like


class _Handler(logging.StreamHandler):
    """Writes to what is standard error at the moment: a progress bar puts itself in between."""

    stream = property(lambda self: sys.stderr, lambda self, value: None)


def handler(*, everything: bool = False) -> logging.Handler:
    """Shows what this project and a user's modules log, and other packages only when they warn.

    Args:
      everything: whether to show other packages' lines too.
    """
    here = os.path.dirname(os.path.abspath(t5x_like.__file__))
    own = (here + os.sep, os.path.join(os.path.dirname(here), "data_tasks") + os.sep)
    others = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))

    def is_wanted(record: logging.LogRecord) -> bool:
        path = record.pathname
        return record.levelno >= logging.WARNING or path.startswith(own) or not path.startswith(others)

    made = _Handler()
    made.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
    if not everything:
        made.addFilter(is_wanted)
    return made


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Shows log lines of level info while it is entered, where the application has not configured logging itself.

    Nothing stays behind, so that an application that configures logging later finds it untouched.
    """
    from absl import logging as absl_logging

    root = logging.getLogger()
    if not _is_unconfigured(root):
        yield
        return
    before, verbosity = list(root.handlers), absl_logging.get_verbosity()
    made = handler()
    root.handlers[:] = [made]
    absl_logging.set_verbosity(max(verbosity, absl_logging.INFO))
    try:
        yield
    finally:
        root.handlers[:] = [*before, *(each for each in root.handlers if each is not made)]
        absl_logging.set_verbosity(verbosity)


def _is_unconfigured(root: logging.Logger) -> bool:
    """Whether nobody has set up logging: no handler, or the one that absl adds with its first line."""
    if not root.handlers:
        return True
    (first, *others) = root.handlers
    plain = type(first) is logging.StreamHandler and getattr(first.formatter, "_fmt", None) == logging.BASIC_FORMAT
    return plain and not others and root.level == logging.WARNING
