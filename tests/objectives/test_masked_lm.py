"""Masked language modeling: gathered positions, the head and loss in NumPy, padding and shardings."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close
from objective_cases import read_terms, terms_of

from t5x_like import parameters
from t5x_like.data import batches, specs
from t5x_like.models.bert import BertConfig
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.masked_lm import MaskedLM, gather_positions
from t5x_like.objectives.passes import total_weights
from t5x_like.partitioning import Partitioner

CONFIG = BertConfig(
    vocab_size=8,
    embed_dim=4,
    mlp_dim=8,
    num_heads=2,
    head_dim=2,
    num_layers=1,
    max_length=8,
    activations=("gelu_exact",),
    norm_epsilon=1e-5,
)


def make_params(objective, config=CONFIG, seed=0):
    """Returns random values for all parameters, including biases and scales."""
    model = jax.eval_shape(config.make, jax.random.key(0))
    like = {"model": model, "objective": jax.eval_shape(objective.init, jax.random.key(0), model)}
    rng = np.random.default_rng(seed)
    return parameters.map_named(lambda name, leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), like)


def test_gather_positions_is_exact():
    hidden = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    positions = np.array([[4, 0, 0], [2, 2, 3]])
    expected = np.take_along_axis(hidden, positions[..., None], axis=1)
    np.testing.assert_array_equal(gather_positions(hidden, positions), expected)
    np.testing.assert_array_equal(
        gather_positions(hidden.astype(jnp.bfloat16), positions), expected.astype(jnp.bfloat16)
    )


def test_gather_positions_accumulates_gradients_of_repeated_positions():
    hidden, positions = jnp.zeros((1, 3, 2)), np.array([[1, 1, 2]])
    factors = np.array([[[1.0, 2.0], [10.0, 20.0], [5.0, 7.0]]])
    gradient = jax.grad(lambda hidden: jnp.sum(gather_positions(hidden, positions) * factors))(hidden)
    np.testing.assert_array_equal(gradient, [[[0, 0], [11, 22], [5, 7]]])


def test_loss_of_one_position_equals_numpy():
    objective = MaskedLM()
    params = make_params(objective)
    hidden = np.random.default_rng(1).normal(size=(1, 3, 4)).astype(np.float32)
    batch = {
        "encoder_segment_ids": np.array([[1, 1, 1]]),
        "masked_positions": np.array([[2, 0]]),
        "masked_targets": np.array([[6, 0]]),
        "masked_weights": np.array([[1, 0]]),
    }
    head = params["objective"]["masked_lm"]
    x = np.asarray(hidden[0, 2] @ head.dense.kernel[...] + head.dense.bias[...], np.float64)
    x = np.array([value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x])
    x = (x - x.mean()) / math.sqrt(x.var() + 1e-5) * head.norm.scale[...] + head.norm.bias[...]
    logits = params["model"].embeddings.token_embedder.embedding[...] @ x + head.bias[...]
    expected = -logits[6] + math.log(np.exp(logits).sum())
    terms = read_terms(objective, params, Outputs(hidden=hidden), batch)
    assert float(terms.sums["masked_lm"]) == pytest.approx(float(expected), rel=1e-5)
    assert [float(x) for x in terms.metrics["loss"]] == pytest.approx([float(expected), 1.0], rel=1e-5)
    assert float(terms.metrics["accuracy"][0]) == float(np.argmax(logits) == 6)
    predicted = objective.predict(objective.read(params, Outputs(hidden=hidden), batch))["predictions"]
    assert predicted.shape == (1, 2) and predicted[0, 0] == np.argmax(logits)
    assert float(total_weights(objective, batch)["masked_lm"]) == 1.0


def test_padding_predictions_have_no_effect():
    objective = MaskedLM(z_loss=1e-2)
    params = make_params(objective)
    inputs = np.array([[3, 4, 5, 6, 7], [5, 3, 2, 0, 0]], np.int32)
    arrays = {"inputs": inputs, "targets": np.array([[2, 7], [4, 0]]), "masked_positions": np.array([[0, 3], [1, 0]])}
    padded = {name: np.pad(array, ((0, 0), (0, 2))) for name, array in arrays.items() if name != "inputs"}
    few, many = (batches.from_arrays(specs.MASKED_LM, arrays | other) for other in ({}, padded))
    for name in ("loss", "accuracy", "z_loss"):
        total, weight = terms_of(objective, params, few).metrics[name]
        other_total, other_weight = terms_of(objective, params, many).metrics[name]
        np.testing.assert_allclose((other_total, other_weight), (total, weight), rtol=1e-5)
        assert float(weight) == 3.0


def test_z_loss_is_in_the_term_and_in_its_own_metric():
    params = make_params(MaskedLM())
    arrays = {"inputs": [[3, 4, 5]], "targets": [[2]], "masked_positions": [[1]]}
    batch = batches.from_arrays(specs.MASKED_LM, {name: np.array(array) for name, array in arrays.items()})
    plain, with_z = terms_of(MaskedLM(), params, batch), terms_of(MaskedLM(z_loss=0.1), params, batch)
    z_loss = float(with_z.metrics["z_loss"][0])
    assert z_loss > 0 and float(plain.metrics["z_loss"][0]) == 0
    assert float(with_z.sums["masked_lm"]) == pytest.approx(float(plain.sums["masked_lm"]) + z_loss, rel=1e-6)
    assert float(with_z.metrics["loss"][0]) == float(plain.metrics["loss"][0])
    with pytest.raises(ValueError, match="z_loss=-1.0"):
        MaskedLM(z_loss=-1.0)


def test_logical_axes_of_the_head():
    objective = MaskedLM()
    model = jax.eval_shape(CONFIG.make, jax.random.key(0))
    axes = parameters.logical_axes({"objective": jax.eval_shape(objective.init, jax.random.key(0), model)})
    assert axes == {
        "objective/masked_lm/bias": ("vocab",),
        "objective/masked_lm/dense/bias": ("mlp",),
        "objective/masked_lm/dense/kernel": ("embed", "mlp"),
        "objective/masked_lm/norm/bias": ("embed_vector",),
        "objective/masked_lm/norm/scale": ("embed_vector",),
    }


@pytest.mark.full
def test_gradient_is_equal_when_length_and_vocabulary_are_sharded():
    objective = MaskedLM()
    params, rng = make_params(objective), np.random.default_rng(2)
    batch = {
        "encoder_input_tokens": rng.integers(1, 8, (4, 8)),
        "encoder_segment_ids": np.ones((4, 8)),
        "encoder_positions": np.tile(np.arange(8), (4, 1)),
        "masked_positions": rng.integers(0, 8, (4, 2)),
        "masked_targets": rng.integers(1, 8, (4, 2)),
        "masked_weights": np.array([[1, 1], [1, 0], [1, 1], [0, 0]]),
    }
    batch = {name: array.astype(np.int32) for name, array in batch.items()}

    def loss(params, batch):
        return terms_of(objective, params, batch).sums["masked_lm"]

    expected = jax.jit(jax.grad(loss))(params, batch)
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 2, "sequence": 2, "tensor": 2})
    shardings = partitioner.shardings(params)
    step = partitioner.jit(jax.grad(loss), out_shardings=shardings)
    found = step(jax.device_put(params, shardings), partitioner.put_batch(batch))
    named = (parameters.named_leaves(found), parameters.named_leaves(expected))
    # The biases of keys only add a constant to the scores of a query: their gradient is 0 up to rounding.
    assert_close(*({name: leaf for name, leaf in each.items() if not name.endswith("key/bias")} for each in named))
