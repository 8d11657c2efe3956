"""Copies the log of a run to `MODEL_DIR/log.txt`, which each start extends."""

import contextlib
import logging
import queue
import threading
from collections.abc import Iterator

from absl import logging as absl_logging

from t5x_like import paths
from t5x_like.errors import RunFailed, UserError
from t5x_like.metrics import line_files
from t5x_like.runtime import console_log, run_files

# Errors whose message explains them, so that a traceback is not needed.
_EXPLAINED = (UserError, RunFailed, KeyboardInterrupt)
# An object in a store can only be replaced as a whole, so it is uploaded soon after the start, and then less often:
# the first and the longest time between two uploads.
_FIRST_SECONDS, _UPLOAD_SECONDS = 1.0, 60.0
# The last upload of a run whose network hangs ends after this time.
_CLOSE_SECONDS = 60.0


class RunLog(logging.Handler):
    """Copies log lines to a file. Use it as a context manager; lines before `open` are kept in memory until then.

    The file has the lines of this project and of the user's modules, and warnings of other packages. If it cannot be
    written, a warning is logged and the run continues.

    Args:
      enabled: Whether to write; True only in process 0.
    """

    def __init__(self, *, enabled: bool = True):
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%Y-%m-%d %H:%M:%S%z"))
        self.addFilter(console_log.make_filter())
        self._enabled = enabled
        self._early: list[str] = []
        self._file: line_files.AppendedFile | _Upload | None = None
        self._path: str | None = None

    def __enter__(self) -> "RunLog":
        if self._enabled:
            logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *exception) -> None:
        logging.getLogger().removeHandler(self)

    @contextlib.contextmanager
    def open(self, model_dir: str, command: str) -> Iterator[None]:
        """Writes the lines until now and those within the context, and the error that leaves it.

        Args:
          model_dir: The run directory, local or in a bucket.
          command: The command line of this start, the first line.
        """
        if not self._enabled:
            yield
            return
        self._path = paths.join(model_dir, run_files.LOG)
        with self.lock, self._warn_if_unwritable():
            self._file = line_files.AppendedFile(self._path) if paths.is_local(self._path) else _Upload(self._path)
            first = _record(logging.INFO, f"command line: {command}")
            for line in (self.format(first) + "\n", *self._early):
                self._file.append(line)
            self._early = []
        try:
            yield
        except BaseException as error:
            trace = None if isinstance(error, _EXPLAINED) else (type(error), error, error.__traceback__)
            self.handle(_record(logging.ERROR, f"{type(error).__name__}: {error}", trace))
            raise
        finally:
            with self._warn_if_unwritable():
                if (file := self._file) is not None:
                    self._file = None
                    file.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line, or keeps it until `open`."""
        line = self.format(record) + "\n"
        if self._path is None:
            self._early.append(line)
        elif self._file is not None:
            with self._warn_if_unwritable():
                self._file.append(line)

    @contextlib.contextmanager
    def _warn_if_unwritable(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each store raises its own errors
            self._file = None
            absl_logging.warning("%s cannot be written: %s. The run continues without it", self._path, error)


def _record(level: int, message: str, trace=None) -> logging.LogRecord:
    return logging.LogRecord("run", level, __file__, 0, message, None, trace)


class _Upload:
    """Lines of an object in a store, which a thread uploads.

    A thread, because a slow store must not delay a step, and because clients of stores log in threads of their own,
    which would wait for a handler that waits for the store.
    """

    def __init__(self, path: str):
        self._path = path
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="run log", daemon=True)
        self._thread.start()

    def append(self, line: str) -> None:
        """Adds a line."""
        self._lines.put(line)

    def close(self) -> None:
        """Uploads the last lines."""
        self._closing.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        earlier: str | None = None  # the lines of earlier starts; None until they have been read
        text, is_uploaded, is_warned, is_last = "", True, False, False
        seconds = _FIRST_SECONDS
        while not is_last:
            is_last = self._closing.wait(seconds)
            seconds = min(2 * seconds, _UPLOAD_SECONDS)
            if new := "".join(self._lines.get() for _ in range(self._lines.qsize())):
                text, is_uploaded = text + new, False
            if is_uploaded:
                continue
            try:
                if earlier is None:
                    earlier = paths.read_text(self._path) if paths.exists(self._path) else ""
                paths.write_atomic(self._path, earlier + text)
                is_uploaded = True
            except Exception as error:  # each store raises its own errors
                if not is_warned:
                    absl_logging.warning(
                        "%s cannot be uploaded: %s. The next upload includes its lines", self._path, error
                    )
                is_warned = True
