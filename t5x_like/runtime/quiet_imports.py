"""Imports TensorFlow without its start-up messages, and without packages that only unused parts of Keras need.

TensorFlow's libraries write the messages before a log level can be set.
"""

import contextlib
import importlib.abc
import importlib.util
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator

PACKAGES = ("tensorflow", "tensorflow_text")
# Keras, which TensorFlow imports, wraps these packages if it finds them, which takes a second. Later imports find them.
_OPTIONAL_IN_KERAS = ("matplotlib", "sklearn")
_STARTUP = re.compile(
    rb"All log messages before absl::InitializeLog|cudart_stub|Could not find cuda drivers|oneDNN custom operations|"
    rb"rebuild TensorFlow with the appropriate compiler flags|Unable to register cu\w+ factory|cpu_feature_guard|"
    rb"failed call to cuInit|cuda_diagnostics\.cc"
)


@contextlib.contextmanager
def without_startup_lines() -> Iterator[None]:
    """Buffers writes to file descriptor 2, and on exit writes them without the start-up lines."""
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            os.close(original)
            held.seek(0)
            for line in held:
                if not _STARTUP.search(line):
                    os.write(2, line)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as usual, and wraps the execution of the top-level modules in `PACKAGES`.

    While a thread executes one of them, it does not find the packages in `_OPTIONAL_IN_KERAS`.
    """

    def __init__(self):
        self._searching = False
        self._thread: int | None = None

    def find_spec(self, fullname, path=None, target=None):
        if fullname in _OPTIONAL_IN_KERAS and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{fullname} is not imported by TensorFlow", name=fullname)
        if fullname not in PACKAGES or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def quietly(module):
            outer, self._thread = self._thread, threading.get_ident()
            try:
                with without_startup_lines():
                    execute(module)
            finally:
                self._thread = outer

        spec.loader.exec_module = quietly
        return spec


def install() -> None:
    """Applies to later imports of TensorFlow. Calling this again has no effect."""
    if not is_installed():
        sys.meta_path.insert(0, _Finder())


def is_installed() -> bool:
    """Returns whether `install` was called."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)
