"""Suppresses TensorFlow's start-up messages, which its libraries write before a log level can be set."""

import contextlib
import importlib.abc
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator

PACKAGES = ("tensorflow", "tensorflow_text")
_STARTUP = re.compile(
    rb"All log messages before absl::InitializeLog|cudart_stub|Could not find cuda drivers|oneDNN custom operations|"
    rb"rebuild TensorFlow with the appropriate compiler flags|Unable to register cu\w+ factory|cpu_feature_guard"
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
    """Finds modules as usual, and wraps the execution of the top-level modules in `PACKAGES`."""

    def __init__(self):
        self._searching = False

    def find_spec(self, fullname, path=None, target=None):
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
            with without_startup_lines():
                execute(module)

        spec.loader.exec_module = quietly
        return spec


def install() -> None:
    """Suppresses the start-up messages of later imports of TensorFlow. Calling this again has no effect."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
