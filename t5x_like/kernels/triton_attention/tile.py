"""A tile of scores, as all kernels compute it: blocks of positions, scores, weights, and their dropout."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int

from t5x_like.kernels.fused_attention import masking
from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.fused_attention.operands import NO_SEGMENT, Inputs
from t5x_like.kernels.masks import MASK_VALUE
from t5x_like.kernels.scoring import limited

LOG2_E = math.log2(math.e)
Scores = Float[Array, "rows columns"]


class Block(NamedTuple):
    """A block of queries or of keys. Arrays that the mask does not have are None.

    Attributes:
      positions: Positions, some of which may be after the last one.
      segments: Their segments.
      ranks: Their ranks.
      prefix: 1 for keys that are visible regardless of `causal`.
    """

    positions: Int[Array, " block"]
    segments: Int[Array, " block"] | None
    ranks: Int[Array, " block"] | None
    prefix: Int[Array, " block"] | None = None


def query_block(refs: Inputs, g: Geometry, row, i) -> Block:
    """Returns block `i` of the queries of a row."""
    read = lambda ref: None if ref is None else load(ref, g.q_len, i, g.block_q, before=(row,))  # noqa: E731
    return Block(_positions(i, g.block_q), read(refs.query_segments), read(refs.query_ranks))


def key_block(refs: Inputs, g: Geometry, row, j) -> Block:
    """Returns block `j` of the keys of a row."""

    def read(ref, other=0):
        return None if ref is None else load(ref, g.kv_len, j, g.block_k, before=(row,), other=other)

    segments = read(refs.key_segments, NO_SEGMENT)
    return Block(_positions(j, g.block_k), segments, read(refs.key_ranks), read(refs.prefix))


def load(ref, length: int, block, size: int, *, before: tuple, after: tuple = (), other: float = 0) -> Array:
    """Returns a block of positions of an array, with `other` after the last position.

    Args:
      ref: The array.
      length: Number of positions.
      block: Index of the block.
      size: Number of positions of the block.
      before: Indices of the dimensions before the positions.
      after: Indices of the dimensions after them.
      other: Value after the last position.
    """
    mask = _existing(length, block, size, after)
    given = ref.at[(*before, pl.ds(block * size, size), *after)]
    return plgpu.load(given) if mask is None else plgpu.load(given, mask=mask, other=other)


def store(ref, x: Array, length: int, block, *, before: tuple, after: tuple = ()) -> None:
    """Writes a block of positions, the inverse of `load`."""
    mask = _existing(length, block, len(x), after)
    plgpu.store(ref.at[(*before, pl.ds(block * len(x), len(x)), *after)], x.astype(ref.dtype), mask=mask)


def head(index) -> tuple:
    """Returns the indices after positions in `[batch, length, heads, kv]`."""
    return index, slice(None)


def exp(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns the exponentials. GPUs compute powers of 2, for which libdevice's `exp` takes seven instructions more."""
    return jnp.exp2(x * LOG2_E)


def _existing(length: int, block, size: int, after: tuple):
    """Returns which positions of a block exist, None for all."""
    if length % size == 0:
        return None
    mask = _positions(block, size) < length
    return mask[:, None] if after else mask


def _positions(block, size: int) -> Int[Array, " block"]:
    return block * size + lax.broadcasted_iota(jnp.int32, (size,), 0)


class Tile:
    """The scores of a block of queries and a block of keys of one head.

    Args:
      refs: The arrays of a device.
      g: Sizes.
      row: Index of the row.
      head: Index of the query head.
      queries: The queries.
      keys: The keys.
      transposed: Whether keys are the rows of the tile, instead of queries.
    """

    def __init__(self, refs: Inputs, g: Geometry, row, head, queries: Block, keys: Block, *, transposed: bool = False):
        self._refs, self._g, self._row, self._head, self._transposed = refs, g, row, head, transposed
        self._queries, self._keys = self.of_queries(queries.positions), self.of_keys(keys.positions)
        self._visible = masking.visible(
            g,
            self._queries,
            self._keys,
            query_segments=self.of_queries(queries.segments),
            key_segments=self.of_keys(keys.segments),
            prefix=self.of_keys(keys.prefix),
            query_ranks=self.of_queries(queries.ranks),
            key_ranks=self.of_keys(keys.ranks),
        )

    def of_queries(self, x: Array | None) -> Array | None:
        """Returns numbers of queries as a column, or as a row of a transposed tile."""
        return None if x is None else x[None] if self._transposed else x[:, None]

    def of_keys(self, x: Array | None) -> Array | None:
        """Returns numbers of keys as a row, or as a column of a transposed tile."""
        return None if x is None else x[:, None] if self._transposed else x[None]

    def products(self, of_queries: Float[Array, "q features"], of_keys: Float[Array, "k features"]) -> Scores:
        """Returns the products of an array of the queries and an array of the keys."""
        rows, columns = (of_keys, of_queries) if self._transposed else (of_queries, of_keys)
        return plgpu.dot(rows, columns.T)

    def of(self, query: Float[Array, "q features"], key: Float[Array, "k features"]) -> tuple[Scores, Scores | None]:
        """Returns the scores before the mask, and their derivative by the scaled products; None for 1."""
        g, score, derivative = self._g, self.products(query, key), None
        if g.scale != 1.0:
            score = score * g.scale
        if g.softcap is not None:
            score, derivative = limited(score, g.softcap)
        if g.biased:
            distance = self._keys - self._queries
            score = score + plgpu.load(self._refs.bias.at[self._head, distance + (g.padded_q - 1)])
        return score, derivative

    def masked(self, score: Scores) -> Scores:
        """Returns scores with `MASK_VALUE` for keys that a query does not see, and -inf for those that do not exist."""
        if self._visible is not None:
            score = jnp.where(self._visible, score, MASK_VALUE)
        return self._existing(score, -jnp.inf)

    def weights(self, score: Scores, lse: Float[Array, " queries"]) -> Scores:
        """Returns the attention weights.

        Args:
          score: Scores before the mask.
          lse: Log-sum-exp of the scores of each query, infinite after the last query.
        """
        lse = self.of_queries(lse)
        logarithm = score - lse
        if self._visible is not None:
            logarithm = jnp.where(self._visible, logarithm, masking.hidden_logarithm(lse, self._g))
        return self._existing(exp(logarithm), 0.0)

    def _existing(self, x: Scores, other: float) -> Scores:
        return x if self._g.padded_k == self._g.kv_len else jnp.where(self._keys < self._g.kv_len, x, other)

    def dropped(self, x: Scores) -> Scores:
        """Sets dropped entries to zero, without scaling the others."""
        if self._g.dropout_rate == 0.0:
            return x
        seeds = self._refs.seeds
        number = (seeds[2] + self._row) * seeds[4] + seeds[3] + self._head
        kept = masking.keep((seeds[0], seeds[1]), number, self._queries, self._keys, self._g.dropout_rate)
        return jnp.where(kept, x, 0.0)
