"""Symmetric quantization to integers, as of Q8BERT (Zafrir et al. 2019, arXiv:1910.06188), on arrays of qwix.

An array x becomes integers q = round(x / scale), clamped to ±LEVELS, with scale = max|x| / LEVELS. The integers of
`qwix.quantize` go from -128 to 127 with scale = max|x| / 127.5, so scales and integers are computed here, and qwix
computes the products and the way back.
"""

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int8, UInt8

from t5x_like import packages

# Integer type -> its largest integer.
LEVELS = {"int8": 127, "int4": 7}


def qwix() -> ModuleType:
    """Imports qwix.

    Raises:
      UserError: It is not installed.
    """
    return packages.require("qwix", "quantization", extra="quantization")


def scale_of(maximum: Float[Array, "..."], dtype: str) -> Float[Array, "..."]:
    """Returns the scale of arrays with a given largest absolute value: 1 where it is 0.

    Args:
      maximum: The largest absolute values.
      dtype: A key of `LEVELS`.
    """
    return jnp.where(maximum > 0, maximum / LEVELS[dtype], 1.0)


def scales(x: Float[Array, "..."], reduced: Sequence[int], dtype: str) -> Float[Array, "..."]:
    """Returns the scales of slices of an array, in float32.

    Args:
      x: The array.
      reduced: Dimensions that share a scale. They have size 1 in the result.
      dtype: A key of `LEVELS`.
    """
    return scale_of(jnp.max(jnp.abs(x.astype(jnp.float32)), axis=tuple(reduced), keepdims=True), dtype)


def quantize(x: Float[Array, "..."], scale: Float[Array, "..."], dtype: str) -> Any:
    """Returns a `qwix.QArray` with int8 integers and float32 scales, from which `qwix.dequantize` makes an array.

    Args:
      x: The array.
      scale: Scales of the same number of dimensions, whose sizes are those of `x` or 1.
      dtype: A key of `LEVELS`.
    """
    levels = LEVELS[dtype]
    integers = jnp.clip(jnp.round(x.astype(jnp.float32) / scale), -levels, levels).astype(jnp.int8)
    return qwix().QArray(integers, jnp.asarray(scale, jnp.float32))


def fake_quantize(x: Float[Array, "..."], scale: Float[Array, "..."], dtype: str) -> Float[Array, "..."]:
    """Rounds an array to the values that its integers stand for. The gradient is passed on as if nothing was rounded.

    The gradient is the straight-through estimator (Bengio et al. 2013, arXiv:1308.3432), also outside of ±max.

    Args:
      x: The array.
      scale: See `quantize`; without gradient.
      dtype: A key of `LEVELS`.

    Returns:
      The rounded array, in the dtype of `x`.
    """
    rounded = qwix().dequantize(quantize(x, scale, dtype)).astype(x.dtype)
    return straight_through(x, jax.lax.stop_gradient(rounded))


@jax.custom_jvp
def straight_through(x: Float[Array, "..."], rounded: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns `rounded`, with the gradient of `x`."""
    del x
    return rounded


@straight_through.defjvp
def _straight_through_jvp(primals, tangents):
    return primals[1], tangents[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def observe(x: Float[Array, "..."], range_: Float[Array, " 2"], rate: float) -> Float[Array, "..."]:
    """Returns `x`, whose largest absolute value m is the "gradient" of a range: (rate · m, rate).

    Arrays inside a scanned or rematerialized layer leave it as gradients of its parameters alone.

    Args:
      x: An activation.
      range_: A moving average; see `updated`.
      rate: Weight of m in the average.
    """
    del range_, rate
    return x


def _observe_forward(x, range_, rate):
    maximum = jnp.max(jnp.abs(x)).astype(jnp.float32)
    return x, maximum


def _observe_backward(rate, maximum, dx):
    return dx, rate * jnp.stack([maximum, jnp.ones((), jnp.float32)])


observe.defvjp(_observe_forward, _observe_backward)


def updated(range_: Float[Array, "... 2"], observed: Float[Array, "... 2"]) -> Float[Array, "... 2"]:
    """Updates a range by the sum of the observations of a batch.

    Args:
      range_: The moving average of the largest absolute values, and the sum of their weights: 0 before the first batch.
      observed: The sums of the pairs of `observe`.

    Returns:
      average + min(Σ rate, 1) · (mean of m - average), and the sum of the weights; the average of the first batch is
      its own mean. The minimum matters where an array is observed more than 1 / rate times in a batch, as in a layer
      that is applied many times: the average would overshoot.
    """
    average, weight = range_[..., 0], range_[..., 1]
    total, rate = observed[..., 0], observed[..., 1]
    mean = total / jnp.where(rate > 0, rate, 1.0)
    moved = average + jnp.minimum(rate, 1.0) * (mean - average)
    return jnp.stack([jnp.where(weight > 0, moved, mean), weight + rate], axis=-1)


def pack(integers: Int8[Array, "... n"]) -> UInt8[Array, "... n/2"]:
    """Packs pairs of integers of 4 bits into bytes, the first one into the lower half.

    Args:
      integers: Integers from -8 to 7; the last dimension is even.
    """
    pairs = integers.astype(jnp.int4).reshape(*integers.shape[:-1], -1, 2)
    return jax.lax.bitcast_convert_type(pairs, jnp.uint8)


def unpack(packed: UInt8[Array, "... n/2"]) -> Int8[Array, "... n"]:
    """Inverts `pack`."""
    pairs = jax.lax.bitcast_convert_type(packed, jnp.int4).astype(jnp.int8)
    return pairs.reshape(*packed.shape[:-1], -1)
