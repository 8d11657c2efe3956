"""Tests for launch/supervise.py: restarts, messages, detached jobs and orphaned processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "launch/supervise.py"
# Exits with the next code in the file `codes`. A negative code is a signal that it sends to itself.
EXIT_WITH_NEXT_CODE = """
read -r code rest <codes
echo "$rest" >codes
echo "run $code, supervised $T5X_LIKE_SUPERVISED"
((code < 0)) && kill "$code" $$
exit "$code"
"""
# Saves and exits on SIGTERM, as training does.
GRACEFUL = "trap 'echo saved; exit 75' TERM; echo up; while :; do sleep 0.05; done"


class Supervised:
    """Calls the supervisor with a job directory."""

    def __init__(self, directory: Path):
        self.directory, self.job = directory, directory / "job"

    def words(self, action: str, *words: str, command: str | None = None) -> list[str]:
        tail = ["--", "bash", "-c", command] if command else []
        return [sys.executable, str(SCRIPT), action, f"--job_dir={self.job}", "--delay=0.01", *words, *tail]

    def call(self, action: str, *words: str, command: str | None = None) -> subprocess.CompletedProcess:
        return subprocess.run(
            self.words(action, *words, command=command), cwd=self.directory, capture_output=True, text=True, timeout=30
        )

    def run_codes(self, codes: str, *words: str) -> subprocess.CompletedProcess:
        (self.directory / "codes").write_text(codes + "\n")
        return self.call("run", *words, command=EXIT_WITH_NEXT_CODE)

    def state(self) -> dict:
        return json.loads(self.call("status").stdout)

    def until_up(self) -> None:
        until(lambda: "up" in (self.job / "log").read_text())

    def kill_supervisor(self) -> None:
        os.kill(self.state()["pid"], signal.SIGKILL)
        until(lambda: self.state()["state"] == "lost")

    def orphan(self, command: str) -> int:
        """Starts a command, kills its supervisor, and returns the ID of the orphaned process."""
        self.call("start", command=command)
        self.until_up()
        self.kill_supervisor()
        trainer = int((self.directory / "trainer").read_text())
        assert is_alive(trainer)
        return trainer


def until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(process: int) -> bool:
    """Returns whether a process runs. A zombie is listed in /proc, but its command line is empty."""
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.fixture
def supervised(tmp_path) -> Supervised:
    return Supervised(tmp_path)


@pytest.mark.parametrize(
    ("codes", "exit_code", "runs"),
    [
        ("0", 0, 1),
        ("2", 2, 1),  # a user error is not restarted
        ("75 75 75 75 75 0", 0, 6),  # preemptions do not count as crashes
        ("1 1 0", 0, 3),
        ("1 1 1 0", 1, 3),  # --max_restarts=2 below
        ("1 75 1 1", 1, 4),
        ("-9 -9 -9", 1, 3),  # not 137, which a cluster treats as a preemption
    ],
)
def test_restarts_by_exit_code(supervised, codes, exit_code, runs):
    result = supervised.run_codes(codes, "--max_restarts=2")
    assert result.returncode == exit_code
    assert result.stdout.count("run ") == result.stdout.count("supervised 1") == runs
    assert supervised.state()["restarts"] == runs - 1


def test_restart_reasons_are_logged(supervised):
    log = supervised.run_codes("75 -9 3 4", "--max_restarts=2").stderr
    assert "preempted (exit code 75); restarting" in log
    assert "killed by SIGKILL, often because memory ran out after 0 s; restart 1 of 2" in log
    assert "exit code 3 after 0 s; restart 2 of 2" in log
    assert "exit code 4 after 0 s; maximum restarts (2) reached" in log


def test_long_run_resets_crash_count(supervised):
    assert supervised.run_codes("1 1 1 1 0", "--max_restarts=1", "--reset_after=0").returncode == 0


def test_preemption_is_returned_with_on_preempted_exit(supervised):
    assert supervised.run_codes("1 75 0", "--on_preempted=exit").returncode == 75


@pytest.mark.parametrize(
    ("command", "words", "code"),
    [
        ("trap 'exit 1' TERM; echo up; while :; do sleep 0.05; done", ["--on_preempted=exit"], 75),
        ("trap 'exit 1' TERM; echo up; while :; do sleep 0.05; done", [], 75),
        ("trap 'exit 2' TERM; echo up; while :; do sleep 0.05; done", ["--on_preempted=exit"], 2),
        (
            "echo up; exit 1",
            ["--on_preempted=exit", "--delay=60"],
            75,
        ),  # SIGTERM arrives during the pause before a restart
    ],
    ids=["crash_on_sigterm", "on_preempted_restart", "user_error", "between_two_runs"],
)
def test_exit_code_after_sigterm(supervised, command, words, code):
    process = subprocess.Popen(
        supervised.words("run", *words, command=command), cwd=supervised.directory, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "up\n"
    if "--delay=60" in words:
        child = supervised.state()["child"]
        until(lambda: not is_alive(child))
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == code
    process.stdout.close()


def test_sigterm_is_forwarded_and_ends_supervision(supervised):
    process = subprocess.Popen(
        supervised.words("run", command=GRACEFUL), cwd=supervised.directory, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 75
    assert process.stdout.read() == "saved\n"
    assert supervised.state()["state"] == "finished"


def test_detached_job_can_be_followed_and_stopped_but_not_started_twice(supervised):
    assert supervised.state() == {"state": "absent", "host": socket.gethostname()}
    assert supervised.call("follow").returncode == 3
    assert supervised.call("start", command=GRACEFUL).returncode == 0
    assert supervised.state()["state"] == "running"
    again = supervised.call("start", command="true")
    assert again.returncode == 4 and "a job is already running" in again.stderr
    supervised.until_up()
    follower = subprocess.Popen(supervised.words("follow"), stdout=subprocess.PIPE, text=True)
    assert "stopped: preempted (exit code 75)" in supervised.call("stop").stdout
    output, _ = follower.communicate(timeout=20)
    assert follower.returncode == 75
    assert output.startswith("up\nsaved\n")
    assert "no running job found" in supervised.call("stop").stdout


def test_job_that_ignores_sigterm_is_killed(supervised):
    supervised.call("start", command="trap '' TERM; echo up; while :; do sleep 0.05; done")
    supervised.until_up()
    result = supervised.call("stop", "--grace=0.3")
    assert result.returncode == 1 and "killed after 0.3 s" in result.stdout
    assert supervised.call("follow").returncode == 75


def test_follow_shows_only_the_current_job(supervised):
    supervised.call("start", command="echo first job; exit 2")
    assert supervised.call("follow").returncode == 2
    supervised.call("start", command="echo second job")
    output = supervised.call("follow", "--lines=0")
    assert output.returncode == 0
    assert "second job" in output.stdout and "first job" not in output.stdout


def test_job_with_killed_supervisor_is_lost_and_can_be_restarted(supervised):
    supervised.call("start", command="until [ -e job/state.json ]; do sleep 0.02; done; kill -9 $PPID")
    assert supervised.call("follow").returncode == 3
    assert supervised.state()["state"] == "lost"
    assert supervised.call("start", command="true").returncode == 0


linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
# The trainer runs below a wrapper process, so it does not die with the supervisor.
WRAPPED = """bash -c "trap '$ON_TERM' TERM; echo \\$\\$ >trainer; echo up; while :; do sleep 0.05; done" & wait"""


@linux
def test_command_dies_with_its_supervisor(supervised):
    supervised.call("start", command=GRACEFUL)
    supervised.until_up()
    child = supervised.state()["child"]
    assert is_alive(child)
    supervised.kill_supervisor()
    until(lambda: not is_alive(child))
    assert "saved" not in (supervised.job / "log").read_text()


@linux
def test_stop_kills_orphaned_processes(supervised, monkeypatch):
    monkeypatch.setenv("ON_TERM", "")
    trainer = supervised.orphan(WRAPPED)
    result = supervised.call("stop", "--grace=0.3")
    assert result.returncode == 1 and "the job was running without its supervisor and was killed" in result.stdout
    assert not is_alive(trainer)
    assert "no running job found (state: lost)" in supervised.call("stop").stdout


@linux
def test_start_terminates_orphaned_processes_first(supervised, monkeypatch):
    monkeypatch.setenv("ON_TERM", "echo saved; exit 75")
    trainer = supervised.orphan(WRAPPED)
    supervised.call("start", command="echo orphan: $(tr -d '\\0' <" + f"/proc/{trainer}/cmdline)")
    assert supervised.call("follow").returncode == 0
    log = (supervised.job / "log").read_text()
    assert "the previous job was running without its supervisor and has exited" in log
    assert log.index("saved\n") < log.index("orphan:\n")


@linux
def test_unrelated_process_with_the_same_id_is_not_killed(supervised):
    with subprocess.Popen(["sleep", "60"]) as other:
        supervised.job.mkdir()
        lost = {"state": "running", "pid": 99999999, "child": other.pid, "mark": "0123456789abcdef", "log_offset": 0}
        (supervised.job / "state.json").write_text(json.dumps(lost))
        assert "no running job found (state: lost)" in supervised.call("stop").stdout
        assert supervised.call("start", command="true").returncode == 0
        assert other.poll() is None
        other.kill()


@linux
def test_job_that_stopped_with_its_machine_is_lost_after_the_restart(supervised):
    supervised.run_codes("75", "--on_preempted=exit")
    assert supervised.state()["state"] == "finished"
    file = supervised.job / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "boot": "an earlier one"}))
    assert supervised.state()["state"] == "lost"
    supervised.run_codes("0")
    assert supervised.state()["state"] == "finished"


def test_missing_command_is_a_user_error(supervised):
    process = subprocess.run(
        [*supervised.words("run"), "--", "/no/such/command"], capture_output=True, text=True, timeout=30
    )
    assert process.returncode == 2
    assert "/no/such/command cannot be started: No such file" in process.stderr
    assert supervised.call("run").returncode == 2
