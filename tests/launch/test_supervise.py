"""launch/supervise.py: what is started again and what is not, and what is said of it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "launch/supervise.py"
# Ends with the next of the exit codes in the file `codes`; a negative one is a signal to itself.
LIVES = """
read -r code rest <codes
echo "$rest" >codes
echo "life $code, supervised $T5X_LIKE_SUPERVISED"
((code < 0)) && kill "$code" $$
exit "$code"
"""
# Saves when asked to leave, as training does.
PATIENT = "trap 'echo saved; exit 75' TERM; echo up; while :; do sleep 0.05; done"


class Supervised:
    def __init__(self, folder: Path):
        self.folder, self.job = folder, folder / "job"

    def words(self, action: str, *words: str, command: str | None = None) -> list[str]:
        tail = ["--", "bash", "-c", command] if command else []
        return [sys.executable, str(SCRIPT), action, f"--job_dir={self.job}", "--delay=0.01", *words, *tail]

    def call(self, action: str, *words: str, command: str | None = None) -> subprocess.CompletedProcess:
        return subprocess.run(
            self.words(action, *words, command=command), cwd=self.folder, capture_output=True, text=True, timeout=30
        )

    def lives(self, codes: str, *words: str) -> subprocess.CompletedProcess:
        (self.folder / "codes").write_text(codes + "\n")
        return self.call("run", *words, command=LIVES)

    def state(self) -> dict:
        return json.loads(self.call("status").stdout)

    def until_up(self) -> None:
        until(lambda: "up" in (self.job / "log").read_text())

    def kill_supervisor(self) -> None:
        os.kill(self.state()["pid"], signal.SIGKILL)
        until(lambda: self.state()["state"] == "lost")

    def leave_running(self, command: str) -> int:
        """Starts a command, kills its supervisor, and returns the process that is left of it."""
        self.call("start", command=command)
        self.until_up()
        self.kill_supervisor()
        trainer = int((self.folder / "trainer").read_text())
        assert is_alive(trainer)
        return trainer


def until(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_alive(process: int) -> bool:
    """A process that has ended and that nobody has asked for is listed still, and has no command line."""
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.fixture
def supervised(tmp_path) -> Supervised:
    return Supervised(tmp_path)


@pytest.mark.parametrize(
    ("codes", "exit_code", "lives"),
    [
        ("0", 0, 1),
        ("2", 2, 1),  # a mistake would come again
        ("75 75 75 75 75 0", 0, 6),  # preemptions are not counted
        ("1 1 0", 0, 3),
        ("1 1 1 0", 1, 3),  # two restarts are allowed below
        ("1 75 1 1", 1, 4),
        ("-9 -9 -9", 1, 3),  # not 137, which a cluster takes for a preemption
    ],
)
def test_what_is_started_again(supervised, codes, exit_code, lives):
    result = supervised.lives(codes, "--max_restarts=2")
    assert result.returncode == exit_code
    assert result.stdout.count("life") == result.stdout.count("supervised 1") == lives
    assert supervised.state()["restarts"] == lives - 1


def test_says_why(supervised):
    said = supervised.lives("75 -9 3 4", "--max_restarts=2").stderr
    assert "preempted (exit code 75); starting again" in said
    assert "killed by SIGKILL, often for want of memory after 0 s; restart 1 of 2" in said
    assert "exit code 3 after 0 s; restart 2 of 2" in said
    assert "exit code 4 after 0 s; giving up after 2 restarts" in said


def test_a_run_that_lasted_has_its_restarts_back(supervised):
    assert supervised.lives("1 1 1 1 0", "--max_restarts=1", "--reset_after=0").returncode == 0


def test_under_another_supervisor_a_preemption_is_handed_on(supervised):
    assert supervised.lives("1 75 0", "--on_preempted=exit").returncode == 75


@pytest.mark.parametrize(
    ("command", "words", "code"),
    [
        ("trap 'exit 1' TERM; echo up; while :; do sleep 0.05; done", ["--on_preempted=exit"], 75),
        ("trap 'exit 1' TERM; echo up; while :; do sleep 0.05; done", [], 1),
        ("trap 'exit 2' TERM; echo up; while :; do sleep 0.05; done", ["--on_preempted=exit"], 2),
        ("echo up; exit 1", ["--on_preempted=exit", "--delay=60"], 75),  # asked while it waited to start again
    ],
    ids=["torn_down", "not_under_another", "mistake", "between_two_runs"],
)
def test_what_is_asked_to_leave_has_been_preempted(supervised, command, words, code):
    process = subprocess.Popen(
        supervised.words("run", *words, command=command), cwd=supervised.folder, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "up\n"
    if "--delay=60" in words:
        child = supervised.state()["child"]
        until(lambda: not is_alive(child))
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == code
    process.stdout.close()


def test_sigterm_is_passed_on_and_ends_the_supervision(supervised):
    process = subprocess.Popen(
        supervised.words("run", command=PATIENT), cwd=supervised.folder, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 75
    assert process.stdout.read() == "saved\n"
    assert supervised.state()["state"] == "finished"


def test_a_detached_job_is_followed_stopped_and_not_started_twice(supervised):
    assert supervised.state() == {"state": "absent"}
    assert supervised.call("follow").returncode == 3
    assert supervised.call("start", command=PATIENT).returncode == 0
    assert supervised.state()["state"] == "running"
    again = supervised.call("start", command="true")
    assert again.returncode == 4 and "is running here already" in again.stderr
    supervised.until_up()
    follower = subprocess.Popen(supervised.words("follow"), stdout=subprocess.PIPE, text=True)
    assert "stopped: preempted (exit code 75)" in supervised.call("stop").stdout
    output, _ = follower.communicate(timeout=20)
    assert follower.returncode == 75
    assert output.startswith("up\nsaved\n")
    assert "no job is running here" in supervised.call("stop").stdout


def test_a_job_that_does_not_leave_is_killed(supervised):
    supervised.call("start", command="trap '' TERM; echo up; while :; do sleep 0.05; done")
    supervised.until_up()
    result = supervised.call("stop", "--grace=0.3")
    assert result.returncode == 1 and "killed after 0.3 s" in result.stdout
    assert supervised.call("follow").returncode == 137


def test_a_new_start_shows_its_own_output_alone(supervised):
    supervised.call("start", command="echo first life; exit 2")
    assert supervised.call("follow").returncode == 2
    supervised.call("start", command="echo second life")
    output = supervised.call("follow", "--lines=0")
    assert output.returncode == 0
    assert "second life" in output.stdout and "first life" not in output.stdout


def test_a_supervisor_that_was_killed_is_lost_and_can_be_followed_by_another(supervised):
    supervised.call("start", command="until [ -e job/state.json ]; do sleep 0.02; done; kill -9 $PPID")
    assert supervised.call("follow").returncode == 3
    assert supervised.state()["state"] == "lost"
    assert supervised.call("start", command="true").returncode == 0


linux = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="parents and environments as Linux tells them"
)
# The trainer below another process, as under a wrapper: it is not the one that dies with the supervisor.
WRAPPED = """bash -c "trap '$ON_TERM' TERM; echo \\$\\$ >trainer; echo up; while :; do sleep 0.05; done" & wait"""


@linux
def test_a_command_dies_with_its_supervisor(supervised):
    supervised.call("start", command=PATIENT)
    supervised.until_up()
    child = supervised.state()["child"]
    assert is_alive(child)
    supervised.kill_supervisor()
    until(lambda: not is_alive(child))
    assert "saved" not in (supervised.job / "log").read_text()


@linux
def test_stop_ends_what_a_killed_supervisor_left_running(supervised, monkeypatch):
    monkeypatch.setenv("ON_TERM", "")
    trainer = supervised.leave_running(WRAPPED)
    result = supervised.call("stop", "--grace=0.3")
    assert result.returncode == 1 and "the job was running without its supervisor, and was killed" in result.stdout
    assert not is_alive(trainer)
    assert "no job is running here (state: lost)" in supervised.call("stop").stdout


@linux
def test_a_start_ends_what_a_killed_supervisor_left_running_before_its_own(supervised, monkeypatch):
    monkeypatch.setenv("ON_TERM", "echo saved; exit 75")
    trainer = supervised.leave_running(WRAPPED)
    supervised.call("start", command="echo beside: $(tr -d '\\0' <" + f"/proc/{trainer}/cmdline)")
    assert supervised.call("follow").returncode == 0
    log = (supervised.job / "log").read_text()
    assert "the last job here was running without its supervisor, and has left" in log
    assert log.index("saved\n") < log.index("beside:\n")


@linux
def test_a_process_that_only_has_the_number_of_a_lost_child_is_left_alone(supervised):
    with subprocess.Popen(["sleep", "60"]) as other:
        supervised.job.mkdir()
        lost = {"state": "running", "pid": 99999999, "child": other.pid, "mark": "0123456789abcdef", "log_offset": 0}
        (supervised.job / "state.json").write_text(json.dumps(lost))
        assert "no job is running here (state: lost)" in supervised.call("stop").stdout
        assert supervised.call("start", command="true").returncode == 0
        assert other.poll() is None
        other.kill()


def test_a_command_that_does_not_exist_is_a_mistake(supervised):
    process = subprocess.run(
        [*supervised.words("run"), "--", "/no/such/command"], capture_output=True, text=True, timeout=30
    )
    assert process.returncode == 2
    assert "/no/such/command cannot be started: No such file" in process.stderr
    assert supervised.call("run").returncode == 2
