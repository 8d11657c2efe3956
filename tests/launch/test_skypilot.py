"""Tests for launch/skypilot.py: the task agrees with SkyPilot's own schema, and runs the command on each machine."""

import importlib
import json
import shlex
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import skypilot
finally:
    sys.path.pop(0)

RUN = "gs://my-bucket/runs/first"
COMMAND = ["--", "t5x_like", "train", f"--gin.MODEL_DIR={RUN}", "--gin.NAME=two words"]
TPU = ["first", "--topology=v5e:4x4", "--zone=us-west4-a", "--spot", "--env=A=x y"]
GPUS = ["first", "--gpus=H100:8", "--nodes=2"]


def shown(capsys, *words: str) -> tuple[list[str], dict]:
    """Returns the comments and the task that a call prints."""
    assert skypilot.main([*words, *COMMAND]) == 0
    lines = capsys.readouterr().out.splitlines()
    comments = [line for line in lines if line.startswith("#")]
    return comments, json.loads("\n".join(lines[len(comments) :]))


@pytest.fixture
def schemas(monkeypatch):
    """The schemas of an installed SkyPilot, without its other modules, which import a hundred packages."""
    pytest.importorskip("jsonschema")
    try:
        root = Path(metadata.distribution("skypilot").locate_file("sky"))
    except metadata.PackageNotFoundError:
        pytest.skip("needs skypilot, which .ci/run installs without its dependencies")
    for name in ("sky", "sky.skylet", "sky.utils", "sky.setup_files"):
        module = types.ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        module.__version__ = module.__commit__ = "0"
        monkeypatch.setitem(sys.modules, name, module)
    autostop = types.ModuleType("sky.skylet.autostop_lib")
    autostop.AutostopWaitFor = types.SimpleNamespace(supported_modes=list)
    monkeypatch.setitem(sys.modules, autostop.__name__, autostop)
    loaded = importlib.import_module("sky.utils.schemas")
    monkeypatch.setattr(loaded, "_task_config_schema", dict)  # of a field that the task does not have
    yield loaded, importlib.import_module("sky.utils.validator").get_schema_validator()
    for name in [name for name in sys.modules if name.startswith("sky.")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parity  # SkyPilot is in this environment of CI only
@pytest.mark.parametrize("words", [TPU, GPUS], ids=["tpu", "gpus"])
def test_task_agrees_with_the_schema_of_skypilot(capsys, schemas, words):
    loaded, validator = schemas
    _, task = shown(capsys, *words)
    validator(loaded.get_task_schema()).validate(task)
    validator(loaded.get_resources_schema()).validate(task["resources"])
    import jsonschema

    with pytest.raises(jsonschema.ValidationError):
        validator(loaded.get_resources_schema()).validate({**task["resources"], "spot": True})
    with pytest.raises(jsonschema.ValidationError):
        validator(loaded.get_task_schema()).validate({**task, "num_nodes": "2"})


def test_task_for_a_slice(capsys):
    comments, task = shown(capsys, *TPU, "--hours=10")
    assert comments[0].startswith("# cost per hour: 19.20 USD (16 v5e at 1.20 USD") and "192.00 USD" in comments[1]
    assert task["resources"]["accelerators"] == "tpu-v5litepod-16:1" and task["resources"]["use_spot"]
    assert task["resources"]["infra"] == "gcp/us-west4/us-west4-a"
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]
    assert task["envs"] == {"JAX_PLATFORMS": "tpu,cpu", "A": "x y"}
    assert "EXTRA=tpu" in task["setup"]


@pytest.mark.parametrize("words", [TPU, GPUS], ids=["tpu", "gpus"])
def test_script_of_the_task_runs_the_command(capsys, tmp_path, words):
    _, task = shown(capsys, *words)
    (tmp_path / "python").write_text('#!/bin/bash\nprintf "%s\\n" "$@"; env | grep ^T5X_LIKE_ | sort\n')
    (tmp_path / "python").chmod(0o755)
    variables = {"SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), **variables}
    words_run = subprocess.run(["bash", "-c", task["run"]], env=environment, capture_output=True, text=True, check=True)
    lines = words_run.stdout.splitlines()
    assert lines[lines.index("--") + 1 :][: len(COMMAND) - 1] == COMMAND[1:] and f"--run={RUN}" in lines
    expected = ["T5X_LIKE_COORDINATOR=10.0.0.5:8476", "T5X_LIKE_NUM_PROCESSES=2", "T5X_LIKE_PROCESS_ID=1"]
    assert [line for line in lines if line.startswith("T5X_LIKE_")] == (expected if words is GPUS else [])
    subprocess.run(["bash", "-n"], input=task["run"] + task["setup"], text=True, check=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["First", "--topology=v5e:4x4", *COMMAND], "job name 'First': invalid name"),
        (["first", "--gpus=H100", *COMMAND], "--gpus=H100: not a name of SkyPilot and a number"),
        (["first", "--gpus=H100:8", "--topology=v5e:4x4", *COMMAND], "exclude each other"),
        (["first", "--topology=v5e:4x4", "--nodes=2", *COMMAND], "--nodes=2 is for --gpus"),
        (["first", "--topology=tpu7x:2x2x1", *COMMAND], "Use launch/gke.py or launch/tpu.py"),
        (["first", "--topology=v5p:4x4x16", *COMMAND], "names a slice by its number of chips only"),
        (["first", "--topology=v5e:4x4", "--zone=us-central2-b", *COMMAND], "not known to have v5e"),
        (["first", "--topology=v5e:4x4", "--price=-1", *COMMAND], "--price=-1: negative or not finite"),
        (["first", "--topology=v5e:4x4", "--", "t5x_like", "train"], "without --gin.MODEL_DIR"),
        (["first", "--topology=v5e:4x4"], "no command given"),
    ],
)
def test_invalid_arguments_raise(capsys, words, message):
    assert skypilot.main(words) == 2
    assert message in capsys.readouterr().err


def test_command_is_quoted(capsys):
    _, task = shown(capsys, *TPU)
    assert shlex.split(task["run"])[-1] == "--gin.NAME=two words"
