"""Products of the rows of a tile, queries or keys, with a vector for each distance to its columns.

A block of 128 rows and n columns has n + 127 distances, which are consecutive. The block is multiplied with this range
of a table, and row r then moves by 127 - r columns, so that its column c has the product with the vector of c - r.
"""

import dataclasses

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from t5x_like.kernels.fused_attention import tiles
from t5x_like.kernels.fused_attention.geometry import LANES, SUBLANES


@dataclasses.dataclass(frozen=True)
class Vectors:
    """The vectors of all distances of a tile, in a table or in its gradient.

    Attributes:
      ref: `[directions, heads · kv, relative]`.
      direction: Index of the table of the row.
      features: Features of the head.
      start: First entry. Distance column - row of a tile is entry column - row + number of rows - 1 from there on.
    """

    ref: Array
    direction: int | Int[Array, ""]
    features: slice
    start: Int[Array, ""]

    def _range(self, first: int, size: int):
        return self.direction, self.features, pl.ds(pl.multiple_of(self.start + first, LANES), size)

    def read(self, first: int, size: int) -> Float[Array, "kv size"]:
        """Returns the vectors of a range."""
        return self.ref[self._range(first, size)]

    def add(self, first: int, x: Float[Array, "kv size"]) -> None:
        """Adds to the vectors of a range."""
        self.ref[self._range(first, x.shape[1])] += x


def products(
    rows: Float[Array, "kv rows"], vectors: Vectors, columns: int, *, strided: bool
) -> list[Float[Array, "128 columns"]]:
    """Returns the products of each block of 128 rows with the vectors of the distances to all columns.

    Args:
      rows: Queries or keys.
      vectors: Vectors of the distances.
      columns: Number of columns, a multiple of 128.
      strided: Whether the core can rotate each row of a register by one more column, as since v5e.
    """
    return [
        _shift(tiles.dot_tn(block, vectors.read(first, columns + LANES)), columns, strided=strided)
        for first, block in _blocks(rows)
    ]


def gradients(
    gradient: Float[Array, "rows columns"],
    rows: Float[Array, "kv rows"],
    vectors: Vectors,
    total: Vectors,
    *,
    strided: bool,
) -> Float[Array, "kv rows"]:
    """Returns the gradient of the rows of `products`.

    Args:
      gradient: Gradient of the products.
      rows: Queries or keys.
      vectors: Vectors of the distances.
      total: Gradient of the vectors, to which the gradient of the tile is added.
      strided: See `products`.
    """
    parts, columns = [], gradient.shape[1]
    for index, (first, block) in enumerate(_blocks(rows)):
        moved = _unshift(gradient[index * LANES : (index + 1) * LANES], strided=strided).astype(rows.dtype)
        parts.append(tiles.dot_nt(vectors.read(first, columns + LANES), moved))
        total.add(first, tiles.dot(block, moved))
    return jnp.concatenate(parts, axis=1)


def _blocks(rows: Float[Array, "kv rows"]) -> list[tuple[int, Float[Array, "kv 128"]]]:
    """Returns blocks of 128 rows, each with the first entry of its range of the table."""
    number = rows.shape[1]
    return [(number - LANES - start, rows[:, start : start + LANES]) for start in range(0, number, LANES)]


def _shift(x: Float[Array, "128 range"], columns: int, *, strided: bool) -> Float[Array, "128 columns"]:
    """Returns column c + 127 - r of row r as its column c."""
    if strided:
        return pltpu.roll(x, x.shape[1] + 1 - LANES, 1, stride=1, stride_axis=0)[:, :columns]
    return _roll_rows(x, 1 - LANES, 1)[:, :columns]


def _unshift(x: Float[Array, "128 columns"], *, strided: bool) -> Float[Array, "128 range"]:
    """Returns the transpose of `_shift`."""
    x = jnp.concatenate([x, jnp.zeros((LANES, LANES), x.dtype)], axis=1)
    if not strided:
        return _roll_rows(x, LANES - 1, -1)
    # Later rows are rotated by less. With the rows of a register reversed, they are rotated by more.
    reversed_rows = _reverse_registers(x)
    registers = [
        pltpu.roll(reversed_rows[start : start + SUBLANES], LANES - SUBLANES - start, 1, stride=1, stride_axis=0)
        for start in range(0, LANES, SUBLANES)
    ]
    return _reverse_registers(jnp.concatenate(registers, axis=0))


def _reverse_registers(x: Float[Array, "128 range"]) -> Float[Array, "128 range"]:
    """Reverses the order of the rows in each group of eight, the rows of a vector register."""
    groups = x.reshape(-1, SUBLANES, x.shape[1])
    rows = SUBLANES - 1 - lax.broadcasted_iota(jnp.int32, groups.shape, 1)
    return jnp.take_along_axis(groups, rows, axis=1, mode="promise_in_bounds").reshape(x.shape)


def _roll_rows(x: Float[Array, "128 range"], first: int, step: int) -> Float[Array, "128 range"]:
    """Rotates row r to the right by `first + step * r` columns, without strided rotations.

    Rows whose index has the bit 1, 2 or 4 are selected from a rotated copy, and groups of eight rows are rotated.
    """
    size = x.shape[1]
    row = lax.broadcasted_iota(jnp.int32, x.shape, 0)
    for bit in tiles.BITS:
        x = jnp.where(row & bit != 0, pltpu.roll(x, step * bit % size, 1), x)
    groups = [
        pltpu.roll(x[start : start + SUBLANES], (first + step * start) % size, 1) for start in range(0, LANES, SUBLANES)
    ]
    return jnp.concatenate(groups, axis=0)
