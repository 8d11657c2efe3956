"""Runs of two processes of which one fails: both exit with its exit code and say why, and no supervisor restarts."""

import resource
import sys
from pathlib import Path

import pytest
from several_processes import CONFIGS, finish, output, start, start_processes

from t5x_like.runtime import protocol
from t5x_like.training.runs.run_directory import read_status

pytestmark = [pytest.mark.full, pytest.mark.notf]

SUPERVISE = Path(__file__).resolve().parents[2] / "launch" / "supervise.py"
ERROR = "DATA=nowhere: not found on this machine. Copy it."


def outputs(directory):
    return output(directory, 0)[-3000:] + output(directory, 1)[-3000:]


@pytest.mark.parametrize("failing", [0, 1])
def test_user_error_before_the_first_step_is_the_error_of_all(tmp_path, failing):
    directory = tmp_path / "run"
    processes = start(directory, special={failing: {"SYNTHETIC_USER_ERROR": ERROR}})
    assert finish(processes) == [protocol.USER_ERROR] * 2, outputs(directory)
    assert f"t5x_like train: {ERROR}" in output(directory, failing)
    assert f"process {failing} of 2 has failed: {ERROR}" in output(directory, 1 - failing)


def test_path_that_one_machine_lacks_is_the_error_of_all(tmp_path):
    """The error is raised before the configuration is read."""
    directory = tmp_path / "run"
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "t5x_like", "train", f"--gin_search_paths={CONFIGS}", "--gin_file=synthetic.gin"]
    script = f'exec "$@" --gin.MODEL_DIR={tmp_path}/$PLACE/run'
    processes = start_processes(
        directory, ["bash", "-c", script, "", *command], PLACE=".", special={1: {"PLACE": "file"}}
    )
    assert finish(processes) == [protocol.USER_ERROR] * 2, outputs(directory)
    assert "MODEL_DIR=" in output(directory, 0) and "process 1 of 2 has failed: MODEL_DIR=" in output(directory, 0)


def test_supervised_processes_stop_after_a_user_error(tmp_path):
    directory = tmp_path / "run"
    command = [sys.executable, str(SUPERVISE), "run", "--delay=0.1", "--", sys.executable, "-m", "t5x_like", "train"]
    command += ["--gin_file=synthetic.gin", f"--gin_search_paths={CONFIGS}", f"--gin.MODEL_DIR={directory}"]
    processes = start_processes(directory, command, special={0: {"SYNTHETIC_USER_ERROR": ERROR}})
    assert finish(processes) == [protocol.USER_ERROR] * 2, outputs(directory)
    assert "restarting in" not in outputs(directory)


def test_limit_of_a_process_is_the_reason_in_the_status(tmp_path):
    directory = tmp_path / "run"
    processes = start(directory)
    # Less than any part of the checkpoint, so that process 0 waits for process 1. It holds from before the first step.
    resource.prlimit(processes[1].pid, resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
    codes = finish(processes)
    assert codes[0] == codes[1] == protocol.FAILURE, outputs(directory)
    status = read_status(str(directory))
    assert status["state"] == "failed" and "process 1 of 2" in status["reason"], status
