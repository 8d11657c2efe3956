"""A run of two processes meets one fault at a random step: both end soon, and the next start has the same losses.

A short pause, a clock that is 5,000 s ahead, and a slow disk end neither process. CI has the first two faults.

`T5X_LIKE_FAULTS=30 pytest -m full tests/runtime/test_faults.py` runs more cases.
"""

import os
import random
import resource
import signal
import sys
import time

import pytest
from several_processes import CONFIGS, finish, losses, output, start, wait_for_rows

from t5x_like.training.runs.run_directory import read_status

pytestmark = [pytest.mark.full, pytest.mark.notf]

STEPS = 50
FLAGS = (f"--gin.TRAIN_STEPS={STEPS}", "--gin.SAVE_PERIOD=7")


def kill(process):
    process.kill()


def suspend(process):
    process.send_signal(signal.SIGSTOP)


def make_unwritable(process):
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


def pause(process):
    suspend(process)
    time.sleep(3)  # less than the heartbeat
    process.send_signal(signal.SIGCONT)


def wrong_clock(process):
    """The process has the variables of `FROM_START`."""


def slow_disk(process):
    """The process has the variables of `FROM_START`."""


FAULTS = (kill, suspend, make_unwritable, pause, wrong_clock, slow_disk)
# Faults that a process has from its start, and that end neither process.
FROM_START = {wrong_clock: {"FAULT_SECONDS_AHEAD": "5000"}, slow_disk: {"FAULT_SECONDS_PER_WRITE": "0.3"}}
HARMLESS = {pause, *FROM_START}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Returns the losses of a run without a fault."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    assert finish(start(directory, *FLAGS), seconds=240) == [0, 0], output(directory, 0)[-3000:]
    return losses(directory)


@pytest.mark.parametrize("case", range(int(os.environ.get("T5X_LIKE_FAULTS", "2"))))
def test_run_with_a_fault_ends_and_resumes_with_the_same_losses(expected, tmp_path, case):
    fault, draw, directory = FAULTS[case % len(FAULTS)], random.Random(case), tmp_path / "run"
    index, row = draw.randrange(2), draw.randrange(1, STEPS)
    special = {"PYTHONPATH": os.pathsep.join([str(CONFIGS / "faults"), *sys.path]), **FROM_START.get(fault, {})}
    processes = start(directory, *FLAGS, special={index: special})
    wait_for_rows(directory, row, processes)
    injected = time.monotonic()
    fault(processes[index])
    ended = [processes[1 - index]] if fault is suspend else processes
    codes = finish(ended, seconds=60)
    step = read_status(str(directory))["step"]
    print(f"{fault.__name__} of process {index} after row {row}: {codes} after {time.monotonic() - injected:.1f} s")
    for process in processes:
        process.kill()
        process.wait()
    assert step == STEPS or all(codes), codes
    assert fault not in HARMLESS or codes == [0, 0], codes
    assert finish(start(directory, *FLAGS), seconds=240) == [0, 0], output(directory, 0)[-3000:]
    assert losses(directory) == expected
