"""Tests for launch/install_worker.sh with a fake uv."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
UV = """#!/usr/bin/env bash
echo "uv $*" >>"$LOG"
[ "$1" = venv ] && mkdir -p "${@: -1}/bin" && touch "${@: -1}/bin/python"
[ "$1" = pip ] && [ -e "$LOG.fail" ] && rm "$LOG.fail" && exit 1
exit 0
"""
# The Python of the VM, which only installs uv. It cannot create virtual environments while $HOME/no_venv exists.
PYTHON = """#!/usr/bin/env bash
if [ "$1" = -c ]; then echo "$HOME/stdlib"; exit; fi
echo "python3 $*" >>"$LOG"
if [ "$2" = venv ]; then
  [ -e "$HOME/no_venv" ] && exit 1
  mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python"
elif [[ $0 == */t5x_like_uv/* ]]; then
  cp "$FAKE_UV" "$(dirname "$0")/uv"
else
  mkdir -p "$HOME/.local/bin" && cp "$FAKE_UV" "$HOME/.local/bin/uv"
fi
"""
SUDO = """#!/usr/bin/env bash
echo "sudo $*" >>"$LOG"
[ "$2" = install ] && rm -f "$HOME/no_venv"
exit 0
"""


@pytest.fixture
def worker(tmp_path):
    """Returns a function that runs the script in a worker's home directory and returns the logged commands."""
    checkout, programs = tmp_path / "t5x_like", tmp_path / "bin"
    (checkout / "launch").mkdir(parents=True)
    programs.mkdir()
    for name in ("launch/install_worker.sh", "constraints.txt", "setup.py"):
        shutil.copy(ROOT / name, checkout / name)
    for path, text in ((tmp_path / "uv", UV), (programs / "python3", PYTHON), (programs / "sudo", SUDO)):
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


def test_externally_managed_python_gets_uv_in_a_virtual_environment(worker):
    """Ubuntu 24.04: pip refuses to install outside of virtual environments, and python3-venv may be missing."""
    (worker.home / "stdlib").mkdir()
    (worker.home / "stdlib/EXTERNALLY-MANAGED").touch()
    (worker.home / "no_venv").touch()
    result, calls = worker()
    assert result.returncode == 0, result.stderr
    assert calls[:5] == [
        f"python3 -m venv --clear {worker.home}/t5x_like_uv",
        "sudo apt-get update -qq",
        "sudo apt-get install -y -qq python3-venv",
        f"python3 -m venv --clear {worker.home}/t5x_like_uv",
        "python3 -m pip install --quiet uv",
    ]
    assert [call.split()[:2] for call in calls[5:]] == [["uv", "venv"], ["uv", "pip"]]
    shutil.rmtree(worker.home / "t5x_like_venv")
    _, calls = worker()
    assert [call.split()[:2] for call in calls] == [["uv", "venv"], ["uv", "pip"]], "uv is installed once"
