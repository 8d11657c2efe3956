"""Signals that end a process, also if its main thread hangs or suppresses exceptions."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from t5x_like.runtime import stop_signals

pytestmark = pytest.mark.notf

# Prints "ready" and then blocks in C, where Python runs no signal handler.
STUCK = (
    "import ctypes; lock = ctypes.CDLL(None).pthread_mutex_lock; mutex = ctypes.create_string_buffer(64);"
    "lock(mutex); print('ready', flush=True); lock(mutex)"
)


# Prints "ready" and suppresses every exception that a signal raises.
SUPPRESSING = """
    import time
    while True:
        try:
            print("ready", flush=True)
            time.sleep(60)
        except BaseException:
            pass
"""


@pytest.fixture
def start():
    """Returns a function that runs code in a process, which is killed after the test, and waits until it is ready."""
    environment, processes = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, []

    def run(code):
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in processes:
        process.kill()
        process.wait()


def test_second_ctrl_c_ends_a_blocked_process(start):
    process = start(
        "from t5x_like.runtime import stop_signals\n"
        f"with stop_signals.watched() as signals:\n    signals.defer(); {STUCK}"
    )
    process.send_signal(signal.SIGTERM)
    assert process.stderr.readline() == "\n"
    assert "SIGTERM: training saves and stops after this step; Ctrl-C" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)  # a repeated SIGTERM does not cancel the save
    process.send_signal(signal.SIGINT)
    assert "stopped by SIGINT after SIGTERM: nothing was saved" in process.communicate(timeout=20)[1]
    assert process.returncode == 130


@pytest.mark.parametrize("number", stop_signals.SIGNALS)
def test_process_that_suppresses_signals_ends_after_the_grace_period(start, number):
    process = start(
        "from t5x_like.runtime import stop_signals; stop_signals.GRACE_SECONDS = 0.2\n"
        f"with stop_signals.watched():{SUPPRESSING}"
    )
    process.send_signal(number)
    assert f"stopped by {number.name}" in process.communicate(timeout=20)[1]
    assert process.returncode == 128 + number


@pytest.mark.parametrize(("given", "expected"), [(None, 143), (75, 75)])
def test_signal_during_an_import_raises_no_exception_in_the_module(start, tmp_path, given, expected):
    (tmp_path / "slow.py").write_text(
        "import time\ntry:\n    print('ready', flush=True); time.sleep(60)\n"
        "except BaseException:\n    print('raised')\n"
    )
    process = start(
        f"import sys; sys.path.append({str(tmp_path)!r})\nfrom t5x_like.runtime import stop_signals\n"
        f"with stop_signals.watched({given}): import slow"
    )
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert (out, err, process.returncode) == ("", "\nt5x_like: stopped by SIGTERM\n", expected)


def test_ignored_signals_stay_ignored():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stop_signals.watched() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.requested is None
    finally:
        signal.signal(signal.SIGHUP, previous)


@pytest.mark.filterwarnings("ignore:os.fork")
def test_forked_child_restores_previous_handlers():
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals.watched():
        child = os.fork()
        if child == 0:
            os._exit(0 if signal.getsignal(signal.SIGTERM) is before and signal.set_wakeup_fd(-1) == -1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_nested_watched_contexts_share_signals():
    with stop_signals.watched() as outer, stop_signals.watched() as inner:
        assert inner is outer


def test_recorded_interrupts_raise_nothing_until_the_end():
    previous = signal.getsignal(signal.SIGINT)
    with stop_signals.recorded_interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert interrupts == [signal.SIGINT] * 2
    assert signal.getsignal(signal.SIGINT) is previous


def test_recorded_interrupts_outside_the_main_thread_are_none():
    found = []

    def run():
        with stop_signals.recorded_interrupts() as interrupts:
            found.append(interrupts)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [[]]
