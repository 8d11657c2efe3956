"""ELMo: clips computed by hand, boundaries, padding, state, initial values, FLOPs, captures, invalid configurations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.layers.captures import Edit
from t5x_like.models.elmo import BACKWARD_CHARACTERS, CHARACTERS, ElmoConfig
from t5x_like.training.flops import jaxpr_flops

SMALL = ElmoConfig(
    vocab_size=23, filters=((1, 4), (3, 7)), character_dim=3, cell_dim=6, projection_dim=4, highway_layers=1
)
ROWS, LENGTH, INNER = 2, 5, 9


def rows(length=LENGTH, seed=0):
    characters = np.random.default_rng(seed).integers(1, 256, (ROWS, length, INNER)).astype(np.int32)
    return {"encoder_input_tokens": np.ones((ROWS, length), np.int32), CHARACTERS: characters}


@pytest.mark.parametrize(
    ("cell_clip", "projection_clip", "cell", "hidden"),
    [
        (None, None, 1.9438, 3.5481),  # c = σ(5) · 1.5 + σ(4) · tanh(0.5), h = 4 · σ(2.5) · tanh(c)
        (1.0, None, 1.0, 2.8153),  # 4 · σ(2.5) · tanh(1)
        (None, 3.0, 1.9438, 3.0),
        (1.0, 3.0, 1.0, 2.8153),
    ],
)
def test_clips_by_hand(cell_clip, projection_clip, cell, hidden):
    """The gates are i, j, f, o, and f has 1 in addition: the clips of a cell apply before its output gate."""
    config = dataclasses.replace(
        SMALL, cell_dim=1, projection_dim=2, cell_clip=cell_clip, projection_clip=projection_clip
    )
    layer = config.make(jax.random.key(0)).encoder.forward.layer_0
    layer.inputs.kernel[...] = jnp.zeros((2, 4, 1))
    layer.recurrent.kernel[...] = jnp.zeros((2, 4, 1))
    layer.inputs.bias[...] = jnp.array([[4.0], [0.5], [4.0], [2.5]])
    layer.outputs.kernel[...] = jnp.array([[4.0, -4.0]])
    state = (jnp.zeros((1, 2)), jnp.full((1, 1), 1.5))
    outputs, (last, last_cell) = layer(jnp.ones((1, 1, 2)), state, np.zeros((1, 1), bool))
    np.testing.assert_allclose(last_cell, [[cell]], rtol=5e-5)
    np.testing.assert_allclose(last, [[hidden, -hidden]], rtol=5e-5)
    np.testing.assert_array_equal(outputs[:, 0], last)


def test_padding_changes_nothing():
    model, batch = SMALL.make(jax.random.key(0)), rows()
    segments = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 0, 0]], np.int32)
    padded = model(batch | {"encoder_segment_ids": segments})
    short = model(jax.tree.map(lambda x: x[:, :3], batch))
    assert_close({"hidden": padded.hidden[:, :3], **padded.carry}, {"hidden": short.hidden, **short.carry})
    empty = model(batch | {"encoder_segment_ids": np.zeros_like(segments)}, carry=short.carry)
    assert_close(empty.carry, short.carry)


def test_streams_continue():
    """Two batches with carried state equal one batch of all words, in both directions."""
    model = SMALL.make(jax.random.key(0))
    batch = rows() | {BACKWARD_CHARACTERS: rows(seed=1)[CHARACTERS]}
    whole = model(batch)
    first = model(jax.tree.map(lambda x: x[:, :2], batch))
    second = model(jax.tree.map(lambda x: x[:, 2:], batch), carry=first.carry)
    assert_close({"last": second.hidden, **second.carry}, {"last": whole.hidden[:, 2:], **whole.carry})


def test_edits_and_captures():
    """State 0 is the vector of a word, twice; an edit of a layer reaches the later ones."""
    model, batch = SMALL.make(jax.random.key(0)), rows()
    names = ("encoder/embedding", "encoder/layers/0/hidden", "encoder/output")
    found = model(batch, capture=names).captured
    words = model.character_encoder(batch[CHARACTERS])
    assert_close({"words": found[names[0]]}, {"words": jnp.concatenate([words, words], axis=-1)})
    edited = model(batch, capture=names, edits=[Edit(names[1], lambda x: 0 * x)]).captured
    assert not np.any(edited[names[1]])
    assert np.any(np.abs(edited[names[2]] - found[names[2]]) > 1e-3)


def test_initial_values():
    """Glorot's bound counts inputs and outputs of a cell as one kernel; the forget bias is not stored."""
    config = dataclasses.replace(SMALL, cell_dim=256, projection_dim=64)
    layer = config.make(jax.random.key(0)).encoder.backward.layer_1
    for kernel in (layer.inputs.kernel[...], layer.recurrent.kernel[...]):
        assert np.max(np.abs(kernel)) == pytest.approx(np.sqrt(6 / (128 + 1024)), rel=1e-2)
    assert np.max(np.abs(layer.outputs.kernel[...])) == pytest.approx(np.sqrt(6 / 320), rel=1e-2)
    np.testing.assert_array_equal(layer.inputs.bias[...], 0)


def test_flops_are_those_of_the_program():
    config = dataclasses.replace(SMALL, cell_dim=64, projection_dim=32, filters=((2, 30), (3, 50)), character_dim=8)
    batch = rows() | {BACKWARD_CHARACTERS: rows(seed=1)[CHARACTERS]}

    def loss(model):
        return model(batch).hidden.sum()

    found = jaxpr_flops(jax.make_jaxpr(jax.grad(loss))(jax.eval_shape(config.make, jax.random.key(0))).jaxpr)
    assert found == pytest.approx(config.train_flops({name: x.shape for name, x in batch.items()}), rel=0.03)


def test_dropout_is_random_in_training_only():
    model, batch = SMALL.make(jax.random.key(0)), rows()
    first, second = (model(batch, dropout_key=jax.random.key(seed)).hidden for seed in (0, 1))
    assert np.any(first != second)
    assert np.mean(np.asarray(first) == 0) == pytest.approx(0.1, abs=0.1)


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [("cell_clip", 0.0, "positive"), ("num_characters", 100, "at least 262"), ("filters", (), "pairs of positive")],
)
def test_invalid_configurations_raise(field, value, problem):
    with pytest.raises(UserError, match=f"ElmoConfig.{field}=.*{problem}"):
        dataclasses.replace(SMALL, **{field: value})


def test_the_model_alone_has_no_logits():
    with pytest.raises(UserError, match="no logits of its own"):
        SMALL.make(jax.random.key(0)).unembed(jnp.ones((1, 1, 8)))


def test_parameters_have_one_encoder_of_words():
    names = parameters.named_leaves(jax.eval_shape(SMALL.make, jax.random.key(0)))
    assert sum(name.startswith("character_encoder/") for name in names) == 11
    assert sum(name.startswith("encoder/backward/") for name in names) == 8
