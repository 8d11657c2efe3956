"""Paths are checked before anything is imported or built."""

import os
import subprocess
import sys

import pytest

from t5x_like.cli.commands import COMMANDS
from t5x_like.cli.path_checks import check_paths
from t5x_like.errors import UserError

TRAIN = ("MODEL_DIR", "INITIAL_CHECKPOINT_PATH")


def test_every_kind_of_checkpoint_is_accepted(tmp_path):
    (tmp_path / "run" / "checkpoints" / "7").mkdir(parents=True)
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text("{}")
    (tmp_path / "hub" / "model.safetensors").touch()
    for path in ("run", "run/", "run/checkpoints", "run/checkpoints/7", "hub"):
        check_paths(TRAIN, {"INITIAL_CHECKPOINT_PATH": f"{tmp_path}/{path}"})
    check_paths(TRAIN, {"INITIAL_CHECKPOINT_PATH": "gs://bucket/run", "MODEL_DIR": None})


@pytest.mark.parametrize(("path", "message"), [("none", "not found"), ("empty", "no checkpoint found")])
def test_missing_checkpoint_raises(tmp_path, path, message):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=f"INITIAL_CHECKPOINT_PATH={tmp_path}/{path}: {message}. Give a run directory"):
        check_paths(TRAIN, {"INITIAL_CHECKPOINT_PATH": f"{tmp_path}/{path}", "MODEL_DIR": str(tmp_path / "new")})


def test_resumed_run_does_not_need_initial_checkpoint(tmp_path):
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    check_paths(TRAIN, {"INITIAL_CHECKPOINT_PATH": f"{tmp_path}/gone", "MODEL_DIR": str(tmp_path)})


def test_paths_of_other_commands_are_not_checked():
    check_paths(("CACHE_DIR",), {"INITIAL_CHECKPOINT_PATH": "/none"})


def test_missing_input_or_unusable_output_raises(tmp_path):
    with pytest.raises(UserError, match="INPUT_PATH=.*: file not found"):
        check_paths(("INPUT_PATH",), {"INPUT_PATH": str(tmp_path)})
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="OUTPUT_DIR=.*/file/out: .*/file is not a directory"):
        check_paths(("OUTPUT_DIR",), {"OUTPUT_DIR": str(tmp_path / "file" / "out")})
    check_paths(
        ("INPUT_PATH", "OUTPUT_PATH"), {"INPUT_PATH": f"{tmp_path}/file", "OUTPUT_PATH": f"{tmp_path}/out.jsonl"}
    )


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        (name, each)
        for name in ("infer", "augment", "bench", "compare", "plan", "report")
        for each in COMMANDS[name].files
    ],
)
def test_existing_output_file_is_replaced_only_if_allowed(tmp_path, command, setting):
    known = COMMANDS[command]
    (tmp_path / "out").write_text("results")
    given = {setting: str(tmp_path / "out")}
    check_paths((setting,), given | {"OVERWRITE": True}, known.files)
    if "overwrite" in known.flags:
        with pytest.raises(UserError, match="OUTPUT_PATH=.*/out: exists. Give --overwrite to replace it, or another"):
            check_paths((setting,), given | {"OVERWRITE": False}, known.files)
    with pytest.raises(UserError, match=f"{setting}={tmp_path}: is a directory. Give the path of a file"):
        check_paths((setting,), {setting: str(tmp_path)}, known.files)
    with pytest.raises(UserError, match=f"{setting}=.*/out/deeper: .*/out is not a directory"):
        check_paths((setting,), {setting: f"{tmp_path}/out/deeper"}, known.files)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a[1]", r"contains \["),
        ("a*", r"contains \*"),
        ("x" * 300, "file name too long"),
        ("x" * 300 + "/run", "file name too long"),
        ("a\0b", "null byte"),
        ("a\udcff", "not valid UTF-8"),
    ],
)
def test_run_directory_unusable_for_checkpoints_raises(tmp_path, name, message):
    with pytest.raises(UserError, match=f"MODEL_DIR=.*{message}"):
        check_paths(TRAIN, {"MODEL_DIR": f"{tmp_path}/{name}"})


def test_shell_metacharacters_in_paths_are_accepted(tmp_path):
    for name in ("{a,b} c#d%s", "é 日本", "line\n", " space "):
        check_paths(TRAIN, {"MODEL_DIR": f"{tmp_path}/{name}"})


def test_too_long_checkpoint_path_raises_not_found():
    with pytest.raises(UserError, match="CHECKPOINT_PATH=.*: not found"):
        check_paths(("CHECKPOINT_PATH",), {"CHECKPOINT_PATH": "x" * 300})


def test_path_in_the_encoding_of_another_locale_raises(tmp_path):
    code = "import os, sys; from t5x_like.checkpoint_paths import check_checkpoint_directory as check;"
    code += "check('MODEL_DIR', sys.argv[1])"
    environment = os.environ | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    words = [sys.executable, "-c", code, f"{tmp_path}/r\xfcn"]
    result = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert "the locale has the encoding ascii, in which Orbax does not find this path. Set PYTHON" in result.stderr
    assert subprocess.run(words, env=environment | {"PYTHONUTF8": "1"}).returncode == 0
