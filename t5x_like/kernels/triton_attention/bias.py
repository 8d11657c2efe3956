"""Biases by head and distance: the vector that the kernels read, and its gradient from sums of tiles."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.relative_bias import toeplitz


def padded(values: Float[Array, "heads given"], g: Geometry) -> Float[Array, "heads relative"]:
    """Returns biases with an entry for each distance in whole blocks.

    Args:
      values: `ScoreTerms.diagonals`.
      g: Sizes.

    Returns:
      Entry `key - query + padded_q - 1` is the bias at these positions.
    """
    return jnp.pad(values.astype(jnp.float32), ((0, 0), (g.padded_q - g.q_len, g.padded_k - g.kv_len)))


def diagonals(g: Geometry) -> range:
    """Returns the numbers of blocks, of queries minus keys, by which visible blocks differ. Blocks are squares."""
    before = [(i - last, i - first) for i in range(g.q_blocks) for first, last in [g.k_range(i)] if first <= last]
    return range(min(low for low, _ in before), max(high for _, high in before) + 1)


def gradient(tiles: Float[Array, "heads diagonals queries keys"], g: Geometry) -> Float[Array, "heads given"]:
    """Returns the gradient of the biases from the gradients of the scores.

    Args:
      tiles: Sum over the tiles of each of `diagonals`.
      g: Sizes.
    """
    heads, count, size, _ = tiles.shape
    shape = jax.ShapeDtypeStruct((heads * count, 2 * size - 1), tiles.dtype)
    (sums,) = jax.linear_transpose(lambda values: toeplitz(values, size, size), shape)(tiles.reshape(-1, size, size))
    # Of the keys before, from far to near. The distances of a tile overlap with those of the next one.
    sums = sums.reshape(heads, count, -1)[:, ::-1]
    near, far = sums[..., :size], jnp.pad(sums[..., size:], ((0, 0), (0, 0), (0, 1)))
    after = lambda x, blocks: jnp.pad(x, ((0, 0), blocks, (0, 0)))  # noqa: E731
    total = (after(near, (0, 1)) + after(far, (1, 0))).reshape(heads, -1)
    lowest = -diagonals(g)[-1] * size - (size - 1)  # the distance of the first entry
    before = g.q_len - 1 + lowest
    return jax.lax.pad(total, 0.0, [(0, 0, 0), (before, g.q_len + g.kv_len - 1 - total.shape[1] - before, 0)])
