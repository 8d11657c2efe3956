"""The README's commands, in the order of the text, in one folder, as a reader would type them."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
# What needs a bucket, a TPU slice or published weights; `tests/test_documented_commands.py` resolves these too.
ELSEWHERE = ("gs://", "t5-small")
QUICKSTART = "t5x_like train"  # minutes: `.ci/run readme` runs it with fewer steps


def commands():
    """The shell lines of the README's indented blocks, with continued lines joined, that run on any machine."""
    joined = README.replace("\\\n", " ")
    lines = [line[4:] for line in joined.splitlines() if re.match(r"    (t5x_like|echo|printf) ", line)]
    return [
        line
        for line in lines
        if "COMMAND" not in line and line != QUICKSTART and not any(place in line for place in ELSEWHERE)
    ]


def python_blocks():
    """(file name, code) of each block of code that the text before it names."""
    return re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder that all commands share: each reads what earlier ones wrote."""
    path = tmp_path_factory.mktemp("readme")
    for name, code in python_blocks():
        (path / name).write_text(code, encoding="utf-8")
    return path


def test_the_readme_has_commands_and_one_module():
    assert len(commands()) >= 9 and len(python_blocks()) == 1


@pytest.mark.parametrize("command", commands(), ids=lambda line: re.sub(r"[^\w ]+", " ", line)[:40].strip())
def test_command_succeeds(command, folder, run_command, monkeypatch):
    monkeypatch.chdir(folder)
    if not command.startswith("t5x_like "):
        subprocess.run(command, shell=True, check=True, timeout=20)
        return
    code, output = run_command(shlex.split(command)[1:])
    assert code == 0, output
    if command.startswith("t5x_like eval") and "capitals" in command:
        assert "capitals/exact_match = " in output


def test_commands_leave_what_the_text_says(folder):
    """Runs after the commands, in file order."""
    assert len((folder / "answers.jsonl").read_text().splitlines()) == 1
    assert "fsdp" in (folder / "runs" / "debug" / "model_info.txt").read_text()
    assert list((folder / "exported").glob("*.safetensors"))
    assert (folder / "runs" / "imported" / "checkpoints").is_dir()


def test_the_module_runs_as_a_script():
    done = subprocess.run([sys.executable, "-m", "t5x_like", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("t5x_like ")
