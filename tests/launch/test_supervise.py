"""Tests for launch/supervise.py: restarts, their limits, and messages."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t5x_like import paths

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import supervise
finally:
    sys.path.pop(0)

pytestmark = pytest.mark.full

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
    """Calls the supervisor in a directory."""

    def __init__(self, directory: Path):
        self.directory = directory

    def words(self, action: str, *words: str, command: str | None = None) -> list[str]:
        tail = ["--", "bash", "-c", command] if command else []
        return [sys.executable, str(SCRIPT), action, "--delay=0.01", *words, *tail]

    def call(self, action: str, *words: str, command: str | None = None) -> subprocess.CompletedProcess:
        return subprocess.run(
            self.words(action, *words, command=command), cwd=self.directory, capture_output=True, text=True, timeout=30
        )

    def run_codes(self, codes: str, *words: str) -> subprocess.CompletedProcess:
        (self.directory / "codes").write_text(codes + "\n")
        return self.call("run", *words, command=EXIT_WITH_NEXT_CODE)


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


def test_restart_reasons_are_logged(supervised):
    log = supervised.run_codes("75 -9 3 4", "--max_restarts=2").stderr
    assert "preempted (exit code 75); restarting" in log
    assert "killed by SIGKILL, often because memory ran out after 0 s; restart 1 of 2" in log
    assert "exit code 3 after 0 s; restart 2 of 2" in log
    assert "exit code 4 after 0 s; maximum restarts without progress (2) reached" in log


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
        time.sleep(0.3)
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
    process.stdout.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_command_dies_with_its_supervisor(supervised):
    process = subprocess.Popen(
        supervised.words("run", command="echo $$; exec sleep 60"), stdout=subprocess.PIPE, text=True
    )
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    until(lambda: not is_alive(child))
    process.stdout.close()


def test_new_checkpoint_resets_the_count_of_crashes(supervised):
    command = """
    saved=$(ls run/checkpoints 2>/dev/null | wc -l)
    ((saved == 5)) && echo stuck && exit 1
    mkdir -p run/checkpoints/$saved
    exit 1
    """
    result = supervised.call("run", "--run=run", "--max_restarts=2", command=command)
    assert result.returncode == 1 and result.stdout.count("stuck") == 2, "the fifth crash counts as the first one"
    assert "maximum restarts without progress (2) reached" in result.stderr


@pytest.mark.parametrize(
    ("codes", "exit_code", "runs"),
    [
        ("69 69 69 69 69 69 0", 0, 7),  # the repair of another machine takes longer than any number of restarts
        ("1 69 1 69 1 0", 1, 5),
        ("70 70 0", 70, 2),
        ("70 0", 0, 2),
    ],
)
def test_lost_peers_do_not_count_and_likely_repetitions_count_double(supervised, codes, exit_code, runs):
    result = supervised.run_codes(codes, "--max_restarts=2")
    assert result.returncode == exit_code and result.stdout.count("run ") == runs


def test_lost_peer_that_does_not_come_back_ends_the_supervision(supervised):
    result = supervised.run_codes("69 0", "--peer_seconds=0")
    assert result.returncode == 69 and "and not back after 0 s without progress" in result.stderr


def test_starts_without_a_new_checkpoint_are_limited(supervised):
    """The kernel kills the supervisor with its command where the memory of a container is exhausted."""
    words = ["--run=run", "--max_starts=2", "--on_preempted=exit"]
    assert [supervised.run_codes("75", *words).returncode for _ in range(2)] == [75, 75]
    refused = supervised.run_codes("0", *words)
    assert refused.returncode == 1 and "run" not in refused.stdout
    assert "2 starts without a new checkpoint in run: not started again" in refused.stderr
    (supervised.directory / "run/checkpoints/100").mkdir(parents=True)
    assert supervised.run_codes("0", *words).returncode == 0
    (stored,) = (supervised.directory / "run/launch/starts").glob("*.json")
    assert json.loads(stored.read_text()) == {"step": 100, "starts": 1}


def test_missing_command_is_a_user_error(supervised):
    process = subprocess.run(
        [*supervised.words("run"), "--", "/no/such/command"], capture_output=True, text=True, timeout=30
    )
    assert process.returncode == 2
    assert "/no/such/command cannot be started: No such file" in process.stderr
    assert supervised.call("run").returncode == 2


def test_progress_of_a_run_in_a_store_is_counted(tmp_path):
    run = f"memory://{tmp_path.name}"
    assert [supervise.Progress(run).count_start() for _ in range(3)] == [1, 2, 3]
    progress = supervise.Progress(run)
    paths.write_atomic(f"{run}/checkpoints/200/about", "{}")
    paths.write_atomic(f"{run}/checkpoints/300.orbax-checkpoint-tmp/about", "{}")
    assert progress.newest_step() == 200 and progress.has_advanced() and not progress.has_advanced()
    assert supervise.Progress(run).count_start() == 1


def test_outage_of_the_store_is_not_progress(tmp_path, monkeypatch):
    (tmp_path / "checkpoints/100").mkdir(parents=True)
    progress = supervise.Progress(str(tmp_path))
    with monkeypatch.context() as outage:
        outage.setattr(supervise.LocalFiles, "listdir", None)
        assert not progress.has_advanced()
    assert not progress.has_advanced()
