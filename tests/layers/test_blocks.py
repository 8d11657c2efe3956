"""Transformer layers: norm position, dropout and captures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like.kernels.dropout import NO_DROPOUT, Dropout
from t5x_like.layers import captures
from t5x_like.layers.blocks import TransformerLayer


class Scale(nnx.Module):
    """A block that computes factor · x + add."""

    CAPTURABLE = ("input",)

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x, *, dropout_key, capture, add=0.0):
        return self.factor * x + add, {name: x for name in capture}


class Halve(nnx.Module):
    def __call__(self, x):
        return x / 2


def layer(norm_position, dropout=NO_DROPOUT):
    blocks = {"attention": Scale(2.0), "mlp": Scale(3.0)}
    return TransformerLayer(blocks, Halve, norm_position=norm_position, dropout=dropout)


X = np.ones((1, 2, 3), np.float32)
NONE = captures.Captures()


@pytest.mark.parametrize(
    ("norm_position", "expected"),
    [
        ("pre", (1 + (2 * 0.5 + 10)) + 3 * (12 / 2)),
        ("post", ((1 + 2 + 10) / 2 * 4) / 2),
        ("output", (1 + (2 + 10) / 2) + 3 * 7 / 2),
        ("both", (1 + (2 * 0.5 + 10) / 2) + 3 * (6.5 / 2) / 2),
        ("none", (1 + 2 + 10) * 4),
        ({"attention": "none", "mlp": "pre"}, 13 + 3 * (13 / 2)),
    ],
)
def test_norm_positions(norm_position, expected):
    y, _ = layer(norm_position)(X, {"attention": {"add": 10.0}}, captures=NONE)
    np.testing.assert_allclose(y, expected)


def test_invalid_norm_position_raises():
    with pytest.raises(ValueError, match="norm_position='middle' is unknown. Give one of 'pre', 'post', 'output'"):
        layer("middle")


def test_dropout_applies_before_the_residual_sum():
    y, _ = layer("pre", Dropout(0.5))(jnp.ones((1, 1, 10_000)), {}, dropout_key=jax.random.key(0), captures=NONE)
    # Attention adds {0, 2 · (2 · 0.5)} = {0, 2}. The MLP adds {0, 2 · (3 · x / 2)} = {0, 3 · x}.
    assert sorted(np.unique(y)) == [1, 3, 4, 12]


def test_captures_block_arrays_and_hidden_states():
    requested = captures.parse(
        ["stack/layers/mlp/input", "stack/layers/hidden"], {"stack": (1, layer("pre").capturable)}
    )
    y, captured = layer("pre")(X, {}, captures=requested["stack"])
    assert captured.keys() == {"mlp/input", "hidden"}
    np.testing.assert_allclose(captured["mlp/input"], 1.0)
    np.testing.assert_allclose(captured["hidden"], y)
