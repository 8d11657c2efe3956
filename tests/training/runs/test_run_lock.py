"""The lock of a run directory: a live holder is named in the error, and the lock of a dead one is taken over."""

import dataclasses
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid

import pytest

from t5x_like import paths
from t5x_like.training.runs import run_lock
from t5x_like.training.runs.run_lock import LockObserver, RunInUse, RunLock

pytestmark = pytest.mark.notf


@pytest.fixture(params=["local", "store"])
def model_dir(request, tmp_path):
    return str(tmp_path / "run") if request.param == "local" else f"memory://{uuid.uuid4().hex}/run"


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(run_lock, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(run_lock, "HEARTBEAT_SECONDS", 0.02)


def lock_path(model_dir):
    return paths.join(model_dir, run_lock.LOCK)


def leave_lock(model_dir, **changes):
    """Writes a lock as another process would leave it."""
    holder = dataclasses.replace(run_lock._Holder.current(), **changes)
    paths.write_atomic(lock_path(model_dir), run_lock._text(holder))
    return holder


def holder_of(model_dir):
    return run_lock._Holder.parse(paths.read_text(lock_path(model_dir)))


def test_second_start_raises_and_names_the_holder(model_dir):
    with RunLock(model_dir):
        with pytest.raises(RunInUse) as refused, RunLock(model_dir):
            pass
        assert f"process {os.getpid()} on host {os.uname().nodename}, since 2" in str(refused.value)
        assert "last heartbeat 2" in str(refused.value) and "2 minutes, or at once after `rm " in str(refused.value)
        assert paths.exists(lock_path(model_dir))
    assert not paths.exists(lock_path(model_dir))
    with RunLock(model_dir):
        pass


def test_lock_of_a_killed_process_is_taken_over_immediately(tmp_path, caplog):
    code = (
        "import os, signal, sys; from t5x_like.training.runs.run_lock import RunLock\n"
        "with RunLock(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=False)
    assert paths.exists(lock_path(str(tmp_path)))
    started = time.monotonic()
    with RunLock(str(tmp_path)):
        assert time.monotonic() - started < 5
        assert holder_of(str(tmp_path)).process == os.getpid()
    assert "taking over" in caplog.text and "that process has ended" in caplog.text


def test_reused_process_id_is_not_the_holder(model_dir):
    leave_lock(model_dir, process_start="1")
    with RunLock(model_dir):
        pass


def test_lock_of_another_machine_without_heartbeat_is_taken_over_after_a_wait(model_dir, caplog):
    leave_lock(model_dir, machine="elsewhere", host="gone")
    started = time.monotonic()
    with RunLock(model_dir, stale_seconds=0.3):
        assert 0.3 < time.monotonic() - started < 10
    assert "it has sent no heartbeat for 0 s" in caplog.text and "host gone" in caplog.text


def test_lock_of_another_machine_with_heartbeats_is_kept(model_dir):
    holder = leave_lock(model_dir, machine="elsewhere", host="busy")
    heartbeat = threading.Timer(0.1, lambda: leave_lock(model_dir, **dataclasses.asdict(holder) | {"beats": 1}))
    heartbeat.start()
    with pytest.raises(RunInUse, match="host busy"), RunLock(model_dir, stale_seconds=30):
        pass
    heartbeat.join()
    assert holder_of(model_dir).host == "busy"


def test_lock_over_an_hour_old_is_taken_over_immediately(model_dir):
    leave_lock(model_dir, machine="elsewhere", heartbeat=time.time() - 7200)
    with RunLock(model_dir):
        pass


def test_lock_released_during_the_wait_is_taken(model_dir):
    leave_lock(model_dir, machine="elsewhere")
    threading.Timer(0.1, lambda: paths.remove(lock_path(model_dir))).start()
    with RunLock(model_dir, stale_seconds=30):
        pass


class _Delayed:
    """Replaces `run_lock.paths`: calls a function before the access number `index` to a file."""

    def __init__(self, index, function):
        self.accesses, self._index, self._function = 0, index, function

    def __getattr__(self, name):
        function = getattr(paths, name)

        def delayed(*arguments):
            self.accesses += 1
            if self.accesses == self._index + 1:
                self._function()
            return function(*arguments)

        return delayed if name in ("create", "read_text", "write_despite_full_disk", "remove") else function


def test_one_of_two_starts_takes_a_stale_lock_whichever_is_delayed(model_dir, monkeypatch):
    """The first start is delayed before each of its accesses in turn, while the second one starts."""
    ends = []
    for index in range(20):
        leave_lock(model_dir, process_start="1")
        second = RunLock(model_dir)
        started = []

        def start(second=second, started=started):
            try:
                started.append(second.__enter__())
            except RunInUse:
                started.append(None)

        delayed = _Delayed(index, start)
        monkeypatch.setattr(run_lock, "paths", delayed)
        monkeypatch.setattr(run_lock, "HEARTBEAT_SECONDS", 60.0)
        first = RunLock(model_dir)
        try:
            first.__enter__()
            holders = [first]
        except RunInUse:
            holders = []
        monkeypatch.setattr(run_lock, "paths", paths)
        holders += [lock for lock in started if lock]
        assert len(holders) == 1, f"access {index}: {len(holders)} starts succeeded"
        assert holder_of(model_dir).token == holders[0]._mine.token
        holders[0].__exit__()
        assert not paths.exists(lock_path(model_dir)) and not paths.exists(lock_path(model_dir) + ".takeover")
        ends.append(holders[0] is first)
        if not started:
            break
    assert len(ends) > 5 and any(ends) and not all(ends)


def test_start_that_died_during_a_takeover_is_followed_by_another(model_dir):
    holder = leave_lock(model_dir, process_start="1")
    paths.write_atomic(lock_path(model_dir) + ".takeover", run_lock._text(holder))
    with RunLock(model_dir):
        assert holder_of(model_dir).process_start != "1"
    assert not paths.exists(lock_path(model_dir) + ".takeover")


def test_heartbeat_increments_the_counter(model_dir):
    with RunLock(model_dir) as lock:
        deadline = time.monotonic() + 10
        while holder_of(model_dir).beats < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert holder_of(model_dir).beats >= 2
        lock.check()


def test_replaced_holder_raises_and_keeps_the_new_lock(model_dir):
    with RunLock(model_dir, stale_seconds=0.0) as lock:
        leave_lock(model_dir, token="another", host="newer")
        with pytest.raises(RunInUse, match="taken over by .* host newer"):
            lock.check()
    assert holder_of(model_dir).host == "newer"


def test_disabled_lock_takes_no_lock(tmp_path):
    with RunLock(str(tmp_path)), RunLock(str(tmp_path), enabled=False) as other:
        other.check()


def test_observed_lock_is_stale_unless_it_is_renewed(model_dir):
    observer = LockObserver(model_dir, stale_seconds=0.1)
    assert not observer.is_stale()  # a run may be about to start
    with RunLock(model_dir):
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            assert not observer.is_stale()
            time.sleep(0.01)
    time.sleep(0.2)
    assert observer.is_stale()
    leave_lock(model_dir)
    assert not observer.is_stale()
    time.sleep(0.2)
    assert observer.is_stale()  # the lock of a killed run remains


def test_renamed_directory_ends_the_run_and_is_not_created_again(tmp_path):
    directory = tmp_path / "run"
    with pytest.raises(run_lock.RunMoved, match="MODEL_DIR=.*/run was renamed or deleted during the run"):
        with RunLock(str(directory)) as lock:
            directory.rename(tmp_path / "renamed")
            time.sleep(0.1)  # several heartbeats
            lock.check()
    with pytest.raises(run_lock.RunMoved, match="was renamed or deleted"):
        with RunLock(str(directory)):
            shutil.rmtree(directory)
            raise FileNotFoundError("a file of the directory")
    assert not directory.exists()
