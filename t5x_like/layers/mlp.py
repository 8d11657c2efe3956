"""Feed-forward blocks, plain and gated."""

import functools
import operator

import jax
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.kernels.dropout import dropout
from t5x_like.layers.projections import Projection, shard_activation


def relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """max(x, 0)."""
    return jax.nn.relu(x)


@jax.checkpoint
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The tanh form of GELU (Hendrycks & Gimpel 2016), which T5 1.1 was trained with.

    The backward pass keeps `x` alone and computes the five intermediate values again, which costs less than their
    memory.
    """
    return jax.nn.gelu(x, approximate=True)


def linear(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x itself: the ungated half of a gated block."""
    return x


ACTIVATIONS = {"relu": relu, "gelu": gelu, "linear": linear}


class MLP(nnx.Module):
    """`wo · dropout(f₁(wi₁ · x) ∘ f₂(wi₂ · x) …)`: one activation makes a plain block, two a gated one (Shazeer 2020).

    Attributes:
      wi (or wi_0, wi_1): `[embed, mlp]`, one for each activation.
      wo: `[mlp, embed]`.
    """

    def __init__(
        self,
        size: int,
        hidden_size: int,
        *,
        activations: tuple[str, ...],
        dropout_rate: float = 0.0,
        dtype: str = "float32",
        key: jax.Array,
    ):
        """Args:
        size: of input and output.
        hidden_size: in between.
        activations: names in `ACTIVATIONS`.
        dropout_rate: applied in between, alike along a sequence.
        dtype: to compute in.
        key: for the initial values.
        """
        *wi_keys, wo_key = jax.random.split(key, len(activations) + 1)
        self.names = tuple(f"wi_{i}" for i in range(len(activations))) if len(activations) > 1 else ("wi",)
        for name, wi_key in zip(self.names, wi_keys, strict=True):
            setattr(self, name, Projection((size,), (hidden_size,), axes=("embed", "mlp"), key=wi_key, dtype=dtype))
        self.wo = Projection((hidden_size,), (size,), axes=("mlp", "embed"), key=wo_key, dtype=dtype)
        self.activations, self.dropout_rate = activations, dropout_rate

    def __call__(
        self, x: Float[Array, "batch length embed"], *, dropout_key: jax.Array | None = None
    ) -> Float[Array, "batch length embed"]:
        parts = [
            ACTIVATIONS[activation](shard_activation(getattr(self, name)(x), "mlp"))
            for name, activation in zip(self.names, self.activations, strict=True)
        ]
        hidden = functools.reduce(operator.mul, parts)
        return self.wo(dropout(hidden, self.dropout_rate, dropout_key, broadcast_dims=(-2,)))
