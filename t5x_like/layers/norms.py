"""Normalization over the last dimension: RMSNorm and LayerNorm; and NoNorm, which replaces it by an affine map."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.axis_rules import EMBED_VECTOR


class RMSNorm(nnx.Module):
    """Divides by the root mean square and multiplies by a learned scale (Zhang & Sennrich 2019, equation 4).

    Args:
      size: size of the last dimension.
      epsilon: added to the mean square.

    Attributes:
      scale: float32 `[embed]`, initially 1.
    """

    def __init__(self, size: int, *, epsilon: float = 1e-6):
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32), axes=(EMBED_VECTOR,))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "batch length embed"]) -> Float[Array, "batch length embed"]:
        """Normalizes `x` in float32 and returns the result in the dtype of `x`."""
        return _rms_norm(x, self.scale[...], self.epsilon)


class LayerNorm(nnx.Module):
    """Normalizes to zero mean and unit variance, then applies a learned scale and bias (Ba et al. 2016).

    Args:
      size: size of the last dimension.
      epsilon: added to the variance.

    Attributes:
      scale: float32 `[embed]`, initially 1.
      bias: float32 `[embed]`, initially 0.
    """

    def __init__(self, size: int, *, epsilon: float = 1e-5):
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32), axes=(EMBED_VECTOR,))
        self.bias = nnx.Param(jnp.zeros((size,), jnp.float32), axes=(EMBED_VECTOR,))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "batch length embed"]) -> Float[Array, "batch length embed"]:
        """Normalizes `x` in float32 and returns the result in the dtype of `x`."""
        return _layer_norm(x, self.scale[...], self.bias[...], self.epsilon)


class NoNorm(nnx.Module):
    """Applies a learned scale and bias without normalizing (Sun et al. 2020, arXiv:2004.02984, equation 6).

    Args:
      size: size of the last dimension.

    Attributes:
      scale: float32 `[embed]`, initially 1.
      bias: float32 `[embed]`, initially 0.
    """

    def __init__(self, size: int):
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32), axes=(EMBED_VECTOR,))
        self.bias = nnx.Param(jnp.zeros((size,), jnp.float32), axes=(EMBED_VECTOR,))

    def __call__(self, x: Float[Array, "batch length embed"]) -> Float[Array, "batch length embed"]:
        """Computes `scale * x + bias` in float32 and returns the result in the dtype of `x`."""
        return (x.astype(jnp.float32) * self.scale[...] + self.bias[...]).astype(x.dtype)


# The backward passes save only the input. The intermediate values are as large as the input and cheap to recompute.
@functools.partial(jax.checkpoint, static_argnums=2)
def _rms_norm(
    x: Float[Array, "batch length embed"], scale: Float[Array, " embed"], epsilon: float
) -> Float[Array, "batch length embed"]:
    x_float32 = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x_float32), axis=-1, keepdims=True)
    return (x_float32 * jax.lax.rsqrt(mean_square + epsilon) * scale).astype(x.dtype)


@functools.partial(jax.checkpoint, static_argnums=3)
def _layer_norm(
    x: Float[Array, "batch length embed"], scale: Float[Array, " embed"], bias: Float[Array, " embed"], epsilon: float
) -> Float[Array, "batch length embed"]:
    x_float32 = x.astype(jnp.float32)
    centered = x_float32 - jnp.mean(x_float32, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
    return (centered * jax.lax.rsqrt(variance + epsilon) * scale + bias).astype(x.dtype)
