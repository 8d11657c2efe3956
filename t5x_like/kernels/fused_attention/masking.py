"""Which weights of a tile of scores are visible and kept, for kernels of TPUs and GPUs."""

import functools
import math

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from t5x_like.kernels.dropout import mix_bits, threshold
from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.masks import MASK_VALUE

# An array with one entry per row or per column of a tile.
Positions = Int[Array, "rows 1"] | Int[Array, "1 columns"]


def visible(
    geometry: Geometry,
    queries: Positions,
    keys: Positions,
    query_segments: Positions | None,
    key_segments: Positions | None,
    prefix: Positions | None,
    query_ranks: Positions | None,
    key_ranks: Positions | None,
) -> Bool[Array, "rows columns"] | None:
    """Returns which keys of a tile are visible to which queries, or None if all are.

    Either queries or keys are the rows of the tile. All arrays have one entry per row or per column.

    Args:
      geometry: Sizes and the structure of the mask.
      queries: Positions of the queries.
      keys: Positions of the keys.
      query_segments: Segments of the queries.
      key_segments: Segments of the keys.
      prefix: 1 for keys that are visible regardless of `causal`.
      query_ranks: Ranks of the queries.
      key_ranks: Ranks of the keys.
    """
    conditions = []
    if geometry.causal:
        past = keys <= queries
        conditions.append(past if prefix is None else past | (prefix == 1))
    if geometry.window is not None and geometry.window_after is None:
        conditions.append(jnp.abs(queries - keys) < geometry.window)
    elif geometry.window is not None:
        conditions += [queries - keys < geometry.window, keys - queries < geometry.window_after]
    if geometry.ranks:
        conditions.append(key_ranks < query_ranks)
    if geometry.segments:
        conditions.append(key_segments == query_segments)
    elif geometry.padded_k != geometry.kv_len and not (geometry.causal and geometry.q_len <= geometry.kv_len):
        conditions.append(keys < geometry.kv_len)
    return functools.reduce(jnp.logical_and, conditions) if conditions else None


def hidden_logarithm(lse: Float[Array, "..."], geometry: Geometry) -> Float[Array, "..."] | float:
    """Returns the logarithm of the weight of keys that a query does not see.

    A query without visible keys averages all values, unless some blocks are skipped.

    Args:
      lse: Log-sum-exp of the scores of each query.
      geometry: Sizes and the structure of the mask.
    """
    if geometry.skips:
        return MASK_VALUE
    return jnp.where(lse > MASK_VALUE / 2, MASK_VALUE, -math.log(geometry.kv_len))


def keep(
    seeds: tuple[Int[Array, ""], Int[Array, ""]],
    head: Int[Array, ""],
    queries: Positions,
    keys: Positions,
    rate: float,
) -> Bool[Array, "rows columns"]:
    """Decides which attention weights of a head are kept, independently for each with probability `1 - rate`.

    A decision is a hash of the seeds and of the indices of the weight. It depends neither on blocks nor on devices, so
    the backward pass repeats the decisions of the forward pass.

    Args:
      seeds: Two words of random bits.
      head: Index of the row and the head in the whole batch, as one number.
      queries: Positions of the queries, as rows or as columns.
      keys: Positions of the keys, as the other ones.
      rate: Probability of dropping a weight.
    """
    row, column = mix_bits(mix_bits(head ^ seeds[0]) + queries), mix_bits(keys ^ seeds[1])
    bits = row ^ column
    # One more multiplication makes the decisions of the corners of a rectangle independent. All of `mix_bits` for each
    # weight takes half as long again in the backward pass, because vector units multiply integers slowly.
    bits = (bits ^ lax.shift_right_logical(bits, np.int32(15))) * np.int32(0x2C1B3C6D)
    return bits >= threshold(rate)
