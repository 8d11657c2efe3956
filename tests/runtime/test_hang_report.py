"""The report of a hang: each process writes its stacks, and the process that differs from the others is named."""

import threading
import uuid

import pytest

from t5x_like import paths
from t5x_like.runtime.hang_report import HangReport, Stall, compare

pytestmark = pytest.mark.notf


def stall(process, location, since=100.0, activity="step 6"):
    return Stall(process, f"host-{process}", activity, since, 160.0, location)


def test_process_apart_from_the_others_is_named():
    stalls = [stall(process, "training/loop.py:240 in flush") for process in (0, 1, 3)]
    stalls.append(stall(2, "data/feed.py:125 in __next__", since=98.0, activity="step 5"))
    head, *rest = compare(stalls, 4).splitlines()
    assert head == (
        "process 2 on host host-2 hangs at data/feed.py:125 in __next__. "
        "The others wait at training/loop.py:240 in flush."
    )
    assert rest[2] == "process 2 on host host-2 has waited 62 s for step 5, at data/feed.py:125 in __next__"
    assert len(rest) == 4


def test_process_that_stopped_first_of_two_is_named():
    stalls = [stall(0, "training/loop.py:240 in flush", since=101.0), stall(1, "data/feed.py:125 in __next__")]
    assert compare(stalls, 2).startswith("process 1 on host host-1 hangs at data/feed.py:125")


def test_silent_process_is_named():
    stalls = [stall(process, "training/loop.py:240 in flush") for process in (0, 2)]
    assert compare(stalls, 3).startswith("processes [1] have not reported: they have ended, or hang outside of Python.")
    stalls = [stall(process, "training/loop.py:240 in flush") for process in (0, 1)]
    assert compare(stalls, 2).startswith("all 2 processes wait at training/loop.py:240 in flush.")


@pytest.mark.parametrize("store", [False, True])
def test_all_processes_write_their_stacks_and_one_report(tmp_path, store):
    model_dir = f"memory://{uuid.uuid4().hex}/run" if store else str(tmp_path)
    # The file of an earlier hang of process 2, which has reported nothing this time.
    reported = []
    old = HangReport(model_dir, 2, 3, wait_seconds=0.1)
    old._run(stall(2, "checkpoints/manager.py:180 in save", since=1.0))
    reports = [HangReport(model_dir, process, 3, wait_seconds=1.0, on_report=reported.append) for process in (0, 1)]
    threads = [threading.Thread(target=report.run, args=(f"step {5 + n}", 60.0)) for n, report in enumerate(reports)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = paths.read_text(f"{model_dir}/hang/process_00001.txt")
    assert '"activity": "step 6"' in written and "test_all_processes_write_their_stacks" in written
    text = paths.read_text(f"{model_dir}/hang/report.txt")
    assert reported == [text.rstrip("\n")] * 2
    assert "processes [2] have not reported" in text and "has waited 60 s for step 5" in text
