"""The configuration that a run from Python stores, which other commands read."""

import jax.numpy as jnp
import pytest
import recipes

from t5x_like import config, optimizers, recorded
from t5x_like.config.derived import derive_recipe
from t5x_like.data.cached import CachedSource
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.models.bert import BertConfig
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.optimizers import schedules
from t5x_like.training.evaluation import Evaluation

ROOT = "t5x_like.train.train"
T5 = T5Config(vocab_size=32, embed_dim=16, mlp_dim=32, num_heads=4, head_dim=4, encoder_layers=2, decoder_layers=2)


def recipe(**changes):
    lengths = {"inputs": 8, "targets": 8}
    task = {"mixture_or_task_name": "a_task", "task_feature_lengths": lengths, "pack": False, "module": "some_tasks"}
    given = {
        "model": T5,
        "objective": SequenceToSequence(bos_id=2, z_loss=0.5),
        "optimizer": optimizers.adafactor(learning_rate=schedules.rsqrt(2.0)),
        "data": SeqIOSource(**task, batch_size=4),
        "evaluations": {"held out": Evaluation(data=SeqIOSource(**task, batch_size=2, split="dev"), batches=3)},
        "total": 3,
        "max_grad_norm": 2.0,
        "partitioner": object(),
    }
    return recipes.make(**given | changes)


def rebuilt(text):
    """Returns the recipe that gin builds from the text."""
    return config.arguments(config.Resolved(ROOT, text).configured())["recipe"]


def test_derived_config_rebuilds_every_argument():
    text, unknown = derive_recipe(recipe())
    assert unknown == []
    made = rebuilt(text)
    assert made.model == T5
    assert made.data == recipe().data and made.evaluations == recipe().evaluations
    assert (made.objective.features.bos_id, made.objective.z_loss) == (2, 0.5)
    assert float(made.optimizer.learning_rate(0)) == pytest.approx(0.02)
    assert (made.periods, made.update, made.initial) == (recipe().periods, recipe().update, recipe().initial)


def test_objectives_of_a_joint_keep_their_settings():
    joint = Joint([MaskedLM(z_loss=0.1), NextSentence()], coefficients={"masked_lm": 2.0})
    text, unknown = derive_recipe(recipe(model=BertConfig(vocab_size=30), objective=joint))
    assert unknown == []
    made = rebuilt(text).objective
    assert made.coefficients == joint.coefficients and made.objectives[0].z_loss == 0.1


def test_inexpressible_arguments_are_named_and_omitted():
    class Local(CausalLM):
        pass

    optimizer = optimizers.adamw(learning_rate=lambda step: jnp.float32(1))
    text, unknown = derive_recipe(recipe(objective=Local(), optimizer=optimizer))
    assert unknown == ["objective", "optimizer"]
    assert "OBJECTIVE" not in text and f"MODEL = @{T5Config.__module__}.T5Config()" in text


@pytest.mark.parametrize("source", ["live", "cached"])
def test_commands_read_the_derived_config(tmp_path, source, monkeypatch):
    monkeypatch.setenv("T5X_LIKE_TRUSTED_MODULES", "some_tasks")
    changes = {}
    if source == "cached":
        data = CachedSource(cache_dir="here", batch_size=4, task_feature_lengths={"inputs": 8, "targets": 8})
        changes = {"data": data, "evaluations": None}
    text, _ = derive_recipe(recipe(**changes))
    (tmp_path / "config.gin").write_text(text)
    resolved = config.load("t5x_like.eval.evaluate", files=["commands/eval.gin"], run_directory=str(tmp_path))
    given = config.arguments(resolved.configured())
    loaded = given["loaded"]
    assert loaded.config == T5 and loaded.objective.z_loss == 0.5
    assert loaded.path == str(tmp_path) and given["data"].split == given["splits"]
    assert given["splits"] == ("dev" if source == "live" else "validation")
    assert given["data"].task_feature_lengths == {"inputs": 8, "targets": 8}
    if source == "live":
        assert given["data"].mixture_or_task_name == "a_task" and given["data"].pack is False
    else:
        assert given["data"].cache_dir == "here"
    options = {"files": ["commands/convert.gin"], "bindings": [("OUTPUT_PATH", "out")]}
    resolved = config.load("t5x_like.convert.convert", **options, run_directory=str(tmp_path))
    assert config.arguments(resolved.configured())["source"].model == T5
    if source == "live":
        options = {"files": ["commands/infer.gin"]}
        resolved = config.load("t5x_like.loading.open_model", **options, run_directory=str(tmp_path))
        assert config.arguments(resolved.configured(), without=("partitioner", "data"))["model"] == T5


@pytest.mark.parametrize(
    ("of_run", "of_evaluations", "given", "expected"),
    [
        ({"mask_rate": 0.3}, {"mask_rate": 0.15}, (), {"mask_rate": 0.15}),
        ({"mask_rate": 0.3}, None, (), {}),
        ({"mask_rate": 0.3}, {"mask_rate": 0.3}, (("TASK_ARGUMENTS", "{'mask_rate': 0.4}"),), {"mask_rate": 0.4}),
    ],
)
def test_eval_has_the_task_arguments_of_the_evaluations(tmp_path, of_run, of_evaluations, given, expected):
    task = {"mixture_or_task_name": "a_task", "task_feature_lengths": {"inputs": 8, "targets": 8}, "batch_size": 4}
    data, held_out = (SeqIOSource(**task, task_arguments=each) for each in (of_run, of_evaluations))
    text, _ = derive_recipe(recipe(data=data, evaluations={"validation": Evaluation(data=held_out)}))
    (tmp_path / "config.gin").write_text(text)
    options = {"files": ["commands/eval.gin"], "bindings": given, "run_directory": str(tmp_path)}
    resolved = config.load("t5x_like.eval.evaluate", **options)
    assert config.arguments(resolved.configured())["data"].task_arguments == expected


def test_eval_has_the_task_arguments_of_a_recipe_for_evaluations(tmp_path):
    files = ["commands/train.gin", "models/mosaicbert/tiny.gin", "runs/mosaicbert.gin"]
    bindings = [("MIXTURE_OR_TASK_NAME", "'a_task'"), ("TASK_ARGUMENTS", "{'mask_rate': 0.3}")]
    (tmp_path / "config.gin").write_text(config.load(ROOT, files=files, bindings=bindings).text)
    resolved = config.load("t5x_like.eval.evaluate", files=["commands/eval.gin"], run_directory=str(tmp_path))
    assert config.arguments(resolved.configured())["data"].task_arguments == {"mask_rate": 0.15}


def test_subclass_is_not_recorded_as_its_base():
    class Other(SequenceToSequence):
        pass

    assert recorded.origin(Other()) is None
    assert recorded.origin(SequenceToSequence(z_loss=0.2))[1]["z_loss"] == 0.2
