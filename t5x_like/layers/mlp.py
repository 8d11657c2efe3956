"""Feed-forward blocks, plain and gated."""

import functools
import operator

import jax
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.kernels.dropout import NO_DROPOUT, Dropout
from t5x_like.layers.initializers import Initializer
from t5x_like.layers.projections import Projection, shard_activation


def relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """max(x, 0)."""
    return jax.nn.relu(x)


@jax.checkpoint
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The tanh form of GELU (Hendrycks & Gimpel 2016), which BERT, GPT and T5 1.1 were trained with.

    The backward pass keeps `x` alone and computes the five intermediate values again, which costs less than their
    memory.
    """
    return jax.nn.gelu(x, approximate=True)


@jax.checkpoint
def gelu_exact(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x · Φ(x) by the error function, as RoBERTa and BART have it."""
    return jax.nn.gelu(x, approximate=False)


@jax.checkpoint
def silu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x · sigmoid(x), the gate of SwiGLU (Shazeer 2020)."""
    return jax.nn.silu(x)


def linear(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x itself: the ungated half of a gated block."""
    return x


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_exact": gelu_exact, "silu": silu, "linear": linear}


class MLP(nnx.Module):
    """`wo · dropout(f₁(wi₁ · x) ∘ f₂(wi₂ · x) …)`: one activation makes a plain block, two a gated one (Shazeer 2020).

    Attributes:
      wi (or wi_0, wi_1): `[embed, mlp]`, one for each activation.
      wo: `[mlp, embed]`.
    """

    CAPTURABLE = ()

    def __init__(
        self,
        size: int,
        hidden_size: int,
        *,
        activations: tuple[str, ...],
        init: Initializer,
        out_init: Initializer | None = None,
        bias: bool = False,
        dropout: Dropout = NO_DROPOUT,
        dtype: str = "float32",
        key: jax.Array,
    ):
        """Args:
        size: of input and output.
        hidden_size: in between.
        activations: names in `ACTIVATIONS`.
        init: of all kernels.
        out_init: of `wo` where it differs.
        bias: whether every projection adds one.
        dropout: applied in between.
        dtype: to compute in.
        key: for the initial values.
        """
        *wi_keys, wo_key = jax.random.split(key, len(activations) + 1)
        self.names = tuple(f"wi_{i}" for i in range(len(activations))) if len(activations) > 1 else ("wi",)
        for name, wi_key in zip(self.names, wi_keys, strict=True):
            projection = Projection(
                (size,), (hidden_size,), axes=("embed", "mlp"), init=init, bias=bias, dtype=dtype, key=wi_key
            )
            setattr(self, name, projection)
        self.wo = Projection(
            (hidden_size,), (size,), axes=("mlp", "embed"), init=out_init or init, bias=bias, dtype=dtype, key=wo_key
        )
        self.activations, self.dropout = activations, dropout

    def __call__(
        self,
        x: Float[Array, "batch length embed"],
        *,
        dropout_key: jax.Array | None = None,
        capture: frozenset[str] = frozenset(),
    ) -> tuple[Float[Array, "batch length embed"], dict[str, Array]]:
        """The block's output, and nothing captured: see `blocks.Block`."""
        parts = [
            ACTIVATIONS[activation](shard_activation(getattr(self, name)(x), "mlp"))
            for name, activation in zip(self.names, self.activations, strict=True)
        ]
        return self.wo(self.dropout(functools.reduce(operator.mul, parts), dropout_key)), {}
