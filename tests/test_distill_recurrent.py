"""Distillation of networks with state: the teacher carries its own, a run resumes exactly, and cached logits raise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recipes

from t5x_like import optimizers
from t5x_like.cache_logits import cache_logits
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.data import specs
from t5x_like.data.cached import CachedSource
from t5x_like.distill import distill
from t5x_like.distillation.losses.logits import ForwardKL
from t5x_like.distillation.teachers import Teacher
from t5x_like.errors import UserError
from t5x_like.loading import open_teacher
from t5x_like.metrics import read_metrics
from t5x_like.models.lstm import LSTMConfig
from t5x_like.objectives import passes
from t5x_like.objectives.carry import as_features
from t5x_like.objectives.recurrent_lm import RecurrentLM
from t5x_like.partitioning import Partitioner
from t5x_like.train import train

pytestmark = [pytest.mark.full, pytest.mark.notf]
ROWS, LENGTH, STEPS = 4, 6, 4
STUDENT = LSTMConfig(vocab_size=100, embed_dim=6, embedding_dim=5, num_layers=1)
TEACHER = LSTMConfig(vocab_size=100, embed_dim=8, embedding_dim=5, num_layers=2)


def recipe(cache, model_dir, model=STUDENT, total=STEPS):
    return recipes.make(
        model=model,
        objective=RecurrentLM(eos_id=1),
        optimizer=optimizers.adamw(learning_rate=0.01),
        data=CachedSource(cache_dir=cache, batch_size=ROWS, shuffle=False, continuous=True),
        partitioner=Partitioner(devices=jax.devices()[:1], ici={"data": 1}),
        total=total,
        save=2,
        log=1,
        model_dir=str(model_dir),
    )


@pytest.fixture(scope="module")
def stored(write_cache, tmp_path_factory):
    """Returns the directories of a cache and of a teacher that was trained on it."""
    cache, teacher = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("teacher")
    write_cache(cache / "train", spec=specs.NEXT_TOKEN, lengths={"targets": LENGTH}, shards=((0, 22),), continuous=True)
    train(recipe(str(cache), teacher, model=TEACHER, total=2))
    return str(cache), str(teacher)


def run(stored, model_dir, total=STEPS, **teacher):
    cache, directory = stored
    student = recipe(cache, model_dir, total=total)
    losses = {"kl": ForwardKL(prediction="targets")}
    train(distill(student, teachers={"t": Teacher(directory, **teacher)}, losses=losses))
    return [(row["loss"], row["kl"]) for row in read_metrics(str(model_dir)) if row["split"] == "train"]


def test_run_resumes_with_the_state_of_the_teacher(stored, tmp_path):
    whole = run(stored, tmp_path / "whole")
    run(stored, tmp_path / "stopped", total=2)
    assert run(stored, tmp_path / "stopped") == whole and len(whole) == STEPS


def test_teacher_continues_its_rows(stored, tmp_path):
    """The reference runs the teacher alone over the batches."""
    cache, directory = stored
    run(stored, tmp_path)
    loaded = open_teacher(Teacher(directory))
    params = loaded.on(Partitioner(devices=jax.devices()[:1])).read()
    objective = loaded.objective
    carry = as_features(objective.initial_carry(TEACHER, ROWS))
    batches = recipe(cache, "unused").data.host_iterator(objective.features)
    for _ in range(STEPS):
        carry = as_features(passes.forward(objective, params, {**next(batches), **carry}).carry)
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"))
    shapes = {name: shape for name, shape in checkpoints.shapes(STEPS).items() if "carry/teachers/t/" in name}
    assert len(shapes) == len(carry) == 5
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    found = checkpoints.read(
        STEPS, {name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding) for name, shape in shapes.items()}
    )
    for name, value in found.items():
        expected = carry[f"carry/{name.partition('carry/teachers/t/')[2]}"]
        assert np.any(value != 0)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_cached_logits_of_a_teacher_with_state_raise(stored, tmp_path):
    cache, directory = stored
    logits = str(tmp_path / "logits")
    cache_logits(cache_dir=cache, teacher=Teacher(directory), logits_dir=logits, k=4, batch_size=4)
    with pytest.raises(UserError, match="teacher 't' carries state from batch to batch, which cached predictions do"):
        run(stored, tmp_path / "run", logits=logits)
