"""The README's commands, run in an empty folder as somebody would type them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_like import cli, config

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
# What needs a bucket, a TPU slice or published weights is checked as far as its configuration.
ELSEWHERE = ("gs://", "google-t5-v1_1-small")


def commands():
    """The lines of indented blocks that begin in the README's first column but four, with continued lines joined."""
    joined = README.replace("\\\n", " ")
    lines = [line[4:] for line in joined.splitlines() if re.match(r"    (t5x_like|echo|printf) ", line)]
    return [line for line in lines if "COMMAND" not in line]


def python_blocks():
    """(file name, code) of each block of code that the text before it names."""
    return re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", README, flags=re.DOTALL)


def test_there_is_something_to_run():
    assert len(commands()) >= 9 and len(python_blocks()) == 1


@pytest.mark.parametrize("command", [line for line in commands() if any(place in line for place in ELSEWHERE)])
def test_commands_for_other_places_have_a_sound_configuration(command):
    words = [word for word in shlex.split(command)[1:] if "MIXTURE_OR_TASK_MODULE" not in word]
    arguments = cli.parse(words)
    function = cli.COMMANDS[arguments.command].function
    config.load(function, files=arguments.gin_files, bindings=arguments.bindings, given=("run_config",))


def test_every_other_command_runs_in_the_order_of_the_text(tmp_path):
    for name, code in python_blocks():
        (tmp_path / name).write_text(code, encoding="utf-8")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "t5x_like").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m t5x_like "$@"\n')
    (bin_folder / "t5x_like").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JAX_PLATFORMS": "cpu",
    }
    for command in commands():
        if any(place in command for place in ELSEWHERE) or command == "t5x_like train":
            continue
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        if "eval" in command and "capitals" in command:
            assert "capitals/exact_match = " in done.stdout + done.stderr
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 1
    assert "fsdp" in (tmp_path / "runs" / "debug" / "model_info.txt").read_text()
