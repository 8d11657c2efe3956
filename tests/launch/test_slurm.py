"""Tests for launch/slurm.sh and its batch script with a fake Slurm: submission, environment and requeueing."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ["--", "t5x_like", "train", "--gin.MODEL_DIR=/shared/run", "--gin.NAME=two words"]
# Runs two tasks in sequence. The exit code is the highest one, as with srun.
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do echo "srun $1" >>"$LOG"; shift; done
echo "cpus ${SRUN_CPUS_PER_TASK:-unset}" >>"$LOG"
worst=0
for task in 0 1; do
  SLURM_PROCID=$task SLURM_NTASKS=2 "$@"
  code=$?
  ((code > worst)) && worst=$code
done
exit "$worst"
"""
SCONTROL = """#!/usr/bin/env bash
echo "scontrol $*" >>"$LOG"
[ "$1" != requeue ] || [ -z "${NO_REQUEUE:-}" ] || exit 1
[ "$1" = show ] && printf 'node-a\\nnode-b\\n'
exit 0
"""
# Runs the command that follows its options and the image.
APPTAINER = """#!/usr/bin/env bash
echo "apptainer $1 $2 $3 $4 $5 $6 $7" >>"$LOG"
shift 7
exec "$@"
"""
T5X_LIKE = """#!/usr/bin/env bash
echo "platforms $JAX_PLATFORMS" >>"$LOG"
echo "$T5X_LIKE_COORDINATOR $T5X_LIKE_PROCESS_ID/$T5X_LIKE_NUM_PROCESSES $*" >>"$LOG"
exit "${STATUS:-0}"
"""


@pytest.fixture
def slurm(tmp_path):
    """Returns a directory with a fake Slurm and a virtual environment."""
    (tmp_path / "venv/bin").mkdir(parents=True)
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("venv/bin/t5x_like", T5X_LIKE)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "venv/bin/python3").symlink_to(sys.executable)
    return tmp_path


def submit(*words: str, venv: str = "/no/such/environment") -> subprocess.CompletedProcess:
    environment = {"PATH": os.environ["PATH"], "VENV": venv}
    return subprocess.run(
        [ROOT / "launch/slurm.sh", *words], env=environment, capture_output=True, text=True, timeout=30
    )


