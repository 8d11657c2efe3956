"""Tests for launch/local_multiprocess.sh: environment of the processes, and their termination."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).resolve().parents[2] / "launch/local_multiprocess.sh"
# Process 1 fails once the others are ready.
FAIL = 'if [ "$T5X_LIKE_PROCESS_ID" = 1 ]; then until [ -e ready ]; do sleep 0.05; done; echo broken; exit 7; fi; '


def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run([SCRIPT, *words], cwd=cwd, capture_output=True, text=True, timeout=60)


def test_each_process_gets_environment_and_log(tmp_path):
    command = 'echo "$T5X_LIKE_COORDINATOR $T5X_LIKE_PROCESS_ID $T5X_LIKE_NUM_PROCESSES $1"'
    result = run("-n", "3", f"--log_dir={tmp_path}/logs", "--", "bash", "-c", command, "bash", "two words")
    assert result.returncode == 0, result.stderr
    lines = [(tmp_path / f"logs/{process}.log").read_text() for process in range(3)]
    address = lines[0].split()[0]
    assert re.fullmatch(r"127\.0\.0\.1:[0-9]{5}", address)
    assert lines == [f"{address} {process} 3 two words\n" for process in range(3)]
    assert result.stdout == lines[0]  # the output of process 0 is shown


def test_failure_terminates_all_processes_and_returns_exit_code(tmp_path):
    graceful = FAIL + f"trap 'touch {tmp_path}/terminated; exit 0' TERM; touch ready; while :; do sleep 0.05; done"
    start = time.monotonic()
    result = run("--num_processes=2", f"--log_dir={tmp_path}", "--", "bash", "-c", graceful, cwd=tmp_path)
    assert result.returncode == 7
    assert "process 1 ended with exit code 7" in result.stderr and "broken" in result.stderr
    assert (tmp_path / "terminated").exists()
    assert time.monotonic() - start < 15  # less than the grace period of 20 s


def test_exit_code_is_that_of_the_cause(tmp_path):
    """Process 0 exits at almost the same time, because it has lost process 1. The script sees both at once."""
    command = (
        'if [ "$T5X_LIKE_PROCESS_ID" = 1 ]; then kill -STOP $PPID; exit 7; fi; '
        "(sleep 1; kill -CONT $PPID) & sleep 0.5; exit 69"
    )
    result = run("--num_processes=2", f"--log_dir={tmp_path}", "--", "bash", "-c", command, cwd=tmp_path)
    assert result.returncode == 7, result.stderr
    assert "process 0 ended with exit code 69" in result.stderr


def test_process_that_ignores_sigterm_is_killed_with_its_children(tmp_path):
    stubborn = FAIL + f"trap '' TERM; (trap '' TERM; sleep 60) & echo $! >{tmp_path}/pid; touch ready; wait; sleep 60"
    result = run("--grace=1", f"--log_dir={tmp_path}", "--", "bash", "-c", stubborn, cwd=tmp_path)
    assert result.returncode == 7
    assert "killing processes that have not exited after 1 s: 0" in result.stderr
    with pytest.raises(ProcessLookupError):
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            os.kill(int((tmp_path / "pid").read_text()), 0)
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "code", "expected"), [(signal.SIGTERM, 75, 75), (signal.SIGTERM, 0, 0), (signal.SIGINT, 0, 130)]
)
def test_signal_is_forwarded_as_sigterm_and_determines_exit_code(tmp_path, number, code, expected):
    command = f"trap 'echo saved; exit {code}' TERM; echo up; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [SCRIPT, f"--log_dir={tmp_path}", "--", "bash", "-c", command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    logs = [tmp_path / "0.log", tmp_path / "1.log"]
    deadline = time.monotonic() + 20
    while not all(log.exists() and "up" in log.read_text() for log in logs) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(30) == expected
    assert [log.read_text() for log in logs] == ["up\nsaved\n"] * 2


def test_dry_run_prints_one_line_per_process(tmp_path):
    result = run("--port=12345", "--dry_run", "--", "touch", f"{tmp_path}/a file")
    assert result.returncode == 0 and not list(tmp_path.iterdir())
    assert len(result.stdout.splitlines()) == 2
    assert result.stdout.startswith(
        "T5X_LIKE_COORDINATOR=127.0.0.1:12345 T5X_LIKE_NUM_PROCESSES=2 T5X_LIKE_PROCESS_ID=0 touch"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "0", "--", "true"], "--num_processes=0: out of range. Give a number from 1"),
        (["--port=80", "--", "true"], "--port=80: out of range. Give a number from 1024"),
        (["--grace"], "--grace: value missing"),
        (["train"], "unknown option train. See --help; the command follows --"),
        (["-n", "2"], "no command given"),
        (["-n", "2", "--", "t5xlike", "train"], "command t5xlike not found. Give an installed command"),
    ],
)
def test_invalid_arguments_exit_with_usage_error(words, message):
    result = run(*words)
    assert result.returncode == 2 and message in result.stderr
