"""Feed-forward blocks with and without gating, and their activations."""

import functools
import operator
from collections.abc import Collection

import jax
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.kernels.dropout import NO_DROPOUT, Dropout
from t5x_like.layers.initializers import Initializer
from t5x_like.layers.projections import Projection, shard_activation
from t5x_like.layers.recompute import recomputed, recomputed_in_scan


def relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Computes max(x, 0)."""
    return jax.nn.relu(x)


@recomputed
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Computes the tanh approximation of GELU (Hendrycks & Gimpel 2016, section 2), used by BERT, GPT and T5 1.1.

    The backward pass saves only `x` and recomputes the five intermediate values, which costs less than their memory.
    """
    return jax.nn.gelu(x, approximate=True)


@recomputed
def gelu_exact(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Computes GELU as x · Φ(x) with the error function, used by RoBERTa and BART."""
    return jax.nn.gelu(x, approximate=False)


@recomputed
def silu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Computes x · sigmoid(x), the gate of SwiGLU (Shazeer 2020)."""
    return jax.nn.silu(x)


def linear(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns x: the linear branch of a gated block."""
    return x


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_exact": gelu_exact, "silu": silu, "linear": linear}


class MLP(nnx.Module):
    """Feed-forward block `wo · dropout(norm(f₁(wi₁ · x) ∘ f₂(wi₂ · x) …))`.

    One activation gives a standard block, two give a gated block (Shazeer 2020). The input projections are `wi` for one
    activation and `wi_0`, `wi_1` for two.

    Args:
      size: Size of inputs and outputs.
      hidden_size: Size of the hidden layer.
      activations: Names in `ACTIVATIONS`, one per input projection.
      init: Initializer of all kernels.
      out_init: Initializer of `wo`; None for `init`.
      bias: Whether all projections add a bias, or the names of those that do, such as `wo`.
      norm: Norm of the hidden layer; None for no norm.
      dropout: Dropout of the hidden layer.
      embed_axis: Logical axis of inputs and outputs in the kernels; None replicates it.
      dtype: Dtype of the computation.
      key: Random key for the initial values.

    Attributes:
      wo: Projection with kernel `[mlp, embed]`.
      norm: Norm of the hidden layer; only if there is one.
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
        bias: bool | Collection[str] = False,
        norm: nnx.Module | None = None,
        dropout: Dropout = NO_DROPOUT,
        embed_axis: str | None = "embed",
        dtype: str = "float32",
        key: jax.Array,
    ):
        def has_bias(name):
            return bias if isinstance(bias, bool) else name in bias

        *wi_keys, wo_key = jax.random.split(key, len(activations) + 1)
        self.names = tuple(f"wi_{i}" for i in range(len(activations))) if len(activations) > 1 else ("wi",)
        for name, wi_key in zip(self.names, wi_keys, strict=True):
            options = {"axes": (embed_axis, "mlp"), "init": init, "bias": has_bias(name), "dtype": dtype}
            setattr(self, name, Projection((size,), (hidden_size,), key=wi_key, **options))
        options = {"axes": ("mlp", embed_axis), "init": out_init or init, "bias": has_bias("wo"), "dtype": dtype}
        self.wo = Projection((hidden_size,), (size,), key=wo_key, **options)
        if norm is not None:
            self.norm = norm
        self.activations, self.has_norm, self.dropout = activations, norm is not None, dropout

    def __call__(
        self,
        x: Float[Array, "batch length embed"],
        *,
        dropout_key: jax.Array | None = None,
        capture: frozenset[str] = frozenset(),
    ) -> tuple[Float[Array, "batch length embed"], dict[str, Array]]:
        """Applies the block; see `blocks.Block`. The block captures nothing."""

        def project(*branches):
            activated = [ACTIVATIONS[name](branch) for name, branch in zip(self.activations, branches, strict=True)]
            hidden = functools.reduce(operator.mul, activated)
            hidden = self.norm(hidden) if self.has_norm else hidden
            return self.wo(self.dropout(hidden, dropout_key), dropout_key=dropout_key)

        # A scan stacks what each layer saves, so the hidden layer is saved once, before its activations.
        branches = [shard_activation(getattr(self, name)(x, dropout_key=dropout_key), "mlp") for name in self.names]
        return recomputed_in_scan(project)(*branches), {}
