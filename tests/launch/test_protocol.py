"""Tests that launch/protocol.py agrees with t5x_like and with the shell scripts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_like.runtime import protocol as own_protocol

pytestmark = pytest.mark.full

LAUNCH = Path(__file__).resolve().parents[2] / "launch"
sys.path.insert(0, str(LAUNCH))
try:
    import protocol
finally:
    sys.path.pop(0)


def test_exit_codes_match_t5x_like():
    assert (protocol.SUCCESS, protocol.USER_ERROR) == (own_protocol.SUCCESS, own_protocol.USER_ERROR)
    assert (protocol.PREEMPTED, protocol.INTERRUPTED) == (own_protocol.PREEMPTED, own_protocol.INTERRUPTED)
    assert (protocol.LOST_PEER, protocol.LIKELY_TO_REPEAT) == (own_protocol.LOST_PEER, own_protocol.LIKELY_TO_REPEAT)


def test_environment_variables_match_t5x_like():
    assert protocol.SUPERVISED == own_protocol.SUPERVISED
    assert protocol.SUPERVISED in own_protocol.SUPERVISORS
    names = (protocol.COORDINATOR, protocol.NUM_PROCESSES, protocol.PROCESS_ID)
    assert names == (own_protocol.COORDINATOR, own_protocol.NUM_PROCESSES, own_protocol.PROCESS_ID)


@pytest.mark.parametrize(
    ("script", "assignment"),
    [
        ("local_multiprocess.sh", f"preempted={protocol.PREEMPTED}"),
        ("local_multiprocess.sh", f"interrupted={protocol.INTERRUPTED}"),
        ("slurm.sbatch", f"preempted={protocol.PREEMPTED}"),
        ("slurm.sh", f"max_restarts={protocol.MAX_RESTARTS}"),
        ("install_worker.sh", f'venv="${{VENV:-$HOME/{protocol.VENV_DIRECTORY}}}"'),
    ],
)
def test_shell_scripts_assign_the_same_values(script, assignment):
    assert re.search(rf"(^|\s){re.escape(assignment)}(\s|$)", (LAUNCH / script).read_text())


@pytest.mark.parametrize("script", ["local_multiprocess.sh", "slurm.sbatch"])
def test_scripts_that_start_processes_set_the_same_variables(script):
    text = (LAUNCH / script).read_text()
    assert all(f"{name}=" in text for name in (protocol.COORDINATOR, protocol.NUM_PROCESSES, protocol.PROCESS_ID))


def test_protocol_needs_only_the_standard_library():
    command = [sys.executable, "-ISE", "-c", "import runpy, sys; runpy.run_path(sys.argv[1])", LAUNCH / "protocol.py"]
    subprocess.run(command, check=True, timeout=30)
