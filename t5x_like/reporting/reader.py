"""Reads the files of a run directory, whatever they contain: what cannot be read becomes a line of the report."""

import os
import stat
from collections.abc import Callable
from typing import TypeVar

from t5x_like import paths

T = TypeVar("T")
# Of a message, so many characters are shown.
_CHARACTERS = 300


class Reader:
    """Reads files of a run directory.

    Args:
      model_dir: The run directory.

    Attributes:
      problems: What could not be read, and why.
    """

    def __init__(self, model_dir: str):
        self._model_dir = model_dir
        self.problems: list[str] = []

    def read(self, name: str, compute: Callable[[], T], default: T, *, contents_of: str | None = None) -> T:
        """Returns what a function reads, or a default and a problem if it fails.

        Args:
          name: The file or directory, relative to the run directory. It is not read if it is neither, or a link that
            leaves the run directory.
          compute: Reads it. A result of another type than `default` is a problem, unless that is None.
          default: The result if it cannot be read.
          contents_of: A directory, relative to the run directory, whose files the function also reads.
        """
        try:
            if paths.is_local(self._model_dir):
                directory = [] if contents_of is None else paths.listdir(paths.join(self._model_dir, contents_of))
                for each in (name, *filter(None, [contents_of]), *(f"{contents_of}/{file}" for file in directory)):
                    self._check(paths.join(self._model_dir, each))
            found = compute()
            if default is not None and not isinstance(found, type(default)):
                raise ValueError(f"not a {type(default).__name__}")
            return found
        except Exception as error:  # damaged files may raise any error
            self.problems.append(f"{name}: {explain(error)}")
            return default

    def _check(self, path: str) -> None:
        if not os.path.lexists(path):
            return
        if paths.leaves(path, self._model_dir):
            raise ValueError("a link that leaves the run directory, not read")
        mode = os.stat(path).st_mode if os.path.exists(path) else 0
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise ValueError("neither a file nor a directory, not read")


def explain(error: Exception) -> str:
    """Returns a short line about an error of a damaged file."""
    return (str(error) or type(error).__name__).split("\n", 1)[0][:_CHARACTERS]
