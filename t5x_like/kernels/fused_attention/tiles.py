"""What the kernels compute for a tile of scores `[keys, queries]`: products and biases.

Tiles have keys as rows, so that the statistics of a query are a row vector, which a reduction over rows returns and
which is stored without padding.
"""

import functools

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from t5x_like.kernels.fused_attention.geometry import LANES, SUBLANES, Geometry

_dot = functools.partial(lax.dot_general, preferred_element_type=jnp.float32)


def dot(a: Float[Array, "m c"], b: Float[Array, "c n"]) -> Float[Array, "m n"]:
    """Returns `a · b` in float32."""
    return _dot(a, b, (((1,), (0,)), ((), ())))


def dot_nt(a: Float[Array, "m c"], b: Float[Array, "n c"]) -> Float[Array, "m n"]:
    """Returns `a · bᵀ` in float32."""
    return _dot(a, b, (((1,), (1,)), ((), ())))


def dot_tn(a: Float[Array, "c m"], b: Float[Array, "c n"]) -> Float[Array, "m n"]:
    """Returns `aᵀ · b` in float32."""
    return _dot(a, b, (((0,), (0,)), ((), ())))


def column(row: Int[Array, "1 n"]) -> Int[Array, "n 1"]:
    """Returns a row vector as a column; only whole registers can be transposed."""
    return jnp.broadcast_to(row, (LANES, row.shape[1])).T[:, :1]


def positions(geometry: Geometry, i, j) -> tuple[Int[Array, "1 queries"], Int[Array, "keys 1"]]:
    """Returns the positions of the queries of block `i` as a row, and of the keys of block `j` as a column."""
    queries = i * geometry.block_q + lax.broadcasted_iota(jnp.int32, (1, geometry.block_q), 1)
    return queries, j * geometry.block_k + lax.broadcasted_iota(jnp.int32, (geometry.block_k, 1), 0)


def bias_tile(values: Float[Array, "1 relative"], geometry: Geometry) -> Float[Array, "keys queries"]:
    """Expands a slice of the biases to the tile of a head, whose diagonals are constant.

    Args:
      values: Entry `query - key + block_k - 1` is the bias of a query and a key of the tile.
      geometry: Sizes.
    """
    rows, columns = geometry.block_k // LANES, geometry.block_q // LANES
    # Blocks of 128 x 128 on the same diagonal are equal.
    diagonals = [
        _expand(values[:, start : start + 2 * LANES]) for start in range(0, (rows + columns - 1) * LANES, LANES)
    ]
    tile_rows = [
        jnp.concatenate([diagonals[column - row + rows - 1] for column in range(columns)], axis=1)
        for row in range(rows)
    ]
    return jnp.concatenate(tile_rows, axis=0)


def bias_gradient(gradient: Float[Array, "keys queries"], geometry: Geometry) -> Float[Array, "1 relative"]:
    """Sums a tile over its diagonals, the transpose of `bias_tile`.

    Args:
      gradient: Gradient of the scores of a head.
      geometry: Sizes.
    """
    rows, columns = geometry.block_k // LANES, geometry.block_q // LANES
    total = [jnp.zeros((1, LANES), jnp.float32)] * (rows + columns)
    for diagonal in range(rows + columns - 1):
        blocks = [
            gradient[row * LANES : (row + 1) * LANES, column * LANES : (column + 1) * LANES]
            for row in range(rows)
            if 0 <= (column := diagonal + row - rows + 1) < columns
        ]
        sums = _contract(functools.reduce(jnp.add, blocks))
        total[diagonal] += sums[:, :LANES]
        total[diagonal + 1] += sums[:, LANES:]
    return jnp.concatenate(total, axis=1)


# A row of a block starts one entry earlier than the row before. Rows are rotated in groups of 1, 2, 4 … 64, so that
# each of the 128 rows is rotated once.
BITS, _GROUPS = (1, 2, 4), (8, 16, 32, 64)


def _expand(values: Float[Array, "1 256"]) -> Float[Array, "128 128"]:
    """Returns the block whose row b consists of the entries from `127 - b` on."""
    block = jnp.broadcast_to(pltpu.roll(values, LANES + 1, 1), (SUBLANES, 2 * LANES))
    row = lax.broadcasted_iota(jnp.int32, block.shape, 0)
    for bit in BITS:
        block = jnp.where(row & bit != 0, pltpu.roll(block, bit, 1), block)
    for size in _GROUPS:
        block = jnp.concatenate([block, pltpu.roll(block, size, 1)], axis=0)
    return block[:, :LANES]


def _contract(block: Float[Array, "128 128"]) -> Float[Array, "1 256"]:
    """Sums a block over its diagonals, the transpose of `_expand`."""
    block = jnp.concatenate([block, jnp.zeros_like(block)], axis=1)
    for size in reversed(_GROUPS):
        block = block[:size] + pltpu.roll(block[size:], 2 * LANES - size, 1)
    row = lax.broadcasted_iota(jnp.int32, block.shape, 0)
    for bit in BITS:
        block = jnp.where(row & bit != 0, pltpu.roll(block, 2 * LANES - bit, 1), block)
    return pltpu.roll(jnp.sum(block, axis=0, keepdims=True), LANES - 1, 1)
