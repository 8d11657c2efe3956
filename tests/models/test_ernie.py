"""ERNIE: where entities act, their captures and edits, and invalid configurations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, random_model, scanned, tokens
from numerics import assert_close

from t5x_like.errors import UserError
from t5x_like.layers.captures import Edit
from t5x_like.models.ernie import ErnieConfig

CONFIG = FAMILIES["ernie"].config
BATCH = {
    "encoder_input_tokens": tokens(2, 7),
    "entities": np.array([[3, 1], [2, 0]], np.int32),
    "entity_positions": np.array([[2, 5], [1, 0]], np.int32),
    "entity_vectors": np.random.default_rng(3).normal(size=(2, 2, CONFIG.entity_dim)).astype(np.float32),
}
STREAMS = ("encoder/layers/hidden", "knowledge/embedding", "knowledge/layers/hidden", "knowledge/output")


@pytest.fixture(params=["unrolled", "scanned"])
def model(request):
    return random_model(scanned(CONFIG) if request.param == "scanned" else CONFIG)


def test_entities_act_in_the_last_layers_alone(model):
    run = jax.jit(lambda model, batch: model(batch, capture=STREAMS).captured)
    other = BATCH | {"entity_vectors": BATCH["entity_vectors"] + 1}
    found, changed = run(model, BATCH), run(model, other)
    states, others = found["encoder/layers/hidden"], changed["encoder/layers/hidden"]
    np.testing.assert_array_equal(states[0], others[0])
    # In the first of them only at the mentions, in the others at all tokens: they attend to the mentions.
    difference = np.abs(states - others).max(-1)
    assert (np.nonzero(difference[1, 0] > 1e-5)[0] == [2, 5]).all() and (difference[2, 0] > 1e-6).all()
    assert (np.nonzero(difference[1, 1] > 1e-5)[0] == [1]).all()
    expected = np.zeros((2, 7, CONFIG.entity_dim), np.float32)
    expected[0, [2, 5]], expected[1, 1] = BATCH["entity_vectors"][0], BATCH["entity_vectors"][1, 0]
    assert_close({"inputs": found["knowledge/embedding"]}, {"inputs": expected})
    assert found["knowledge/layers/hidden"].shape == (2, 2, 7, CONFIG.entity_dim)
    np.testing.assert_array_equal(found["knowledge/output"], found["knowledge/layers/hidden"][-1])


def test_edits_of_entities_change_later_layers(model):
    name, shift = "knowledge/layers/0/hidden", jnp.ones(CONFIG.entity_dim)
    run = jax.jit(lambda model, edits=(): model(BATCH, capture=STREAMS, edits=edits).captured)
    plain, edited = run(model), run(model, (Edit(name, jnp.add, (shift,)),))
    assert_close({name: edited["knowledge/layers/hidden"][0]}, {name: plain["knowledge/layers/hidden"][0] + shift})
    states = zip(plain["encoder/layers/hidden"], edited["encoder/layers/hidden"], strict=True)
    assert [bool(np.abs(one - other).max() > 1e-4) for one, other in states] == [False, False, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"knowledge_layers": 4}, "knowledge_layers=4: must be at most num_layers=3"),
        ({"entity_heads": 4}, "entity_heads=4: must divide entity_dim=6"),
        ({"activations": ("gelu", "linear")}, "several activations make a gated block"),
    ],
)
def test_invalid_configurations_raise(changes, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **changes)


def test_default_is_the_released_model():
    config = ErnieConfig()
    assert (config.text_layers, config.knowledge_layers, config.entity_dim // config.entity_heads) == (5, 7, 25)
