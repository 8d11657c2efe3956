"""The run directory: location, stored configuration, resumption, and status."""

import json
import uuid

import flax.nnx as nnx
import jax.numpy as jnp
import pytest

from t5x_like import partitioning, paths
from t5x_like.checkpoints.manager import Checkpoints, DamagedCheckpoint
from t5x_like.errors import UserError
from t5x_like.training.runs import run_directory, stored_config

TEXT = """\
from __gin__ import dynamic_registration
import t5x_like.data.cached
import toy

t5x_like.train.train.recipe = @t5x_like.training.recipe.Recipe()

t5x_like.training.recipe.Recipe:
    model = @toy.Model()
    data = @t5x_like.data.cached.CachedSource()
    periods = @t5x_like.training.recipe.Periods()
    storage = @t5x_like.training.recipe.Storage()

t5x_like.training.recipe.Periods.total = {steps}
t5x_like.training.recipe.Storage.model_dir = {model_dir!r}

toy.Model:
    dim = {dim}

t5x_like.data.cached.CachedSource:
    cache_dir = {cache_dir!r}
    seed = {seed}
"""
SETTINGS = {"steps": 10, "model_dir": "here", "dim": 8, "cache_dir": "a disk", "seed": 0}


def run_config(override=False, **changes):
    return run_directory.RunConfig(TEXT.format(**(SETTINGS | changes)), override)


@pytest.fixture(params=["local", "store"])
def model_dir(request, tmp_path):
    return str(tmp_path / "run") if request.param == "local" else f"memory://{uuid.uuid4().hex}/run"


def test_new_run_directories_are_numbered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_directory.resolve(None) == str(tmp_path / "runs" / "1")
    assert run_directory.resolve(None) == str(tmp_path / "runs" / "2")
    (tmp_path / "runs" / "10").mkdir()
    (tmp_path / "runs" / "notes").mkdir()
    assert run_directory.resolve(None) == str(tmp_path / "runs" / "11")


def test_directory_of_other_files_is_named(tmp_path, caplog):
    for name in (".hidden", "slurm-1.out", "launch", "compilation_cache"):
        (tmp_path / name).touch()
    run_directory.warn_of_other_files(str(tmp_path / "missing"))
    run_directory.warn_of_other_files(str(tmp_path))
    assert not caplog.text
    for name in ("thesis.tex", "b", "c", "a"):
        (tmp_path / name).touch()
    run_directory.warn_of_other_files(str(tmp_path))
    assert f"MODEL_DIR={tmp_path} is not empty, and not a run directory: it has a, b, c, …. The run" in caplog.text
    caplog.clear()
    (tmp_path / "starts.jsonl").touch()  # of a run that was killed before its first checkpoint
    run_directory.warn_of_other_files(str(tmp_path))
    assert not caplog.text


def test_given_directory_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert run_directory.resolve("mine") == str(tmp_path / "mine")
    assert run_directory.resolve("~/mine") == "/home/someone/mine"
    assert run_directory.resolve("gs://bucket/mine/") == "gs://bucket/mine"
    with pytest.raises(ValueError, match="MODEL_DIR=3 has type int"):
        run_directory.resolve(3)


def start(model_dir, config):
    run_directory.write_description(model_dir, "info\n", config)
    paths.write_atomic(paths.join(model_dir, "checkpoints", "5", "data"), b"")


def test_changed_model_raises_and_lists_the_differences(model_dir):
    start(model_dir, run_config())
    stored_config.check(model_dir, run_config())
    with pytest.raises(ValueError, match=r"toy.Model.dim: 8 → 16\nGive another MODEL_DIR or .* --override_config"):
        stored_config.check(model_dir, run_config(dim=16))
    stored_config.check(model_dir, run_config(dim=16, override=True))


def test_training_length_and_directories_may_change(model_dir):
    start(model_dir, run_config())
    stored_config.check(model_dir, run_config(steps=99, model_dir="there", cache_dir="a bucket"))
    with pytest.raises(ValueError, match="CachedSource.seed: 0 → 1"):
        stored_config.check(model_dir, run_config(seed=1))


def test_run_of_an_earlier_version_needs_the_override(model_dir):
    start(model_dir, run_directory.RunConfig("t5x_like.train.train.seed = 0\n"))
    with pytest.raises(ValueError, match="was trained by an earlier version, .* --override_config"):
        stored_config.check(model_dir, run_config())
    stored_config.check(model_dir, run_config(override=True))


