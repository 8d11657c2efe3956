"""Goodput: phases, lost steps and pauses of a simulated run add up to its wall time."""

import uuid

import pytest

from t5x_like import metrics, paths
from t5x_like.errors import UserError


class Clock:
    """A wall clock that also serves as the monotonic clock."""

    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds


@pytest.fixture(params=["local", "store"])
def model_dir(request, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics.line_files, "_UPLOAD_SECONDS", -1.0)  # as if a minute passed between two lines
    return str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}/run"


@pytest.fixture
def clock():
    return Clock()


def start(model_dir, clock, step):
    """Starts a run that takes 5 s until it restores, 3 s to restore and 20 s to compile."""
    monitor = metrics.GoodputMonitor(model_dir, now=clock, wall=clock)
    clock.sleep(5)
    with monitor.phase("restore"):
        clock.sleep(3)
    monitor.begin(step)
    with monitor.phase("compile"):
        clock.sleep(20)
    return monitor


def train(monitor, clock, first, last):
    """Takes the steps `first` … `last`, of 4 s each after 1 s of waiting for data."""
    for step in range(first, last + 1):
        with monitor.phase("data"):
            clock.sleep(1)
        clock.sleep(4)
        monitor.step(step)


def save(monitor, clock, step):
    monitor.flush(step)
    with monitor.phase("save"):
        clock.sleep(2)


def test_killed_run_accounts_for_every_second(model_dir, clock):
    monitor = start(model_dir, clock, 0)
    train(monitor, clock, 1, 10)
    save(monitor, clock, 10)
    train(monitor, clock, 11, 15)  # killed after step 15; the last line was written after step 14
    clock.sleep(60)
    killed = start(model_dir, clock, 10)
    with killed.phase("evaluate"):
        with killed.phase("data"):
            clock.sleep(1)
        clock.sleep(6)
    train(killed, clock, 11, 13)
    clock.sleep(100)  # hangs until it is killed without another line
    last = start(model_dir, clock, 10)
    train(last, clock, 11, 20)
    save(last, clock, 20)
    last.flush(20, finished=True)
    spent = metrics.read_goodput(model_dir)
    assert spent.starts == 3
    assert spent.seconds == {
        "step": 4 * 20,
        "compile": 3 * 20,
        "restore": 3 * 3,
        "data": 14 + (1 + 3) + 10,
        "save": 2 + 2,
        "evaluate": 6,
        "start": 3 * 5,
        "lost": 4 * 4 + 4 * 3,  # steps 11 … 14 of the first start, 11 … 13 of the second
        "idle": (5 + 60) + 100,  # no line has step 15
    }
    assert spent.total == clock.time - 1000
    assert spent.fraction == 80 / spent.total


def test_lines_since_the_last_checkpoint_are_lost_in_proportion(tmp_path, clock):
    monitor = start(str(tmp_path), clock, 0)
    clock.sleep(12)
    monitor.flush(4)  # 3 s per step
    start(str(tmp_path), clock, 3)
    spent = metrics.read_goodput(str(tmp_path))
    assert (spent.seconds["step"], spent.seconds["lost"]) == (9, 3)


def test_time_after_a_finished_run_does_not_count(tmp_path, clock):
    with start(str(tmp_path), clock, 0) as monitor:
        train(monitor, clock, 1, 2)
        monitor.flush(2, finished=True)
    clock.sleep(86400)  # then more steps are asked for
    with start(str(tmp_path), clock, 2) as monitor:
        train(monitor, clock, 3, 4)
        assert monitor.summary().seconds == metrics.read_goodput(str(tmp_path)).seconds | {"step": 16, "data": 4}
    spent = metrics.read_goodput(str(tmp_path))
    assert spent.seconds["idle"] == 0 and spent.seconds["step"] == 16
    assert spent.describe() == (
        "goodput 21.1% of 1:16 in 2 starts: step 0:16, compile 0:40, restore 0:06, data 0:04, start 0:10"
    )


def test_torn_last_line_is_ignored_and_damaged_lines_raise(tmp_path, clock):
    assert metrics.read_goodput(str(tmp_path)) is None
    train(start(str(tmp_path), clock, 0), clock, 1, 4)
    before = metrics.read_goodput(str(tmp_path))
    file = tmp_path / "goodput" / "00000.jsonl"
    text = file.read_text()
    file.write_text(text + '{"step": 9, "sec')
    assert metrics.read_goodput(str(tmp_path)) == before
    file.write_text(text + "[]\n")
    with pytest.raises(UserError, match=r"00000.jsonl, line \d+: not a record of goodput"):
        metrics.read_goodput(str(tmp_path))


def test_other_processes_and_unwritable_records_do_not_stop_training(tmp_path, clock, caplog):
    other = metrics.GoodputMonitor(str(tmp_path), enabled=False, now=clock, wall=clock)
    other.begin(0)
    train(other, clock, 1, 3)
    assert other.summary() is None and list(tmp_path.iterdir()) == []
    paths.write_atomic(tmp_path / "goodput", "a file, not a directory")
    with start(str(tmp_path), clock, 0) as monitor:
        train(monitor, clock, 1, 4)
        assert monitor.summary().seconds["step"] == 16
    assert len([line for line in caplog.messages if "continues without a record" in line]) == 1
