"""Tests for launch/install_worker.sh with a fake uv."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = """#!/usr/bin/env bash
echo "uv $*" >>"$LOG"
[ "$1" = venv ] && mkdir -p "${@: -1}/bin" && touch "${@: -1}/bin/python"
[ "$1" = pip ] && [ -e "$LOG.fail" ] && rm "$LOG.fail" && exit 1
exit 0
"""
# The Python of the VM, which only installs uv.
PYTHON = """#!/usr/bin/env bash
echo "python3 $*" >>"$LOG"
mkdir -p "$HOME/.local/bin" && cp "$FAKE_UV" "$HOME/.local/bin/uv"
"""


@pytest.fixture
def worker(tmp_path):
    """Returns a function that runs the script in a worker's home directory and returns the logged commands."""
    checkout, programs = tmp_path / "t5x_like", tmp_path / "bin"
    (checkout / "launch").mkdir(parents=True)
    programs.mkdir()
    for name in ("launch/install_worker.sh", "constraints.txt", "setup.py"):
        shutil.copy(ROOT / name, checkout / name)
    for path, text in ((tmp_path / "uv", UV), (programs / "python3", PYTHON)):
        path.write_text(text)
        path.chmod(0o755)
    log = tmp_path / "log"

    def install(**environment: str) -> tuple[subprocess.CompletedProcess, list[str]]:
        log.write_text("")
        result = subprocess.run(
            [checkout / "launch/install_worker.sh"],
            env={
                "PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin",
                "HOME": str(tmp_path),
                "LOG": str(log),
                "FAKE_UV": str(tmp_path / "uv"),
                "RETRY_SECONDS": "0",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=30,
        )
        return result, log.read_text().splitlines()

    install.home = tmp_path
    return install


def test_first_run_installs_uv_python_and_extra_and_second_run_nothing(worker):
    result, calls = worker()
    assert result.returncode == 0, result.stderr
    install_uv, create, install = calls
    assert install_uv == "python3 -m pip install --quiet --user uv"
    assert create == f"uv venv --quiet --python 3.12 {worker.home}/t5x_like_venv"
    assert f"--editable {worker.home}/t5x_like[tpu] --constraint {worker.home}/t5x_like/constraints.txt" in install
    result, calls = worker()
    assert result.returncode == 0 and calls == [] and "is up to date" in result.stderr


def test_changed_constraints_update_the_same_environment(worker):
    worker()
    with (worker.home / "t5x_like/constraints.txt").open("a") as file:
        file.write("new-package==1.0\n")
    _, calls = worker()
    assert [call.split()[:2] for call in calls] == [["uv", "pip"]]
    _, calls = worker(EXTRA="cuda")
    assert "t5x_like[cuda]" in calls[0]


def test_failed_installation_is_retried_and_not_stamped(worker):
    (worker.home / "log.fail").touch()
    result, calls = worker()
    assert result.returncode == 0 and "attempt 1 of 3 failed" in result.stderr
    assert [call.split()[1] for call in calls] == ["-m", "venv", "pip", "pip"]
    (worker.home / "uv").write_text('#!/usr/bin/env bash\necho "uv $*" >>"$LOG"\nexit 1\n')
    shutil.copy(worker.home / "uv", worker.home / ".local/bin/uv")
    result, calls = worker(EXTRA="cuda")
    assert result.returncode == 1 and len(calls) == 3
    result, calls = worker()  # the failed installation may have broken the environment of the first one
    assert len(calls) == 3