def batch(directory: Path, terminate_after: Path | None = None, **environment: str) -> tuple[int, list[str]]:
    """Runs the batch script as Slurm does, and returns its exit code, and the logged calls with its messages.

    Args:
      directory: The directory with the fake programs.
      terminate_after: The script gets SIGTERM when this file exists.
      environment: Variables of the script.
    """
    process = subprocess.Popen(
        [ROOT / "launch/slurm.sbatch", *COMMAND[1:]],
        cwd=directory,
        env={
            "PATH": f"{directory}{os.pathsep}{os.environ['PATH']}",
            "LOG": str(directory / "log"),
            "SLURM_JOB_ID": "1234",
            "SLURM_JOB_NODELIST": "node-[a-b]",
            "T5X_LIKE_ROOT": str(ROOT),
            "T5X_LIKE_VENV": str(directory / "venv"),
            "T5X_LIKE_MAX_RESTARTS": "0",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while terminate_after and not terminate_after.exists() and process.poll() is None:
        time.sleep(0.05)
    if terminate_after:
        process.send_signal(signal.SIGTERM)
    _, messages = process.communicate(timeout=60)
    log = directory / "log"
    return process.returncode, [*(log.read_text() if log.exists() else "").splitlines(), *messages.splitlines()]


def test_submits_one_process_per_gpu_with_signal_and_requeue():
    result = submit("--nodes=2", "--gpus_per_node=4", "--time=1-00:00:00", "--partition=gpu", "--dry_run", *COMMAND)
    assert result.returncode == 0, result.stderr
    words = shlex.split(result.stdout)
    flags = words[words.index("sbatch") :]
    for flag in ("--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--time=1-00:00:00", "--partition=gpu"):
        assert flag in flags
    assert "--signal=TERM@180" in flags and "--requeue" in flags and "--open-mode=append" in flags
    assert flags[flags.index(str(ROOT / "launch/slurm.sbatch")) + 1 :] == COMMAND[1:]


@pytest.mark.parametrize(
    ("options", "hourly", "run"),
    [
        ([], "unknown (add --price, of one of 16 GPUs)", "unknown"),
        (["--price=2.5"], "40.00 USD (16 GPUs at 2.50 USD; --price)", "unknown (add --hours)"),
        (["--price=2.5", "--hours=10"], "40.00 USD (16 GPUs at 2.50 USD; --price)", "400.00 USD (--hours=10)"),
    ],
)
def test_dry_run_prints_the_cost(options, hourly, run):
    lines = submit("--nodes=2", *options, "--dry_run", *COMMAND).stdout.splitlines()
    assert lines[:2] == [f"# cost per hour: {hourly}", f"# cost of the run: {run}"]


def test_other_options_are_passed_to_sbatch():
    given = ["--reservation=team", "--exclude=node-[1-3]", "--exclusive", "--cpus_per_task=12", "--mail-user=a@b.c"]
    result = submit(*given, "--dry_run", *COMMAND)
    assert result.returncode == 0, result.stderr
    words = shlex.split(result.stdout)
    passed = words[words.index("--output=t5x_like-%j.log") + 1 : words.index(str(ROOT / "launch/slurm.sbatch"))]
    assert passed == [word.replace("cpus_per_task", "cpus-per-task") for word in given]


@pytest.mark.parametrize("time", ["0", "4", "3:01", "0-1", "0:03:01"])
def test_time_limit_longer_than_save_seconds_is_accepted(time):
    result = submit(f"--time={time}", "--dry_run", *COMMAND)
    assert result.returncode == 0, result.stderr


def test_processes_get_coordinator_and_index(slurm):
    code, calls = batch(slurm)
    assert code == 0
    ran = [call for call in calls if call.startswith("node-a:")]
    assert ran == [f"node-a:21234 {task}/2 train --gin.MODEL_DIR=/shared/run --gin.NAME=two words" for task in (0, 1)]
    # A process that has saved must not terminate the others while they save.
    assert "srun --kill-on-bad-exit=0" in calls
    assert "platforms cuda,cpu" in calls
    assert not any("requeue" in call for call in calls)


@pytest.mark.parametrize(
    ("container", "call"),
    [
        ("registry.example.com#t5x_like:first", "srun --container-mounts={0}:{0},/data:/data"),
        ("/images/first.sif", "apptainer exec --nv --bind {0},/data --pwd {0} /images/first.sif"),
    ],
)
def test_container_sees_working_directory_and_mounts(slurm, container, call):
    (slurm / "apptainer").write_text(APPTAINER)
    (slurm / "apptainer").chmod(0o755)
    (slurm / "t5x_like").symlink_to(slurm / "venv/bin/t5x_like")  # in the image
    settings = {"T5X_LIKE_CONTAINER": container, "T5X_LIKE_MOUNTS": "/data", "T5X_LIKE_VENV": ""}
    code, calls = batch(slurm, **settings)
    assert code == 0
    assert call.format(slurm) in calls
    assert sum(line.startswith("node-a:21234") for line in calls) == 2


@pytest.mark.parametrize(("requested", "passed"), [({}, "unset"), ({"SLURM_CPUS_PER_TASK": "12"}, "12")])
def test_processes_get_the_requested_cpus(slurm, requested, passed):
    assert f"cpus {passed}" in batch(slurm, **requested)[1]


def test_missing_environment_on_the_node_is_not_retried(slurm):
    code, calls = batch(slurm, T5X_LIKE_VENV="/no/such/environment", T5X_LIKE_MAX_RESTARTS="3")
    assert code == 2
    assert any("t5x_like not found in /no/such/environment on " in call for call in calls)
    assert not any(call.startswith("srun") for call in calls)


def test_failed_requeue_says_how_to_resume(slurm):
    code, calls = batch(slurm, STATUS="75", NO_REQUEUE="yes")
    assert code == 75
    assert any("not requeued. Submit the same command again" in call for call in calls)


def test_termination_of_the_job_saves_and_does_not_requeue(slurm):
    """`scancel` sends SIGTERM to the script; other signals of Slurm go only to the processes."""
    started = slurm / "started"
    (slurm / "srun").write_text(f"""#!/usr/bin/env bash
trap 'exit 75' TERM
touch {started}
for _ in {{1..300}}; do sleep 0.1; done
""")
    code, calls = batch(slurm, terminate_after=started)
    assert code == 75
    assert not any("requeue" in call for call in calls)


@pytest.mark.parametrize(("status", "requeued"), [("75", True), ("2", False), ("1", False)])
def test_only_preemption_is_requeued(slurm, status, requeued):
    code, calls = batch(slurm, STATUS=status)
    assert code == int(status)
    assert ("scontrol requeue 1234" in calls) is requeued


def test_crash_is_restarted_in_the_same_allocation(slurm):
    (slurm / "venv/bin/t5x_like").write_text(
        T5X_LIKE.replace('exit "${STATUS:-0}"', '[ -e "$LOG.2" ] || ! touch "$LOG.2"')
    )
    code, calls = batch(slurm, T5X_LIKE_MAX_RESTARTS="1", T5X_LIKE_RESTART_DELAY="0")
    assert code == 0
    assert len([call for call in calls if call.startswith("node-a:")]) == 4


def test_crash_that_its_peers_report_as_a_lost_process_counts(slurm):
    """The exit code of srun is the highest one of its tasks."""
    code, calls = batch(slurm, STATUS="69", T5X_LIKE_MAX_RESTARTS="1", T5X_LIKE_RESTART_DELAY="0")
    assert code == 69 and len([call for call in calls if call.startswith("node-a:")]) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes=0", *COMMAND], "--nodes=0: not a positive integer"),
        (["--gpus_per_node=x", *COMMAND], "--gpus_per_node=x: not a positive integer"),
        (["--time=tomorrow", *COMMAND], "--time=tomorrow: not a time"),
        (["--time=00:02:00", "--save_seconds=600", *COMMAND], "leaves no time to train before --time=00:02:00 (120 s)"),
        (["--time=3", *COMMAND], "--save_seconds=180 leaves no time to train before --time=3 (180 s)"),
        (["--time=2:59", *COMMAND], "before --time=2:59 (179 s)"),
        (["--time=0-00:03", *COMMAND], "before --time=0-00:03 (180 s)"),
        (["--time=1-08:09:08", "--save_seconds=115748", *COMMAND], "(115748 s)"),
        (["--price=much", "--hours=1", *COMMAND], "--price=much: not a number. Write --price=2.5"),
        (["--price=2.5", "--hours=-1", *COMMAND], "--hours=-1: not a number. Write --hours=2.5"),
        (["--gpus=8", *COMMAND], "--gpus=8: the script sets this option"),
        (["--signal=B:TERM@9", *COMMAND], "--signal=B:TERM@9: the script sets this option"),
        (["--ntasks_per_node=2", *COMMAND], "--ntasks_per_node=2: the script sets this option"),
        (["gpu", *COMMAND], "unknown argument gpu. Write options as --NAME=VALUE"),
        (["--nodes", "2", *COMMAND], "--nodes: value missing. Write --nodes=VALUE"),
        (["--", "python", "train.py"], "python after -- is not supported"),
        (["--", "t5x_like", "train"], "without --gin.MODEL_DIR"),
        (["--partition=", *COMMAND], "--partition= is empty"),
        (["--container=/images/missing.sif", *COMMAND], "/images/missing.sif: file not found"),
        (["--container=docker://x/y:1", *COMMAND], "Write a .sif file, or remove docker://"),
        (["--mounts=/data", *COMMAND], "--mounts=/data without --container"),
        (["--container=x#y:1", "--mounts=data", *COMMAND], "--mounts=data: not a list of directories"),
        ([], "no command given"),
    ],
)
def test_invalid_arguments_exit_before_submission(words, message):
    result = submit(*words)
    assert result.returncode == 2 and message in result.stderr


def test_missing_sbatch_is_an_error(tmp_path):
    for program in ("bash", "dirname"):
        (tmp_path / program).symlink_to(shutil.which(program))
    words = [ROOT / "launch/slurm.sh", *COMMAND]
    result = subprocess.run(words, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=30)
    assert result.returncode == 2 and "sbatch not found" in result.stderr


def test_missing_environment_is_an_error(slurm):
    (slurm / "sbatch").symlink_to(slurm / "srun")
    environment = {"PATH": f"{slurm}{os.pathsep}{os.environ['PATH']}", "VENV": "/no/such/environment"}
    words = [ROOT / "launch/slurm.sh", *COMMAND]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30)
    assert result.returncode == 2 and "t5x_like not found in /no/such/environment" in result.stderr
