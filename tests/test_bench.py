"""`t5x_like bench` of training runs and distillations."""

import dataclasses
import json

import copying_run
import jax
import numpy as np
import pytest
from families import FAMILIES
from preference_rows import PreferenceRows
from prompt_rows import PromptRows

from t5x_like import cli, optimizers
from t5x_like.bench import bench
from t5x_like.benchmarking import matrix_products, parts
from t5x_like.data import conversation_specs
from t5x_like.distill import distill
from t5x_like.distillation.losses.logits import ForwardKL
from t5x_like.distillation.teachers import Teacher
from t5x_like.errors import UserError
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.kto import KTO
from t5x_like.objectives.policy_gradient import GRPO
from t5x_like.objectives.rewards import Rewards
from t5x_like.objectives.rollouts import Rollouts
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.training import flops
from t5x_like.training.program import make_program

RECIPE = """
from __gin__ import dynamic_registration
from t5x_like.models import t5

MODEL = @t5.T5Config()
t5.T5Config:
  vocab_size = 32
  embed_dim = 8
  mlp_dim = 8
  num_heads = 1
  head_dim = 8
  encoder_layers = 1
  decoder_layers = 1
"""


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(matrix_products, "_SECONDS", 0.0)


def recipe(**changes):
    return copying_run.recipe("unused", **{"microbatches": 2} | changes)


def test_measures_the_step_and_its_parts(tmp_path, capsys):
    file = tmp_path / "step.json"
    found = bench(recipe=recipe(), steps=3, warmup_steps=1, json_path=str(file))
    written = json.loads(file.read_text())
    assert {name: len(each["all"]) for name, each in written["seconds"].items()} == {
        "step": 3,
        "forward": 3,
        "forward_backward": 3,
    }
    assert (written["rows"], written["tokens"], written["microbatches"]) == (8, 8 * (6 + 6), 2)
    assert written["tokens_per_second"] == pytest.approx(written["tokens"] / written["seconds"]["step"]["median"])
    assert written["model_flops"] == make_program(recipe()).flops
    assert written["mfu"] == pytest.approx(found.model_flops / (found.step_seconds * found.peak_flops))
    # Parameters, and factored second moments that are smaller.
    assert written["peak_bytes_per_device"] > 4 * written["parameters"]
    assert 0 < written["temporary_bytes_per_device"] < written["peak_bytes_per_device"]
    assert written["batches"] == "synthetic" and written["teachers"] == {}
    assert "forward and backward" in capsys.readouterr().out


def test_updates_of_rows_have_no_backward_pass(tmp_path, capsys):
    (tmp_path / "vocab.txt").write_text("".join(f"{word} 9\n" for word in "abcdef"))
    files = ("models/word_vectors/base.gin", "runs/word2vec.gin")
    settings = {"VOCABULARY_PATH": tmp_path / "vocab.txt", "WordVectorsConfig.vocab_size": 9}
    settings |= {"TRAIN_STEPS": 2, "BATCH_SIZE": 8}
    arguments = [*(f"--gin_file={file}" for file in files), *(f"--gin.{name}={x}" for name, x in settings.items())]
    lengths = "--gin.TASK_FEATURE_LENGTHS={'targets': 20}"
    assert cli.main(["bench", *arguments, lengths, "--steps=1", "--warmup_steps=1"]) == 0
    written = capsys.readouterr().out
    assert "step" in written and "backward" not in written
    assert "MFU                     not computed, because the model has no layers" in written


@pytest.mark.full
def test_parts_compute_the_loss_and_the_gradient_of_the_step():
    given = recipe(model=T5Config(**vars(copying_run.CONFIG) | {"dropout_rate": 0.1}))
    program = make_program(given)
    batch = program.partitioner.put_batch(copying_run.Copying().make(0))
    running = parts.RunningStep(program, 0, batch)
    loss = parts.LossOfRun(given.objective, given.update.microbatches, "NUM_REAL_TARGET_TOKENS")
    made = parts.compile_parts(running, program, loss)
    losses, _ = made[parts.FORWARD]()
    norm, _ = made[parts.FORWARD_BACKWARD]()
    _, metrics = running()
    np.testing.assert_allclose(np.sum(losses), metrics["objective"][0], rtol=1e-5)
    np.testing.assert_allclose(norm, metrics["grad_norm"][0], rtol=1e-5)


