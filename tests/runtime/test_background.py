"""Work in the background is waited for, stops when it is not needed, and does not delay an exit."""

import subprocess
import sys
import threading

import pytest

from t5x_like.runtime.background import Background

pytestmark = pytest.mark.notf

# The work never ends, so that a normal exit would not return.
ENDLESS = """
import threading
from t5x_like.runtime import background

def work():
    threading.Event().wait()
    yield

with background.Background(work):
    print("printed", end="")
background.exit_without_waiting(7)
"""


def test_wait_returns_after_the_work():
    done = []

    def work():
        yield
        done.append(True)

    with Background(work) as running:
        running.wait()
        assert done == [True]


def test_wait_raises_the_error_of_the_work():
    def work():
        yield
        raise ValueError("cannot compile")

    with Background(work) as running, pytest.raises(ValueError, match="cannot compile"):
        running.wait()


def test_work_stops_at_its_next_yield_after_the_context():
    left, done = threading.Event(), []

    def work():
        left.wait()
        yield
        done.append(True)

    with Background(work) as running:
        pass
    left.set()
    running.wait()
    assert done == []


def test_exit_does_not_wait_for_the_work():
    result = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (7, "printed")
