"""Tests for launch/local.sh with fake interpreters: choice of Python, installation, and messages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_like.cli import commands

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
# Programs that the script calls besides Python. PATH contains only these, so real interpreters are not found.
TOOLS = ["bash", "cat", "chmod", "cksum", "cp", "dirname", "env", "mkdir", "sed"]

# Prints its version when probed, creates a "virtual environment" with copies of itself, and logs installations and
# commands.
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
# Like a version manager's shim for an inactive Python.
SHIM = "#!/usr/bin/env bash\necho 'python: command not found' >&2\nexit 127\n"
UV = """#!/usr/bin/env bash
[ "$1" = venv ] && { "${@: -2:1}" -m venv "${@: -1}"; exit; }
[ "$1" = pip ] && echo "uv $*" >>"$LOG"
exit 0
"""


class Machine:
    """A checkout with the launch script, and a PATH with the programs that a test adds."""

    def __init__(self, directory: Path):
        self.bin, self.repository, self.log = directory / "bin", directory / "a checkout", directory / "log"
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        tables = [path.relative_to(ROOT) for path in (ROOT / "t5x_like/cli").glob("*commands.py")]
        for name in ("launch/local.sh", "constraints.txt", "setup.py", *tables):
            (self.repository / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.repository / name)
        self.working_directory = directory / "elsewhere"
        self.working_directory.mkdir()

    def add(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def python(self, name: str, version: str, *, has_venv: bool = True) -> Path:
        return self.add(name, INTERPRETER.format(name=name, answer=f"{version} {'yes' if has_venv else 'no'}"))

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        self.log.write_text("")
        return subprocess.run(
            [self.repository / "launch/local.sh", *arguments],
            cwd=self.working_directory,
            env={"PATH": str(self.bin), "LOG": str(self.log), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def logged(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


def test_first_run_installs_and_runs_in_the_working_directory(machine):
    machine.python("python3", "3.12")
    result = machine.run("train", "--gin.TRAIN_STEPS=20", "--gin.NAME='two words'")
    assert result.returncode == 0, result.stderr
    venv, install, run = machine.logged()
    assert venv == "venv by python3"
    assert install.endswith(f"--editable {machine.repository} --constraint {machine.repository}/constraints.txt")
    assert run == f"run t5x_like in {machine.working_directory}: train --gin.TRAIN_STEPS=20 --gin.NAME='two words'"


def test_second_run_installs_nothing(machine):
    machine.python("python3", "3.12")
    machine.run("train")
    machine.run("infer", "--input=a.txt")
    assert machine.logged() == [f"run t5x_like in {machine.working_directory}: infer --input=a.txt"]


def test_test_command_installs_extra_once_and_runs_in_the_repository(machine):
    machine.python("python3", "3.11")
    machine.run("train")
    machine.run("test", "-k", "a b")
    install, run = machine.logged()
    assert f"--editable {machine.repository}[test] " in install
    assert run == f"run pytest in {machine.repository}: -n auto --dist loadfile --no-loadscope-reorder -k a b"
    machine.run("test")
    assert machine.logged() == [f"run pytest in {machine.repository}: -n auto --dist loadfile --no-loadscope-reorder"]
    machine.run("train")
    assert machine.logged() == [f"run t5x_like in {machine.working_directory}: train"]


def test_changed_constraints_update_the_same_environment(machine):
    machine.python("python3", "3.11")
    machine.run("test")
    with (machine.repository / "constraints.txt").open("a") as file:
        file.write("new-package==1.0\n")
    machine.run("train")
    assert [line.split()[0] for line in machine.logged()] == ["pip", "run"]
    machine.run("test")
    assert [line.split()[0] for line in machine.logged()] == ["pip", "run"]


def test_failed_installation_exits_and_is_retried_on_next_run(machine):
    machine.python("python3", "3.11")
    assert machine.run("train", PIP_STATUS="1").returncode == 1
    assert not any(line.startswith("run") for line in machine.logged())
    machine.run("train")
    assert [line.split()[0] for line in machine.logged()] == ["pip", "run"]


@pytest.mark.parametrize("unsuitable", ["3.10", "3.14", "2.7"])
def test_uses_versioned_python_if_python3_is_unsuitable(machine, unsuitable):
    machine.python("python3", unsuitable)
    machine.add("python3.13", SHIM)
    machine.python("python3.12", "3.12")
    machine.run("train")
    assert machine.logged()[0] == "venv by python3.12"


def test_PYTHON_selects_interpreter_without_fallback(machine):
    machine.python("python3", "3.12")
    machine.python("custom", "3.13")
    machine.run("train", PYTHON="custom")
    assert machine.logged()[0] == "venv by custom"
    old = machine.python("old", "3.9")
    result = machine.run("train", PYTHON=str(old), VENV="another")
    assert result.returncode == 1
    assert f"PYTHON={old} is Python 3.9, too old. Give Python 3.11 to 3.13" in result.stderr
    assert machine.logged() == []


def test_environment_with_different_python_is_not_replaced(machine):
    machine.python("python3", "3.12")
    machine.python("custom", "3.13")
    machine.run("train")
    result = machine.run("train", PYTHON="custom")
    assert result.returncode == 1
    assert "is Python 3.12 and PYTHON=custom is 3.13" in result.stderr
    assert "PYTHON=missing does not work. Give Python 3.11 to 3.13" in machine.run("train", PYTHON="missing").stderr
    assert machine.logged() == []


def test_unsuitable_interpreters_are_listed_with_reasons(machine):
    machine.python("python3", "3.14")
    machine.add("python3.13", SHIM)
    machine.python("python3.12", "3.12", has_venv=False)
    result = machine.run("train")
    assert result.returncode == 1
    assert "python3 is Python 3.14, too new" in result.stderr
    assert "python3.13 does not work" in result.stderr
    assert "python3.12 is Python 3.12 without its venv module" in result.stderr
    assert "apt install python3.12-venv" in result.stderr
    assert "PYTHON=/path/to/python" in result.stderr
    assert machine.logged() == []


def test_missing_python_exits_with_error(machine):
    result = machine.run("train")
    assert result.returncode == 1
    assert "no suitable Python found; t5x_like needs Python 3.11 to 3.13" in result.stderr


def test_uv_installs_without_venv_module(machine):
    machine.python("python3", "3.12", has_venv=False)
    machine.add("uv", UV)
    result = machine.run("test")
    assert result.returncode == 0, result.stderr
    venv, install, run = machine.logged()
    assert venv == "venv by python3"
    assert install.startswith("uv pip install") and f"--python {machine.repository}/.venv/bin/python" in install
    assert run.startswith("run pytest")


def test_pip_is_used_if_uv_is_broken_or_disabled(machine):
    machine.python("python3", "3.12")
    machine.add("uv", SHIM)
    machine.run("train")
    assert machine.logged()[1].startswith("pip install")
    machine.add("uv", UV)
    machine.run("train", UV="", VENV="another")
    assert machine.logged()[1].startswith("pip install")


def test_broken_environment_is_recreated_and_unsuitable_one_is_kept(machine):
    machine.python("python3", "3.12")
    machine.run("train")
    environment = machine.repository / ".venv"
    (environment / "installed").unlink()
    (environment / "bin/python").write_text(SHIM)
    result = machine.run("train")
    assert result.returncode == 0 and "is broken and will be recreated" in result.stderr
    assert [line.split()[0] for line in machine.logged()] == ["venv", "pip", "run"]
    (environment / "installed").unlink()
    (environment / "bin/python").write_text(INTERPRETER.format(name="old", answer="3.10 yes"))
    result = machine.run("train")
    assert result.returncode == 1
    assert "is Python 3.10, too old. Remove that directory" in result.stderr
    assert (environment / "bin/python").exists() and machine.logged() == []


def test_dry_run_prints_commands_without_running_them(machine):
    machine.python("python3", "3.12")
    result = machine.run("--dry_run", "train", "--gin.NAME=two words")
    assert result.returncode == 0
    assert machine.logged() == [] and not (machine.repository / ".venv").exists()
    create, install, run = result.stdout.splitlines()
    assert create.startswith("python3 -m venv") and "pip install" in install
    pasted = subprocess.run(["bash", "-c", f"printf '%s\\n' {run}"], capture_output=True, text=True, check=True)
    assert pasted.stdout.splitlines()[1:] == ["train", "--gin.NAME=two words"]


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["--gin.TRAIN_STEPS=3"], 2), (["--help"], 0)])
def test_help_and_invalid_arguments_print_usage(machine, arguments, status):
    result = machine.run(*arguments)
    assert result.returncode == status
    assert "launch/local.sh [--dry_run] COMMAND" in result.stdout + result.stderr
    assert machine.logged() == []


def test_unknown_command_is_reported_before_the_installation(machine):
    machine.python("python3", "3.12")
    result = machine.run("trian")
    assert result.returncode == 2 and machine.logged() == []
    assert result.stderr.startswith("local.sh: unknown command trian. Commands: test train distill eval"), result.stderr
    listed = result.stderr.splitlines()[0].partition("Commands: ")[2].split()
    assert sorted(listed) == sorted([*commands.COMMANDS, "recipes", "test"])


SCRIPTS = [".ci/run", ".ci/solve_constraints.sh", "launch/slurm.sbatch"]
SCRIPTS += sorted(f"launch/{path.name}" for path in (ROOT / "launch").glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_executable_and_lint_clean(script):
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / script], check=True)
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert shellcheck, "shellcheck not found. Install the extra `test`"
    result = subprocess.run([shellcheck, ROOT / script], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
