"""Normalisation over the last dimension."""

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
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        return (wide * jax.lax.rsqrt(mean_square + self.epsilon) * self.scale[...]).astype(x.dtype)
