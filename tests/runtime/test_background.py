"""Work in the background is waited for, stops when it is not needed, and does not delay an exit."""

import subprocess
import sys
import threading

import pytest
from several_processes import finish, output, start_processes

from t5x_like.runtime.background import Background

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


@pytest.mark.full
def test_process_with_work_in_the_background_waits_for_the_others_before_it_exits(tmp_path):
    code = (
        "import time, jax\n"
        "from t5x_like.cli.main import _end\n"
        "from t5x_like.runtime import background, distributed\n"
        "distributed.join()\n"
        "if jax.process_index() == 1:\n"
        "  background.Background(lambda: iter(lambda: time.sleep(120), 0)).__enter__()\n"
        "else:\n"
        "  time.sleep(15)  # longer than the heartbeat\n"
        "_end(0)\n"
    )
    processes = start_processes(tmp_path / "run", [sys.executable, "-c", code])
    assert finish(processes, seconds=60) == [0, 0], output(tmp_path / "run", 0)