def test_configuration_is_not_checked_without_checkpoints_or_stored_configuration(model_dir):
    stored_config.check(model_dir, run_config())
    run_directory.write_description(model_dir, "info\n", run_config())
    stored_config.check(model_dir, run_config(dim=16))
    start(model_dir, run_config())
    stored_config.check(model_dir, None)


def test_status_has_state_and_reason(model_dir):
    assert run_directory.read_status(model_dir) is None
    status = run_directory.Status(model_dir)
    status.write("running", step=3)
    assert run_directory.read_status(model_dir)["state"] == "running"
    status.write("failed", step=4, reason="ValueError: no")
    read = json.loads(paths.read_text(paths.join(model_dir, "status.json")))
    assert (read["state"], read["step"], read["reason"]) == ("failed", 4, "ValueError: no")
    with pytest.raises(ValueError, match="state='done': unknown state"):
        status.write("done", step=4)
    assert paths.listdir(model_dir) == ["status.json"]


def test_disabled_status_writes_no_file(tmp_path):
    run_directory.Status(str(tmp_path), enabled=False).write("running", step=0)
    assert list(tmp_path.iterdir()) == []


def test_model_info_lists_names_shapes_axes_and_sharding():
    class Model(nnx.Module):
        def __init__(self):
            self.kernel = nnx.Param(jnp.zeros((16, 4)), axes=("embed", "mlp"))
            self.scale = nnx.Param(jnp.zeros(4), axes=("mlp",))

    partitioner = partitioning.Partitioner(rules="fsdp", ici={"fsdp": 8})
    lines = run_directory.model_info({"model": Model()}, partitioner).splitlines()
    assert [" ".join(line.split()) for line in lines[:3]] == [
        "parameter shape logical axes mesh sharding",
        "model/kernel [16 4] [embed mlp] [fsdp -]",
        "model/scale [4] [mlp] [-]",
    ]
    assert lines[-1] == "68 parameters in 2 arrays"


def save(directory, step, tree):
    checkpointer = Checkpoints(f"{directory}/checkpoints")
    checkpointer.save(step, tree)
    checkpointer.wait()
    return checkpointer


def test_resumes_from_the_newest_checkpoint(tmp_path):
    checkpointer = Checkpoints(f"{tmp_path}/checkpoints")
    assert run_directory.resume_step(checkpointer, str(tmp_path), None) == 0
    checkpointer.save(3, {"step": jnp.ones((), jnp.int32)})
    checkpointer.wait()
    assert run_directory.resume_step(checkpointer, str(tmp_path), None) == 3


def test_damaged_checkpoint_is_skipped_only_on_request(tmp_path):
    for step in (3, 6):
        save(tmp_path, step, {"step": jnp.ones((), jnp.int32)}).close()
    (tmp_path / "checkpoints/6/feed/process_0_of_1.bin").write_bytes(b"damage")
    checkpointer = Checkpoints(f"{tmp_path}/checkpoints")
    with pytest.raises(DamagedCheckpoint, match="--restore=previous"):
        run_directory.resume_step(checkpointer, str(tmp_path), run_directory.RunConfig(""))
    assert run_directory.resume_step(checkpointer, str(tmp_path), run_directory.RunConfig("", restore="previous")) == 3


@pytest.mark.parametrize("step", [0, 5])
def test_checkpoint_with_only_parameters_cannot_be_resumed(tmp_path, step):
    checkpointer = save(tmp_path, step, {"params": {"model": jnp.ones(2)}})
    with pytest.raises(UserError, match="--gin.INITIAL_CHECKPOINT_PATH="):
        run_directory.resume_step(checkpointer, str(tmp_path), None)


def test_converted_checkpoint_raises_before_its_configuration_is_compared(tmp_path):
    save(tmp_path, 0, {"params": {"model": jnp.ones(2)}}).close()
    (tmp_path / "config.gin").write_text("MODEL = @t5.T5Config()\n")
    with pytest.raises(UserError, match="cannot be resumed: its checkpoint has parameters"):
        stored_config.check(str(tmp_path), run_directory.RunConfig("TRAIN_STEPS = 1\n"))
