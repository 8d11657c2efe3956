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
      size: Size of the last dimension.
      epsilon: Added to the mean square.
      axis: Logical axis of the last dimension.

    Attributes:
      scale: float32 `[embed]`, initially 1.
    """

    # Value of `scale` in a new norm, and what is added to it when it is applied.
    INITIAL, OFFSET = 1.0, 0.0

    def __init__(self, size: int, *, epsilon: float = 1e-6, axis: str = EMBED_VECTOR):
        self.scale = nnx.Param(jnp.full((size,), self.INITIAL, jnp.float32), axes=(axis,))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "batch length ..."]) -> Float[Array, "batch length ..."]:
        """Normalizes `x` in float32 and returns the result in the dtype of `x`."""
        scale = self.scale[...]
        return _rms_norm(x, scale + self.OFFSET if self.OFFSET else scale, self.epsilon)


class UnitOffsetRMSNorm(RMSNorm):
    """RMSNorm that multiplies by 1 + scale, as in Gemma (Gemma Team 2024, arXiv:2403.08295), so that decay leads to 1.

    Attributes:
      scale: float32 `[embed]`, initially 0.
    """

    INITIAL, OFFSET = 0.0, 1.0


class ProjectionNorm(nnx.Module):
    """RMSNorm of the queries or keys of all heads together, as in OLMo 2 (OLMo Team 2024, arXiv:2501.00656).

    Args:
      heads: Number of heads.
      head_dim: Size of the queries or keys of a head.
      epsilon: Added to the mean square.
      axis: Logical axis of the heads.

    Attributes:
      scale: float32 `[heads, kv]`, initially 1.
    """

    def __init__(self, heads: int, head_dim: int, *, epsilon: float, axis: str):
        self.scale = nnx.Param(jnp.ones((heads, head_dim), jnp.float32), axes=(axis, "kv"))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "batch length heads kv"]) -> Float[Array, "batch length heads kv"]:
        """Normalizes `x` in float32, in which each head may be repeated (`head_exchange.kv_head_copies`)."""
        scale = self.scale[...]
        scale = jnp.repeat(scale, x.shape[-2] // len(scale), axis=0)
        return _rms_norm(x.reshape(*x.shape[:-2], -1), scale.reshape(-1), self.epsilon).reshape(x.shape)


class LayerNorm(nnx.Module):
    """Normalizes to zero mean and unit variance, then applies a learned scale and bias (Ba et al. 2016).

    Args:
      size: Size of the last dimension.
      epsilon: Added to the variance.
      bias: Whether a bias is added.
      scale: Whether there is a scale.

    Attributes:
      scale: float32 `[embed]`, initially 1; only if the norm has a scale.
      bias: float32 `[embed]`, initially 0; only if the norm has a bias.
    """

    def __init__(self, size: int, *, epsilon: float = 1e-5, bias: bool = True, scale: bool = True):
        if scale:
            self.scale = nnx.Param(jnp.ones((size,), jnp.float32), axes=(EMBED_VECTOR,))
        if bias:
            self.bias = nnx.Param(jnp.zeros((size,), jnp.float32), axes=(EMBED_VECTOR,))
        self.epsilon, self.has_bias, self.has_scale = epsilon, bias, scale

    def __call__(self, x: Float[Array, "batch length embed"]) -> Float[Array, "batch length embed"]:
        """Normalizes `x` in float32 and returns the result in the dtype of `x`."""
        scale = self.scale[...] if self.has_scale else jnp.ones(x.shape[-1:], jnp.float32)
        return _layer_norm(x, scale, self.bias[...] if self.has_bias else jnp.zeros_like(scale), self.epsilon)


class NoNorm(nnx.Module):
    """Applies a learned scale and bias without normalizing (Sun et al. 2020, arXiv:2004.02984, equation 6).

    Args:
      size: Size of the last dimension.

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


# The backward passes save the input and a few numbers per position. The gradients follow from derivatives of the
# normalized activations n: the gradient of the input is orthogonal to n, and for LayerNorm also to a constant.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rms_norm(
    x: Float[Array, "batch length embed"], scale: Float[Array, " embed"], epsilon: float
) -> Float[Array, "batch length embed"]:
    return _rms_norm_forward(x, scale, epsilon)[0]


def _rms_norm_forward(x, scale, epsilon):
    x_float32 = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(x_float32), axis=-1, keepdims=True) + epsilon)
    return (x_float32 * inverse * scale).astype(x.dtype), (x, scale, inverse)


def _rms_norm_backward(epsilon, residuals, gradient):
    x, scale, inverse = residuals
    normalized, gradient = x.astype(jnp.float32) * inverse, gradient.astype(jnp.float32)
    dscale = _sum_over_positions(gradient * normalized)
    gradient *= scale
    dx = inverse * (gradient - normalized * jnp.mean(gradient * normalized, axis=-1, keepdims=True))
    return dx.astype(x.dtype), dscale


_rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _layer_norm(
    x: Float[Array, "batch length embed"], scale: Float[Array, " embed"], bias: Float[Array, " embed"], epsilon: float
) -> Float[Array, "batch length embed"]:
    return _layer_norm_forward(x, scale, bias, epsilon)[0]


def _layer_norm_forward(x, scale, bias, epsilon):
    x_float32 = x.astype(jnp.float32)
    mean = jnp.mean(x_float32, axis=-1, keepdims=True)
    centered = x_float32 - mean
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(centered), axis=-1, keepdims=True) + epsilon)
    return (centered * inverse * scale + bias).astype(x.dtype), (x, scale, mean, inverse)


def _layer_norm_backward(epsilon, residuals, gradient):
    x, scale, mean, inverse = residuals
    normalized, gradient = (x.astype(jnp.float32) - mean) * inverse, gradient.astype(jnp.float32)
    dscale, dbias = _sum_over_positions(gradient * normalized), _sum_over_positions(gradient)
    gradient *= scale
    along = jnp.mean(gradient * normalized, axis=-1, keepdims=True)
    dx = inverse * (gradient - jnp.mean(gradient, axis=-1, keepdims=True) - normalized * along)
    return dx.astype(x.dtype), dscale, dbias


_layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


def _sum_over_positions(x: Float[Array, "*batch embed"]) -> Float[Array, " embed"]:
    return jnp.sum(x, axis=tuple(range(x.ndim - 1)))
