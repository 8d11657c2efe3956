"""Objectives that draw random values for rows: the draws depend on the row and the position alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close
from objective_cases import CASES

from t5x_like import optimizers, parameters
from t5x_like.axis_rules import SHARED
from t5x_like.errors import UserError
from t5x_like.kernels import chunks, position_samples
from t5x_like.kernels.chunks import Readout
from t5x_like.objectives import gathering, gradients, passes
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.keys import row_keys
from t5x_like.objectives.masked_lm import NAME, MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.variables import Frozen
from t5x_like.partitioning import Partitioner

CASE = CASES["pretraining"]
SAMPLES = f"{SHARED}sampled_classes"


class Sampled(MaskedLM):
    """Predicts samples of the model at the masked positions, among classes that all rows and the step determine."""

    draws = True

    @staticmethod
    def prepare(params, batch, *, key, step):
        return {**batch, SAMPLES: jnp.bincount(batch["masked_targets"].ravel() % 7, length=7)}

    def read(self, params, outputs, rows, *, keys):
        predicted = super().read(params, outputs, rows).predictions[NAME]
        ids = position_samples.sample(Readout(predicted.hidden, predicted.logits), keys.rows)
        offset = jax.random.randint(keys.step, (), 0, 3) + jnp.sum(rows[SAMPLES] * jnp.arange(7))
        return super().read(params, outputs, {**rows, "masked_targets": (ids + offset) % 11})


OBJECTIVE = Joint([Sampled(), NextSentence()])


def gradient(microbatches, devices, gather="per_use"):
    partitioner = Partitioner(rules="fsdp", ici={"fsdp": devices}, devices=jax.devices()[:devices])
    _, frozen = optimizers.split(CASE.params(), ())

    def run(params, batch):
        batch = OBJECTIVE.prepare(params, batch, key=jax.random.key(1), step=0)
        normalize = gradients.normalizers(OBJECTIVE, batch, "NUM_REAL_TARGET_TOKENS")
        keys = gradients.keys_of_step(OBJECTIVE, jax.random.key(0), batch, dropout=False)
        options = {"keys": keys, "microbatches": microbatches, "normalize": normalize, "gather": gather}
        return gradients.compute(OBJECTIVE, params, Frozen(frozen), batch, **options)[:2]

    found, metrics = partitioner.jit(run)(CASE.params(), partitioner.put_batch(CASE.batch()))
    return parameters.named_leaves(found), {name: np.stack(pair) for name, pair in metrics.items()}


@pytest.mark.full
@pytest.mark.parametrize("gather", gathering.GATHERINGS)
def test_gradient_is_equal_on_any_microbatches_devices_and_chunks(monkeypatch, gather):
    (expected, expected_metrics), plain = gradient(1, 1), CASE.objective
    monkeypatch.setattr(chunks, "LOGITS_BUDGET_BYTES", 1)  # one position per chunk
    monkeypatch.setattr(chunks, "MIN_POSITIONS", 1)
    found, metrics = gradient(2, 4, gather)
    zero = {name for name in expected if name.endswith("key/bias")}  # only adds a constant to scores
    assert_close(*({n: each[n] for n in each if n not in zero} for each in (found, expected)))
    assert_close(metrics, expected_metrics)
    assert passes.total_weights(plain, CASE.batch()).keys() == passes.total_weights(OBJECTIVE, CASE.batch()).keys()


def test_draws_of_an_evaluation_depend_on_the_number_of_the_example():
    batch = {name: array for name, array in CASE.batch().items() if name != "masked_targets"}
    objective, params = type("Unprepared", (Sampled,), {"prepare": None})(), CASE.params()

    @jax.jit
    def drawn(batch, first):
        batch = {**batch, SAMPLES: jnp.zeros(7, jnp.int32), "masked_targets": jnp.zeros_like(batch["masked_positions"])}
        return passes.forward_at_evaluation(objective, params, batch, first=first).predictions[NAME].targets

    whole = drawn(batch, 0)
    half = {name: array[2:] for name, array in batch.items()}
    np.testing.assert_array_equal(whole[2:], drawn(half, 2))
    assert np.any(whole[2:] != drawn(half, 0))


def test_samples_have_the_distribution_of_the_logits():
    logits = np.log(np.array([0.1, 0.2, 0.7], np.float32))
    readout = Readout(np.broadcast_to(logits, (64, 500, 3)), lambda x: 2 * x)
    ids = position_samples.sample(readout, row_keys(jax.random.key(3), jnp.arange(64)), temperature=2.0)
    found = np.bincount(np.asarray(ids).ravel(), minlength=3) / ids.size
    np.testing.assert_allclose(found, [0.1, 0.2, 0.7], atol=4 * 0.5 / np.sqrt(ids.size))
    assert not np.array_equal(ids[0], ids[1])


def test_sampling_without_draws_raises():
    class Undeclared(Sampled):
        draws = False

    with pytest.raises(UserError, match="row_keys=None: samples need one key per row. Set `draws = True`"):
        jax.eval_shape(lambda: passes.forward_at_evaluation(Undeclared(), CASE.params(), CASE.batch()))
