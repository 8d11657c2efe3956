"""Tests for launch/check_command.py: commands are checked on this machine before other machines are requested."""

import sys
from pathlib import Path

import pytest

from t5x_like.cli import commands

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "launch"))
try:
    import check_command
    import jobs
    import tpu
finally:
    sys.path.pop(0)

PROGRAM = """#!/usr/bin/env bash
printf '%s\\n' "$@" >"$0.arguments"
echo "t5x_like train: no such gin file" >&2
exit {code}
"""
COMMAND = [
    "t5x_like",
    "train",
    "--gin_file=runs/pretrain.gin",
    "--max_restarts=3",
    "--gin.MODEL_DIR=gs://my-bucket/runs/x",
]


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Returns a function that makes a virtual environment whose t5x_like exits with a given code."""
    monkeypatch.setenv("VENV", str(tmp_path))
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "t5x_like"

    def make(code):
        program.write_text(PROGRAM.format(code=code))
        program.chmod(0o755)
        return program

    return make


def test_invalid_command_raises_with_its_message(environment):
    program = environment(2)
    with pytest.raises(check_command.LaunchError, match="invalid t5x_like command: .* no such gin file"):
        check_command.check_command(COMMAND, devices=16)
    arguments = Path(f"{program}.arguments").read_text().splitlines()
    assert arguments == ["train", "--gin_file=runs/pretrain.gin", "--gin.MODEL_DIR=gs://my-bucket/runs/x"] + [
        *("--dry_run=elsewhere", "--cpu_devices=16")
    ]


def test_checks_that_were_not_possible_are_printed(environment, capsys):
    program = environment(3)
    program.write_text("#!/bin/sh\necho '  steps: 7'\necho 'not checked: the data x: gs://b cannot be read'\nexit 3\n")
    assert check_command.main(COMMAND) == 0
    shown = capsys.readouterr().err
    assert "except for 1 checks:\nnot checked: the data x: gs://b cannot be read" in shown and "steps" not in shown


def test_commands_match_t5x_like():
    assert sorted(jobs.COMMANDS) == sorted(commands.COMMANDS)
    assert jobs.DRY_RUN_COMMANDS == {name for name, each in commands.COMMANDS.items() if each.dry_run}
    assert jobs.TRAINING_COMMANDS == {name for name, each in commands.COMMANDS.items() if each.trains}


def test_misspelled_command_raises(environment):
    environment(2)
    with pytest.raises(check_command.LaunchError, match="invalid t5x_like command"):
        check_command.check_command(["t5x_like", "trian", "--gin.MODEL_DIR=gs://my-bucket/runs/x"])


def test_failed_check_does_not_stop_the_launch(environment, monkeypatch):
    environment(0)
    assert check_command.check_command(COMMAND) == "command checked by a dry run"
    environment(1)
    assert check_command.check_command(COMMAND).startswith("command not checked: t5x_like train: no such gin file")
    assert "it does not support --dry_run" in check_command.check_command(["t5x_like", "convert"])
    monkeypatch.setenv("VENV", "/no/such/environment")
    assert "/no/such/environment/bin/t5x_like not found" in check_command.check_command(COMMAND)


@pytest.mark.parametrize("arguments", [["--unknown", "t5x_like", "train"], ["python", "train.py"]])
def test_unknown_options_and_programs_exit_with_usage_error(capsys, arguments):
    with pytest.raises(SystemExit) as error:
        check_command.main(arguments)
    assert error.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_invalid_command_requests_no_tpu(environment, monkeypatch, capsys):
    environment(2)
    monkeypatch.setattr(tpu, "train", None)
    assert tpu.main(["train", "first", "--topology=v5e:4x4", "--zone=us-west4-a", "--", *COMMAND]) == 2
    assert "no such gin file" in capsys.readouterr().err
