"""Normalisation over the last dimension."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float


class RMSNorm(nnx.Module):
    """Divides by the root mean square and multiplies by a learnt scale; no mean, no bias (Zhang & Sennrich 2019).

    Attributes:
      scale: float32 `[embed]`, initially 1.
    """

    def __init__(self, size: int, *, epsilon: float = 1e-6):
        """Args:
        size: of the last dimension.
        epsilon: added to the mean square.
        """
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32), axes=("embed",))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "batch length embed"]) -> Float[Array, "batch length embed"]:
        """Computes in float32, returns the dtype of `x`."""
        return _normalise(x, self.scale[...], self.epsilon)


# The backward pass keeps the input alone: the steps in between are cheap, but as large as it.
@functools.partial(jax.checkpoint, static_argnums=2)
def _normalise(
    x: Float[Array, "batch length embed"], scale: Float[Array, "embed"], epsilon: float
) -> Float[Array, "batch length embed"]:
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean_square + epsilon) * scale).astype(x.dtype)
