"""Tests for launch/jobs.py: checks of commands before machines are requested."""

import contextlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import jobs
finally:
    sys.path.pop(0)

GIN_FILE_FLAGS = ["--gin_file=models/t5_1_1/base.gin", "--gin_file=runs/pretrain.gin"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        GIN_FILE_FLAGS,
        ["--gin_file", "runs/pretrain.gin"],
        [*GIN_FILE_FLAGS, "--gin.DCN=None"],
        [*GIN_FILE_FLAGS, "--gin.ICI={'data': 2}"],
        [f"--gin_file={jobs.SHIPPED_GIN_FILES}/runs/pretrain.gin"],
    ],
)
def test_training_on_several_slices_without_dcn_raises(arguments):
    with pytest.raises(jobs.LaunchError, match=r"--num_slices=3 .* Add --gin\.DCN=\"{'data': 3}\" to the command"):
        jobs.check_slices(["t5x_like", "train", *arguments], 3)
    jobs.check_slices(["t5x_like", "train", *arguments], 1)
    with pytest.raises(jobs.LaunchError, match=r"t5x_like distill on --num_slices=3"):
        jobs.check_slices(["t5x_like", "distill", *arguments], 3)
    jobs.check_slices(["t5x_like", "eval", *arguments], 3)
    jobs.check_slices(["t5x_like"], 3)


def test_flags_and_gin_files_may_set_dcn(tmp_path, monkeypatch):
    for arguments in (
        ["--gin.DCN={'data': 3}"],
        ["--gin.DCN", "{'fsdp': -1}"],
        ["--gin.Partitioner.dcn={'data': 3}"],
        ["--gin_file=/home/me/wide.gin"],
        ["--gin_file=gs://my-bucket/wide.gin"],
        ["--gin_file=../wide.gin"],
    ):
        jobs.check_slices(["t5x_like", "train", *GIN_FILE_FLAGS, *arguments], 3)
    # Shipped files are read.
    monkeypatch.setattr(jobs, "SHIPPED_GIN_FILES", tmp_path)
    for text, sets_dcn in (
        ("DCN = {'data': 3}\n", True),
        ("X = 1\npartitioning.Partitioner:\n  dcn = {'data': 3}\n", True),
        ("DCN = None\npartitioning.Partitioner:\n  dcn = %DCN\n", False),
        ("# DCN = 3\n", False),
    ):
        (tmp_path / "wide.gin").write_text(text)
        assert jobs._may_set_dcn("wide.gin") is sets_dcn, text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "without --gin.MODEL_DIR"),
        (["--gin.MODEL_DIR=runs/first"], "is on the machine's own disk"),
        (["--gin.MODEL_DIR", "/mnt/x"], "is on the machine's own disk"),
        (["--gin.MODEL_DIR=gs://my-bucket"], "is not a directory in a bucket"),
        (["--gin.MODEL_DIR=gs://b/x", "--gin.MODEL_DIR=runs"], "is on the machine's own disk"),
    ],
)
def test_model_dir_outside_bucket_raises(arguments, message):
    for command in ("train", "distill"):
        with pytest.raises(jobs.LaunchError, match=message):
            jobs.check_command(["t5x_like", command, *arguments])
    jobs.check_command(["t5x_like", "train", *arguments], local_model_dir=True)


def test_valid_commands_pass():
    jobs.check_command(["t5x_like", "train", "--gin.MODEL_DIR='gs://my-bucket/runs/first'"])
    jobs.check_command(["t5x_like", "train", "--gin.MODEL_DIR", "gs://my-bucket/runs/first"])
    jobs.check_command(["t5x_like", "eval"])
    with pytest.raises(jobs.LaunchError, match="'python' after -- is not supported"):
        jobs.check_command(["python", "train.py"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "t5x_like trian: unknown command; did you mean train"),
        (["--help_me"], None),
        (["eval", "--gin_file=nope.gin"], "--gin_file=nope.gin: not found in the working directory, the checkout"),
        (["eval", "--gin_file", "runs/pretrian.gin"], "did you mean runs/pretrain.gin"),
        (["eval", "--gin_file=runs/pretrain.gin", "--gin_file=mine.gin"], None),
        (["eval", "--gin_file=/home/me/mine.gin", "--gin_file=gs://my-bucket/mine.gin"], None),
        (["eval", "--gin_file=other.gin", "--gin_search_paths=gs://my-bucket/gin"], None),
    ],
)
def test_unknown_commands_and_missing_gin_files_raise(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.gin").touch()
    with pytest.raises(jobs.LaunchError, match=message) if message else contextlib.nullcontext():
        jobs.check_command(["t5x_like", *arguments])


def test_environment_parses_names_and_values():
    assert jobs.environment(["A=1", "_b2=x=y z", "C="]) == {"A": "1", "_b2": "x=y z", "C": ""}


@pytest.mark.parametrize(
    ("definitions", "message"),
    [
        (["A"], "--env=A: not NAME=VALUE"),
        (["=x"], "--env==x: not NAME=VALUE"),
        (["A-B=1"], "--env=A-B=1: not NAME=VALUE"),
        (["A=1", "A=2"], "--env=A=2: A is set twice"),
        (["PATH=/x"], "--env=PATH=/x: the launcher sets PATH"),
    ],
)
def test_invalid_environment_variables_raise(definitions, message):
    with pytest.raises(jobs.LaunchError, match=message):
        jobs.environment(definitions)
