"""A layer of named blocks: where the norm stands, what is dropped, what is captured."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like.kernels.dropout import NO_DROPOUT, Dropout
from t5x_like.layers import captures
from t5x_like.layers.blocks import TransformerLayer


class Times(nnx.Module):
    """A block that multiplies by a number and adds what it is given."""

    CAPTURABLE = ("seen",)

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x, *, dropout_key, capture, add=0.0):
        return self.factor * x + add, {name: x for name in capture}


class Halve(nnx.Module):
    def __call__(self, x):
        return x / 2


def layer(norm_position, dropout=NO_DROPOUT):
    blocks = {"attention": Times(2.0), "mlp": Times(3.0)}
    return TransformerLayer(blocks, Halve, norm_position=norm_position, dropout=dropout)


X = np.ones((1, 2, 3), np.float32)
NONE = captures.Captures()


@pytest.mark.parametrize(
    ("norm_position", "expected"),
    [
        ("pre", (1 + (2 * 0.5 + 10)) + 3 * (12 / 2)),
        ("post", ((1 + 2 + 10) / 2 * 4) / 2),
    ],
)
def test_the_norm_stands_before_the_block_or_after_the_sum(norm_position, expected):
    y, _ = layer(norm_position)(X, {"attention": {"add": 10.0}}, captures=NONE)
    np.testing.assert_allclose(y, expected)


def test_another_norm_position_is_refused():
    with pytest.raises(ValueError, match="norm_position='middle' must be 'pre' or 'post'"):
        layer("middle")


def test_the_sum_is_never_dropped():
    y, _ = layer("pre", Dropout(0.5))(jnp.ones((1, 1, 10_000)), {}, dropout_key=jax.random.key(0), captures=NONE)
    # Kept or dropped (0 or twice as much): 1 + {0, 2 · 1}, then + {0, 2 · 1.5} times that.
    assert sorted(np.unique(y)) == [1, 3, 4, 12]


def test_what_a_block_saw_is_captured():
    wanted = captures.parse(["stack/layers/mlp/seen", "stack/layers/hidden"], {"stack": (1, layer("pre").capturable)})
    y, captured = layer("pre")(X, {}, captures=wanted["stack"])
    assert captured.keys() == {"mlp/seen", "hidden"}
    np.testing.assert_allclose(captured["mlp/seen"], 1.0)
    np.testing.assert_allclose(captured["hidden"], y)
