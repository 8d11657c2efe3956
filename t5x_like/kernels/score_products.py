"""The two products of attention with plain matrix products: scores, and averages of the values.

On CPU, heads come before positions in the operands of both products and of their gradients, so that XLA transposes
queries, keys, values and results in memory, and never an array of the size of the scores. Where the scores of a head
are smaller than its keys, as in a step of decoding, XLA's own order is better: it transposes the scores.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.kernels.contraction import widened

# Dimensions of products per row and head.
_BATCH = ((0, 1), (0, 1))


def scores(
    q: Float[Array, "batch q_len kv_heads group kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    *,
    platform: str | None = None,
) -> Float[Array, "batch kv_heads group q_len kv_len"]:
    """Computes the inner products of queries and keys in float32.

    Args:
      q: Queries; each key head serves a group of query heads.
      k: Keys.
      platform: Platform that the program is compiled for; by default the platform of the bound partitioner's devices.

    Returns:
      Scores.
    """
    batch, q_len, kv_heads, group, size = q.shape
    if not _heads_first(group * q_len, size, platform):
        return widened(_scores, q, k, jnp.float32, platform=platform)
    rows = q.transpose(0, 2, 3, 1, 4).reshape(batch, kv_heads, group * q_len, size)
    products = lax.dot_general(rows, k.swapaxes(1, 2), (((3,), (3,)), _BATCH), preferred_element_type=jnp.float32)
    return products.reshape(batch, kv_heads, group, q_len, -1)


def _scores(q: Array, k: Array, *, result_dtype: DTypeLike | None) -> Array:
    return jnp.einsum("bqhgd,bkhd->bhgqk", q, k, preferred_element_type=result_dtype)


def averages(
    weights: Float[Array, "batch kv_heads group q_len kv_len"],
    v: Float[Array, "batch kv_len kv_heads kv"],
    *,
    platform: str | None = None,
) -> Float[Array, "batch q_len kv_heads group kv"]:
    """Averages values.

    Args:
      weights: Attention weights in the dtype of the values.
      v: Values.
      platform: As for `scores`.

    Returns:
      Averages.
    """
    batch, kv_heads, group, q_len, kv_len = weights.shape
    if not _heads_first(group * q_len, v.shape[-1], platform):
        return jnp.einsum("bhgqk,bkhd->bqhgd", weights, v)
    rows = average(weights.reshape(batch, kv_heads, group * q_len, kv_len), v.swapaxes(1, 2))
    return rows.reshape(batch, kv_heads, group, q_len, -1).transpose(0, 3, 1, 2, 4)


def for_all_rows(
    bias: Float[Array, "1 kv_heads group q_len kv_len"], rows: int, *, platform: str | None = None
) -> Float[Array, "batch kv_heads group q_len kv_len"]:
    """Repeats a bias for all rows.

    On CPU, its gradient is computed as a product with ones: the sum over the first dimension that JAX derives runs at
    a fiftieth of the speed (YNNPACK in jaxlib 0.10).

    Args:
      bias: A bias that the rows share.
      rows: Number of rows.
      platform: As for `scores`.

    Returns:
      The bias of each row.
    """
    if (platform or partitioning.bound_platform()) == "cpu":
        return _repeat(bias, rows)
    return jnp.broadcast_to(bias, (rows, *bias.shape[1:]))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _repeat(x: Array, rows: int) -> Array:
    return jnp.broadcast_to(x, (rows, *x.shape[1:]))


def _repeat_backward(rows: int, _: None, dy: Array) -> tuple[Array]:
    return (lax.dot_general(jnp.ones((1, rows), dy.dtype), dy, (((1,), (0,)), ((), ()))),)


_repeat.defvjp(lambda x, rows: (_repeat(x, rows), None), _repeat_backward)


def _heads_first(queries: int, size: int, platform: str | None) -> bool:
    """Returns whether heads of a size come before positions, given the number of queries of a row and a key head."""
    is_cpu = (platform or partitioning.bound_platform()) == "cpu"
    # A group of queries and their positions cannot become one dimension where positions are sharded.
    return is_cpu and queries > size and partitioning.axis_size("length") == 1


@jax.custom_vjp
def average(weights: Float[Array, "*rows q k"], v: Float[Array, "*rows k kv"]) -> Float[Array, "*rows q kv"]:
    """Averages the values of each row, with a gradient that transposes nothing of the size of the weights.

    Args:
      weights: Attention weights in the dtype of the values.
      v: Values.

    Returns:
      Averages.
    """
    return _product(weights, v, (1, 0))


def _product(x: Array, y: Array, contracted: tuple[int, int]) -> Array:
    """Contracts one of the last two dimensions of `x`, 0 or 1, with one of `y`, for each row of both."""
    rows = tuple(range(x.ndim - 2))
    dims = tuple((len(rows) + dim,) for dim in contracted)
    return lax.dot_general(x, y, (dims, (rows, rows)))


def _average_forward(weights: Array, v: Array) -> tuple[Array, Any]:
    return average(weights, v), (weights, v)


def _average_backward(residuals: Any, dy: Array) -> tuple[Array, Array]:
    weights, v = residuals
    dweights = _product(dy, v, (1, 1))
    # The transpose of weightsᵀ · dy, which JAX derives: it is as small as the values, the weights are not.
    return dweights, jnp.swapaxes(_product(dy, weights, (0, 0)), -1, -2)


average.defvjp(_average_forward, _average_backward)
