"""A large model starts from a small one whose tensors are repeated from the middle, as in ModernBERT's code."""

import dataclasses

import jax
import numpy as np
import pytest
from families import FAMILIES, random_model

from t5x_like import optimizers, parameters
from t5x_like.errors import UserError
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.variables import Frozen
from t5x_like.optimizers import adamw
from t5x_like.partitioning import Partitioner
from t5x_like.stored import layer_choice, warm_start, weight_source
from t5x_like.stored.network_weights import Weights
from t5x_like.stored.weight_fits import from_the_middle
from t5x_like.training.stages import of_objective
from t5x_like.training.state import create_state

SMALL = FAMILIES["modernbert"].config  # 4 layers
LARGE = dataclasses.replace(SMALL, embed_dim=20, mlp_dim=33, num_heads=3, num_kv_heads=3, num_layers=6)
# round(6 · 4 / 6), …: Gopher's rule.
LAYERS = (0, 1, 1, 2, 3, 3)


def tiled_by_hand(array, axis, size):
    """Copies the array to the middle and repeats it to both sides, entry by entry."""
    before, array = array.shape[axis], np.moveaxis(np.asarray(array), axis, 0)
    offset = (size - before) // 2
    found = np.zeros((size, *array.shape[1:]), array.dtype)
    found[offset : offset + before] = array
    for index in range(offset):
        found[offset - 1 - index] = array[before - 1 - index % before]
    for index in range(offset + before, size):
        found[index] = array[(index - offset) % before]
    return np.moveaxis(found, 0, axis)


def test_indices():
    assert from_the_middle(3, 8) == (1, 2, 0, 1, 2, 0, 1, 2)
    assert from_the_middle(3, 3) == (0, 1, 2)
    assert layer_choice.stretched(4, 6) == LAYERS
    assert layer_choice.stretched(22, 28)[-3:] == (20, 20, 21) and layer_choice.stretched(2, 3) == (0, 1, 1)


@pytest.fixture
def start(monkeypatch):
    """Returns a function that starts a configuration at the small model, and the leaves of that model."""
    leaves = parameters.stack(parameters.named_leaves({"model": random_model(SMALL)}))

    class Opened:
        def __enter__(self):
            shapes = {name: leaf.shape for name, leaf in leaves.items()}
            return Weights(shapes, lambda wanted: {name: jax.numpy.asarray(leaves[name]) for name in wanted}, {})

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(weight_source, "open_source", lambda *_: Opened())

    def run(config, **changes):
        params = {"model": config.make(jax.random.key(1))}
        trainable, frozen = optimizers.split(params, ())
        state = create_state(trainable, of_objective(MaskedLM(), adamw(learning_rate=0.1)), 0)
        source = weight_source.InitialWeights(path="small", layers={"encoder": layer_choice.stretched}, **changes)
        found = warm_start.restore(source, state, Frozen(frozen), config, Partitioner(rules="dp"), MaskedLM())
        return parameters.stack(parameters.named_leaves(found.state.params))

    return run, leaves


@pytest.mark.parametrize("scan_layers", [False, True])
def test_large_model_repeats_the_small_one(start, scan_layers):
    run, leaves = start
    found = run(dataclasses.replace(LARGE, scan_layers=scan_layers), tiled=True)
    for name, leaf in leaves.items():
        expected = np.asarray(leaf)
        if "/layers/" in name:
            expected = expected[np.array(LAYERS)]
        elif name == "model/attention_norms/scale":  # that of layer i + 1 in row i
            expected = expected[np.array([max(layer - 1, 0) for layer in LAYERS[1:]])]
        for axis, size in enumerate(found[name].shape):
            if size != expected.shape[axis]:
                expected = tiled_by_hand(expected, axis, size)
        np.testing.assert_array_equal(found[name], expected, err_msg=name)
    assert found.keys() == leaves.keys()


def test_other_sizes_need_the_setting_and_may_not_shrink(start):
    run, _ = start
    with pytest.raises(UserError, match="has shape .* but .* of this model has shape"):
        run(LARGE)
    with pytest.raises(UserError, match="has shape .* but .* of this model has shape"):
        run(dataclasses.replace(LARGE, mlp_dim=10), tiled=True)
    with pytest.raises(UserError, match="token_embedder/embedding has shape"):
        run(dataclasses.replace(LARGE, vocab_size=44), tiled=True)
