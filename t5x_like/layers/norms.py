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
        return _rms_norm(x, self.scale[...], self.epsilon)


class LayerNorm(nnx.Module):
    """Subtracts the mean, divides by the standard deviation, multiplies by a scale and adds a bias (Ba et al. 2016).

    Attributes:
      scale: float32 `[embed]`, initially 1.
      bias: float32 `[embed]`, initially 0.
    """

    def __init__(self, size: int, *, epsilon: float = 1e-5):
        """Args:
        size: of the last dimension.
        epsilon: added to the variance.
        """
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32), axes=("embed",))
        self.bias = nnx.Param(jnp.zeros((size,), jnp.float32), axes=("embed",))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "batch length embed"]) -> Float[Array, "batch length embed"]:
        """Computes in float32, returns the dtype of `x`."""
        return _layer_norm(x, self.scale[...], self.bias[...], self.epsilon)


# The backward passes keep the input alone: the steps in between are cheap, but as large as it.
@functools.partial(jax.checkpoint, static_argnums=2)
def _rms_norm(
    x: Float[Array, "batch length embed"], scale: Float[Array, "embed"], epsilon: float
) -> Float[Array, "batch length embed"]:
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean_square + epsilon) * scale).astype(x.dtype)


@functools.partial(jax.checkpoint, static_argnums=3)
def _layer_norm(
    x: Float[Array, "batch length embed"], scale: Float[Array, "embed"], bias: Float[Array, "embed"], epsilon: float
) -> Float[Array, "batch length embed"]:
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + epsilon) * scale + bias).astype(x.dtype)
