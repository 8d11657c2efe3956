"""launch/local.sh with stand-in interpreters: which Python it takes, what it installs when, and what it says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What the script calls besides Python. PATH holds these alone, so no real interpreter of this machine takes part.
TOOLS = ["bash", "cat", "chmod", "cksum", "cp", "dirname", "env", "mkdir", "sed"]

# Answers the script's question with its own version; makes a "virtual environment" out of copies of itself; writes down
# every installation, and every command started from an environment.
INTERPRETER = """#!/usr/bin/env bash
case "$1 $2" in
  "-m venv")
    directory="${{@: -1}}"
    mkdir -p "$directory/bin"
    cp "$0" "$directory/bin/python"
    printf '#!/usr/bin/env bash\\necho "run t5x_like in $PWD: $*" >>"$LOG"\\n' >"$directory/bin/t5x_like"
    chmod +x "$directory/bin/t5x_like"
    echo "venv by {name}" >>"$LOG" ;;
  "-m pip") echo "pip ${{*:3}}" >>"$LOG"; exit "${{PIP_STATUS:-0}}" ;;
  "-m pytest") echo "run pytest in $PWD: ${{*:3}}" >>"$LOG" ;;
  "-c "*) echo "{answer}" ;;
esac
"""
# Like a version manager's shim for a Python that is not switched on.
SHIM = "#!/usr/bin/env bash\necho 'python: command not found' >&2\nexit 127\n"
UV = """#!/usr/bin/env bash
[ "$1" = venv ] && { "${@: -2:1}" -m venv "${@: -1}"; exit; }
[ "$1" = pip ] && echo "uv $*" >>"$LOG"
exit 0
"""


class Machine:
    """A checkout of the launch script and a PATH that holds what a test puts there."""

    def __init__(self, folder: Path):
        self.bin, self.repository, self.log = folder / "bin", folder / "a checkout", folder / "log"
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        (self.repository / "launch").mkdir(parents=True)
        for name in ("launch/local.sh", "constraints.txt", "setup.py"):
            shutil.copy(ROOT / name, self.repository / name)
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir()

    def add(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def python(self, name: str, version: str, *, whole: bool = True) -> Path:
        return self.add(name, INTERPRETER.format(name=name, answer=f"{version} {'yes' if whole else 'no'}"))

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        self.log.write_text("")
        return subprocess.run(
            [self.repository / "launch/local.sh", *arguments],
            cwd=self.elsewhere,
            env={"PATH": str(self.bin), "LOG": str(self.log), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def did(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


def test_first_run_makes_installs_and_trains_where_the_user_is(machine):
    machine.python("python3", "3.12")
    result = machine.run("train", "--gin.TRAIN_STEPS=20", "--gin.NAME='two words'")
    assert result.returncode == 0, result.stderr
    venv, install, run = machine.did()
    assert venv == "venv by python3"
    assert install.endswith(f"--editable {machine.repository} --constraint {machine.repository}/constraints.txt")
    assert run == f"run t5x_like in {machine.elsewhere}: train --gin.TRAIN_STEPS=20 --gin.NAME='two words'"


def test_second_run_installs_nothing(machine):
    machine.python("python3", "3.12")
    machine.run("train")
    machine.run("infer", "--input=a.txt")
    assert machine.did() == [f"run t5x_like in {machine.elsewhere}: infer --input=a.txt"]


def test_the_tests_add_their_extra_once_and_run_in_the_repository(machine):
    machine.python("python3", "3.11")
    machine.run("train")
    machine.run("test", "-k", "a b")
    install, run = machine.did()
    assert f"--editable {machine.repository}[test] " in install
    assert run == f"run pytest in {machine.repository}: -n auto --dist loadfile --no-loadscope-reorder -k a b"
    machine.run("test")
    assert machine.did() == [f"run pytest in {machine.repository}: -n auto --dist loadfile --no-loadscope-reorder"]
    machine.run("train")
    assert machine.did() == [f"run t5x_like in {machine.elsewhere}: train"]


def test_changed_constraints_are_installed_again_into_the_same_environment(machine):
    machine.python("python3", "3.11")
    machine.run("test")
    with (machine.repository / "constraints.txt").open("a") as file:
        file.write("new-package==1.0\n")
    machine.run("train")
    assert [line.split()[0] for line in machine.did()] == ["pip", "run"]
    machine.run("test")
    assert [line.split()[0] for line in machine.did()] == ["pip", "run"]


def test_a_failed_installation_stops_and_is_tried_again(machine):
    machine.python("python3", "3.11")
    assert machine.run("train", PIP_STATUS="1").returncode == 1
    assert not any(line.startswith("run") for line in machine.did())
    machine.run("train")
    assert [line.split()[0] for line in machine.did()] == ["pip", "run"]


@pytest.mark.parametrize("unsuitable", ["3.10", "3.14", "2.7"])
def test_takes_a_named_python_where_python3_is_unsuitable(machine, unsuitable):
    machine.python("python3", unsuitable)
    machine.add("python3.13", SHIM)
    machine.python("python3.12", "3.12")
    machine.run("train")
    assert machine.did()[0] == "venv by python3.12"


def test_PYTHON_overrides_and_is_not_replaced(machine):
    machine.python("python3", "3.12")
    machine.python("mine", "3.13")
    machine.run("train", PYTHON="mine")
    assert machine.did()[0] == "venv by mine"
    old = machine.python("old", "3.9")
    result = machine.run("train", PYTHON=str(old), VENV="another")
    assert result.returncode == 1
    assert f"PYTHON={old} is Python 3.9, too old; t5x_like needs Python 3.11 to 3.13" in result.stderr
    assert machine.did() == []


def test_an_environment_of_another_python_is_left_alone(machine):
    machine.python("python3", "3.12")
    machine.python("mine", "3.13")
    machine.run("train")
    result = machine.run("train", PYTHON="mine")
    assert result.returncode == 1
    assert "is Python 3.12 and PYTHON=mine is 3.13" in result.stderr
    assert machine.did() == []


def test_says_what_is_wrong_with_each_python(machine):
    machine.python("python3", "3.14")
    machine.add("python3.13", SHIM)
    machine.python("python3.12", "3.12", whole=False)
    result = machine.run("train")
    assert result.returncode == 1
    assert "python3 is Python 3.14, too new" in result.stderr
    assert "python3.13 does not run" in result.stderr
    assert "python3.12 is Python 3.12 without its venv module" in result.stderr
    assert "apt install python3.12-venv" in result.stderr
    assert "PYTHON=/path/to/python" in result.stderr
    assert machine.did() == []


def test_no_python_at_all(machine):
    result = machine.run("train")
    assert result.returncode == 1
    assert "needs Python 3.11 to 3.13, and none was found" in result.stderr


def test_uv_installs_and_needs_no_venv_module(machine):
    machine.python("python3", "3.12", whole=False)
    machine.add("uv", UV)
    result = machine.run("test")
    assert result.returncode == 0, result.stderr
    venv, install, run = machine.did()
    assert venv == "venv by python3"
    assert install.startswith("uv pip install") and f"--python {machine.repository}/.venv/bin/python" in install
    assert run.startswith("run pytest")


def test_a_uv_that_does_not_run_is_not_used_and_UV_can_be_switched_off(machine):
    machine.python("python3", "3.12")
    machine.add("uv", SHIM)
    machine.run("train")
    assert machine.did()[1].startswith("pip install")
    machine.add("uv", UV)
    machine.run("train", UV="", VENV="another")
    assert machine.did()[1].startswith("pip install")


def test_a_broken_environment_is_made_anew_and_an_unsuitable_one_is_not_removed(machine):
    machine.python("python3", "3.12")
    machine.run("train")
    environment = machine.repository / ".venv"
    (environment / "installed").unlink()
    (environment / "bin/python").write_text(SHIM)
    result = machine.run("train")
    assert result.returncode == 0 and "is broken, making it anew" in result.stderr
    assert [line.split()[0] for line in machine.did()] == ["venv", "pip", "run"]
    (environment / "installed").unlink()
    (environment / "bin/python").write_text(INTERPRETER.format(name="old", answer="3.10 yes"))
    result = machine.run("train")
    assert result.returncode == 1
    assert "is Python 3.10, too old; remove that folder" in result.stderr
    assert (environment / "bin/python").exists() and machine.did() == []


def test_dry_run_prints_what_could_be_typed_and_does_nothing(machine):
    machine.python("python3", "3.12")
    result = machine.run("--dry_run", "train", "--gin.NAME=two words")
    assert result.returncode == 0
    assert machine.did() == [] and not (machine.repository / ".venv").exists()
    make, install, run = result.stdout.splitlines()
    assert make.startswith("python3 -m venv") and "pip install" in install
    typed = subprocess.run(["bash", "-c", f"printf '%s\\n' {run}"], capture_output=True, text=True, check=True)
    assert typed.stdout.splitlines()[1:] == ["train", "--gin.NAME=two words"]


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["--gin.TRAIN_STEPS=3"], 2), (["--help"], 0)])
def test_usage(machine, arguments, status):
    result = machine.run(*arguments)
    assert result.returncode == status
    assert "launch/local.sh [--dry_run] COMMAND" in result.stdout + result.stderr
    assert machine.did() == []


SCRIPTS = [".ci/run", ".ci/solve_constraints.sh", "launch/slurm.sbatch"]
SCRIPTS += sorted(f"launch/{path.name}" for path in (ROOT / "launch").glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_executable_and_lint_clean(script):
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / script], check=True)
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert shellcheck, "shellcheck is missing: it comes with the extra `test`"
    result = subprocess.run([shellcheck, ROOT / script], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
