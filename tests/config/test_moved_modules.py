"""Configurations of earlier versions name modules and parameters where they were."""

import importlib
import importlib.util
import inspect

import pytest

from t5x_like import config
from t5x_like.config import files, moved_modules

FILES = ["commands/train.gin", "models/t5_1_1/tiny.gin", "runs/pretrain.gin"]


def load(*paths, bindings=()):
    return config.load(
        "t5x_like.train.train",
        files=paths,
        bindings=[("MIXTURE_OR_TASK_NAME", "a_task"), ("TRAIN_STEPS", "10"), *bindings],
        given=("run_config",),
    )


@pytest.mark.parametrize(("old", "new"), moved_modules.MOVED.items())
def test_modules_are_at_their_new_names_alone(old, new):
    importlib.import_module(new)
    spec = importlib.util.find_spec(old)
    assert spec is None or spec.origin is None  # a directory of byte code may have stayed


def test_stored_configuration_of_an_earlier_version_is_the_same():
    text = load(*FILES).text
    old = text
    for before, name in moved_modules.MOVED.items():
        old = old.replace(f"{name}.", f"{before}.")
    assert "t5x_like.training.checkpoints.manager.Checkpoints" in old and "t5x_like.training.weight_source" in old
    assert config.differences(old, text) == [] != config.differences(old, text.replace("= 10", "= 11"))


def test_gin_files_of_an_earlier_version_import_modules(tmp_path):
    (tmp_path / "own.gin").write_text(
        "from __gin__ import dynamic_registration\nfrom t5x_like.training import weight_source\n"
        "from t5x_like.training.checkpoints import manager\n"
        "weight_source.InitialWeights.averaged = False\nmanager.Checkpoints.keep_latest = 7\n"
    )
    flat = config.flatten(load(*FILES, str(tmp_path / "own.gin"), bindings=[("INITIAL_CHECKPOINT_PATH", "'x'")]).text)
    assert flat["t5x_like.checkpoints.manager.Checkpoints.keep_latest"] == "7"
    assert flat["t5x_like.stored.weight_source.InitialWeights.averaged"] == "False"


def test_heads_of_an_earlier_version_are_found(tmp_path):
    head = tmp_path / "head.gin"
    head.write_text(
        "from __gin__ import dynamic_registration\nfrom t5x_like.objectives import heads\n"
        "from t5x_like.objectives import pooled_windows\nHEAD = @pooled_windows.PooledWindows()\n"
        "pooled_windows.PooledWindows.form = @heads.PooledFirstToken()\npooled_windows.PooledWindows.windows = 2\n"
        "heads.PooledFirstToken.dropout_rate = 0.2\n"
    )
    paths = ["commands/train.gin", "models/bert/base.gin", "runs/finetune_classification.gin", str(head)]
    flat = config.flatten(load(*paths, bindings=[("LABELS", "('no', 'yes')"), ("INITIAL_CHECKPOINT_PATH", "'x'")]).text)
    assert flat["t5x_like.objectives.heads.pooled_windows.PooledWindows.windows"] == "2"
    assert flat["t5x_like.objectives.heads.PooledFirstToken.dropout_rate"] == "0.2"


@pytest.mark.parametrize("function", moved_modules.MOVED_PARAMETERS)
def test_moved_parameters_are_those_of_their_owners(function):
    left = inspect.signature(files.locate(function)[0]).parameters
    for parameter, owner in moved_modules.MOVED_PARAMETERS[function].items():
        assert parameter not in left
        assert parameter in inspect.signature(files.locate(owner)[0]).parameters


def test_parameter_of_an_earlier_version_sets_the_struct(tmp_path):
    (tmp_path / "own.gin").write_text(
        "from __gin__ import dynamic_registration\nfrom t5x_like import convert\nconvert.convert.long = 64\n"
    )
    flat = config.flatten(
        config.load(
            "t5x_like.convert.convert",
            files=["commands/convert.gin", str(tmp_path / "own.gin")],
            bindings=[("CHECKPOINT_PATH", "a"), ("OUTPUT_PATH", "b"), ("convert.averaged", "False"), ("MODEL", "None")],
        ).text
    )
    assert flat["t5x_like.conversion.settings.Source.averaged"] == "False"
    assert flat["t5x_like.conversion.settings.Changes.long"] == "64"
