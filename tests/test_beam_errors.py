"""A worker process of Beam that is killed ends the command, which would wait for it forever."""

import subprocess
import sys
import threading

import pytest

from t5x_like import beam_errors
from t5x_like.errors import UserError

pytestmark = pytest.mark.notf

# A thread of Beam's local runner raises this error when its worker process has ended.
PROGRAM = """
import threading, time
from t5x_like import beam_errors

def wait_for_worker():
    raise RuntimeError("Worker subprocess exited with return code 137")

with beam_errors.explained():
    threading.Thread(target=wait_for_worker).start()
    time.sleep(60)
"""


def test_killed_worker_ends_the_command():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1
    assert "a worker process of Apache Beam ended with code 137" in done.stderr


def test_other_errors_of_threads_are_reported_as_before(monkeypatch):
    reported = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(str(args.exc_value)))
    with beam_errors.explained():
        thread = threading.Thread(target=lambda: int("x"))
        thread.start()
        thread.join()
    assert reported == ["invalid literal for int() with base 10: 'x'"]


@pytest.mark.beam
@pytest.mark.parametrize(
    ("runner", "problem"),
    [
        ("Nonsense", "Unexpected pipeline runner: Nonsense. Valid values are"),
        ("no.such.Runner", "No module named 'no'"),
        ("t5x_like.clean.NoRunner", "has no attribute 'NoRunner'"),
    ],
)
def test_unknown_runner_is_an_error_of_the_user(runner, problem):
    with pytest.raises(UserError, match=rf"BEAM=\['--runner={runner}'\]: .*{problem}.* Give a runner of Beam, such as"):
        beam_errors.make_pipeline([f"--runner={runner}"])