ROLLOUTS = Rollouts(rewards=Rewards({"counting_rewards.count": 1.0}), samples=3, max_length=4, eos_id=1)
PREPARING = {
    "samples": (GRPO(ROLLOUTS), PromptRows()),
    "samples of two updates": (GRPO(dataclasses.replace(ROLLOUTS, updates=2)), PromptRows()),
    "divergence": (KTO(), PreferenceRows(features=conversation_specs.LABELED_COMPLETION)),
}


@pytest.mark.full
@pytest.mark.parametrize("name", PREPARING)
def test_parts_read_a_batch_as_the_objective_prepares_it(name):
    objective, data = PREPARING[name]
    frozen = optimizers.ParameterGroup("^objective/reference/", freeze=True)
    optimizer = optimizers.adamw(learning_rate=0.01, groups=(frozen,) if name == "divergence" else ())
    settings = {"objective": objective, "data": data, "optimizer": optimizer, "evaluations": None}
    given = copying_run.recipe("unused", model=FAMILIES["llama"].config, **settings)
    program = make_program(given)
    running = parts.RunningStep(program, 0, program.partitioner.put_batch(data.make(0)))
    made = parts.compile_parts(running, program, parts.LossOfRun(objective, 1, "NUM_REAL_TARGET_TOKENS"))
    assert list(made) == [parts.PREPARE, parts.FORWARD, parts.FORWARD_BACKWARD]
    loss, _ = made[parts.FORWARD]()
    norm, _ = made[parts.FORWARD_BACKWARD]()
    _, metrics = running()
    np.testing.assert_allclose(loss, metrics["objective"][0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norm, metrics["grad_norm"][0], rtol=1e-5)


@pytest.mark.full
def test_distillation_runs_its_teacher_without_weights(tmp_path):
    file = tmp_path / "teacher.gin"
    file.write_text(RECIPE)
    distilled = distill(
        recipe(), teachers={"large": Teacher(str(file))}, losses={"kl": ForwardKL()}, require_weights=False
    )
    found = bench(recipe=distilled, steps=2, warmup_steps=1, max_seconds=0.0, measure_parts=False)
    assert {name: len(each.seconds) for name, each in found.times.items()} == {"step": 1}, "the time is over"
    assert found.optimizer_seconds is None
    assert found.teachers["large"].endswith("parameters, in the step")
    assert found.model_flops > make_program(recipe()).flops


def test_products_of_the_step_have_its_flops():
    program = make_program(recipe())
    (state, frozen), specs = program.shapes, SequenceToSequence().features.dtypes
    batch = {name: jax.ShapeDtypeStruct(shape, specs[name]) for name, shape in program.batch_shapes.items()}
    jaxpr = program.train_step.trace(state, frozen, batch).jaxpr.jaxpr
    counted = matrix_products.count_products(jaxpr)
    assert sum(product.flops * count for product, count in counted.items()) == flops.jaxpr_flops(jaxpr)


def test_products_of_a_scan_count_once_per_iteration():
    def repeated(x, kernel):
        return jax.lax.scan(lambda x, _: (jax.numpy.tensordot(x, kernel, 2), None), x, None, length=3)

    jaxpr = jax.make_jaxpr(repeated)(np.ones((2, 5, 3, 4), np.float32), np.ones((3, 4, 3, 4), np.float32)).jaxpr
    assert matrix_products.count_products(jaxpr) == {matrix_products.Product(1, 10, 12, 12, "float32"): 3}


@pytest.mark.parametrize("setting", ["steps", "warmup_steps"])
def test_invalid_number_raises(setting):
    with pytest.raises(UserError, match=f"--{setting}=0: must be at least 1"):
        cli.run(cli.parse(["bench", f"--{setting}=0"]))
