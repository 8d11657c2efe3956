"""Log lines of runs started from Python: formatted as in a command, unless logging is already configured."""

import asyncio
import logging
import os
import subprocess
import sys
import sysconfig

import pytest

from t5x_like.runtime import console_log

pytestmark = pytest.mark.notf

CODE = """
import logging
from absl import logging as absl_logging
from t5x_like.runtime import console_log
{before}
level = absl_logging.get_absl_logger().level
with console_log.enabled():
    absl_logging.info("inside")
assert logging.getLogger().handlers == {handlers}, logging.getLogger().handlers
# Otherwise an application that sets the root logger's level to INFO later does not see the lines of absl.
assert absl_logging.get_absl_logger().level == level
absl_logging.info("outside")
"""


def logged(before="", handlers="[]"):
    code = CODE.format(before=before, handlers=handlers)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stderr


def test_log_format_matches_commands_and_is_restored():
    (line,) = logged().splitlines()
    assert line.endswith(" I inside") and line[2] == line[5] == ":"


def test_default_absl_handler_does_not_count_as_configuration():
    before = "absl_logging.info('nobody sees this'); handlers = list(logging.getLogger().handlers); assert handlers"
    (line,) = logged(before, "handlers").splitlines()
    assert line.endswith(" I inside")


def test_configured_logging_is_unchanged():
    before = "logging.basicConfig(level='WARNING', format='%(message)s'); handlers = list(logging.getLogger().handlers)"
    assert logged(before, "handlers") == ""


def test_lines_are_not_repeated_under_a_command():
    assert (
        logged("from t5x_like.cli import startup; startup.log('info')", "logging.getLogger().handlers").count("inside")
        == 1
    )


@pytest.mark.parametrize(
    "path, level, shown",
    [
        ("seqio/evaluation.py", logging.WARNING, False),
        ("seqio/evaluation.py", logging.ERROR, False),
        ("seqio/utils.py", logging.WARNING, True),
        ("apache_beam/io/gcp/internal/clients/bigquery/__init__.py", logging.WARNING, False),
        ("apache_beam/pipeline.py", logging.WARNING, True),
        ("tensorflow/python/checkpoint/functional_saver.py", logging.INFO, False),
        ("/usr/lib/python3/dist-packages/orbax/checkpoint/logger.py", logging.INFO, False),  # of the system
        ("/home/someone/tasks/my_tasks.py", logging.INFO, True),
    ],
)
def test_lines_of_other_packages(path, level, shown):
    path = os.path.join(sysconfig.get_path("purelib"), path)  # an absolute path stays as it is
    record = logging.LogRecord("absl", level, path, 1, "text", None, None)
    assert bool(console_log.handler().filter(record)) == shown
    assert console_log.handler(everything=True).filter(record)


@pytest.mark.parametrize("file", ["orbax/checkpoint/_src/futures/future.py", "gcsfs/retry.py"])
def test_errors_that_a_library_logs_and_raises_are_not_shown_twice(file):
    path = os.path.join(sysconfig.get_path("purelib"), file)
    error = OSError("No space left on device")
    record = logging.LogRecord("absl", logging.ERROR, path, 1, "failed", None, (OSError, error, None))
    assert not console_log.handler().filter(record) and console_log.handler(everything=True).filter(record)
    record = logging.LogRecord("absl", logging.ERROR, path, 1, "failed", None, None)
    assert console_log.handler().filter(record)


def test_closed_event_loops_are_not_shown(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: shown.append(str(unraisable.exc_value)))
    loop = asyncio.new_event_loop()
    loop.close()

    class Write:
        def __init__(self, finish):
            self.finish = finish

        def __del__(self):  # an error here cannot be raised, as in a callback of TensorStore
            self.finish()

    with console_log.hides_closed_loops():
        Write(lambda: loop.call_soon_threadsafe(print))
        Write(lambda: int("another error"))
    Write(lambda: loop.call_soon_threadsafe(print))
    assert len(shown) == 2 and "another error" in shown[0] and shown[1] == "Event loop is closed"
