"""The arrays of an attention problem, and the blocks of them that a step of the kernels reads."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from t5x_like.kernels.fused_attention.geometry import Geometry

# A segment that no query has: the segment of padding keys and of keys that are not valid.
NO_SEGMENT = -(2**30)


class Inputs(NamedTuple):
    """Arrays of the global batch; the optional ones may be None.

    Attributes:
      q: Queries.
      k: Keys.
      v: Values.
      bias: `ScoreTerms.diagonals`.
      query_segments: Segments of the queries.
      key_segments: Segments of the keys, `NO_SEGMENT` for keys that are not valid.
      prefix: 1 for keys that are visible regardless of `causal`.
      seeds: Two words of random bits for dropout.
      global_k: Keys that queries see outside of their window.
      global_v: Values of these keys.
      global_segments: Their segments, `NO_SEGMENT` for none.
      global_positions: Their positions.
      query_table, key_table, direction, content_bias, position_bias, same_type, query_types, key_types: See
        `ScoreTerms`.
      query_ranks: Ranks of the queries.
      key_ranks: Ranks of the keys, which queries of higher ranks see.
      block_lists: `BlockLists.keys` of each head.
    """

    q: Float[Array, "batch q_len heads kv"]
    k: Float[Array, "batch kv_len kv_heads kv"]
    v: Float[Array, "batch kv_len kv_heads kv"]
    bias: Float[Array, "heads relative"] | None = None
    query_segments: Int[Array, "batch q_len"] | None = None
    key_segments: Int[Array, "batch kv_len"] | None = None
    prefix: Int[Array, "batch kv_len"] | None = None
    seeds: Int[Array, " 2"] | None = None
    global_k: Float[Array, "batch global kv_heads kv"] | None = None
    global_v: Float[Array, "batch global kv_heads kv"] | None = None
    global_segments: Int[Array, "batch global"] | None = None
    global_positions: Int[Array, "batch global"] | None = None
    query_table: Float[Array, "directions relative heads kv"] | None = None
    key_table: Float[Array, "directions relative heads kv"] | None = None
    direction: Int[Array, " batch"] | None = None
    content_bias: Float[Array, "heads kv"] | None = None
    position_bias: Float[Array, "heads kv"] | None = None
    same_type: Float[Array, "batch heads q_len"] | None = None
    query_types: Int[Array, "batch q_len"] | None = None
    key_types: Int[Array, "batch kv_len"] | None = None
    query_ranks: Int[Array, "batch q_len"] | None = None
    key_ranks: Int[Array, "batch kv_len"] | None = None
    block_lists: Int[Array, "heads query_blocks listed"] | None = None


class Operands(NamedTuple):
    """Inputs of both passes. Lengths are whole blocks, and heads are joined with their dimension.

    Positions are the last dimension: XLA computes projections to heads of 64 in this layout, which has no padding, and
    transposes copies of them for a kernel that reads another one.

    Attributes:
      q: Queries.
      k: Keys.
      v: Values.
      bias: Entry `query - key + key_distances - 1` is the bias at these positions; None without bias.
      query_segments: Segments of the queries; None if no key is masked by segments.
      key_segments: Segments of the keys; `NO_SEGMENT` for keys that no query sees.
      prefix: 1 for keys that are visible regardless of `causal`; None without prefix.
      seeds: Two words of random bits, the first row and head of this device, and the number of all heads; None without
        dropout.
      query_table: Entry `key - query + query_distances - 1` is multiplied with the query at these positions.
      key_table: Entry `query - key + key_distances - 1` is multiplied with the key at these positions.
      direction, content_bias, position_bias, same_type, query_types, key_types: See `ScoreTerms`.
      query_ranks, key_ranks: See `Inputs`.
    """

    q: Float[Array, "batch heads_kv q_len"]
    k: Float[Array, "batch kv_heads_kv kv_len"]
    v: Float[Array, "batch kv_heads_kv kv_len"]
    bias: Float[Array, "heads 1 relative"] | None = None
    query_segments: Int[Array, "batch 1 q_len"] | None = None
    key_segments: Int[Array, "batch 1 kv_len"] | None = None
    prefix: Int[Array, "batch 1 kv_len"] | None = None
    seeds: Int[Array, " 5"] | None = None
    query_table: Float[Array, "directions heads_kv relative"] | None = None
    key_table: Float[Array, "directions heads_kv relative"] | None = None
    direction: Int[Array, " batch"] | None = None
    content_bias: Float[Array, "heads_kv 1"] | None = None
    position_bias: Float[Array, "heads_kv 1"] | None = None
    same_type: Float[Array, "batch heads 1 q_len"] | None = None
    query_types: Int[Array, "batch 1 q_len"] | None = None
    key_types: Int[Array, "batch 1 kv_len"] | None = None
    query_ranks: Int[Array, "batch 1 q_len"] | None = None
    key_ranks: Int[Array, "batch 1 kv_len"] | None = None


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Blocks of arrays, for a grid whose indices are mapped to row, group of heads, and blocks of queries and keys.

    Attributes:
      geometry: Sizes.
      at: Maps the indices of the grid to `(row, head_step, q_block, k_block)`.
    """

    geometry: Geometry
    at: Callable

    def _spec(self, shape, index):
        return pl.BlockSpec(shape, lambda *grid: index(*self.at(*grid)))

    @property
    def q(self) -> pl.BlockSpec:
        """A block of queries, or of an array with their shape."""
        g = self.geometry
        return self._spec((1, g.step_heads * g.head_dim, g.block_q), lambda b, h, i, j: (b, h, i))

    @property
    def k(self) -> pl.BlockSpec:
        """A block of keys, or of an array with their shape."""
        g = self.geometry
        return self._spec((1, g.step_kv_heads * g.head_dim, g.block_k), lambda b, h, i, j: (b, h, j))

    @property
    def statistics(self) -> pl.BlockSpec:
        """A block of `[batch, heads, 1, q_len]`."""
        g = self.geometry
        return self._spec((1, g.step_heads, 1, g.block_q), lambda b, h, i, j: (b, h, 0, i))

    @property
    def table(self) -> pl.BlockSpec:
        """All distances of the heads of a step, of a table or of its gradient."""
        g = self.geometry
        shape = (g.directions, g.step_heads * g.head_dim, g.distances)
        return self._spec(shape, lambda b, h, i, j: (0, h, 0))

    @property
    def query_bias(self) -> pl.BlockSpec:
        """A bias of the queries of the heads of a step, or its gradient."""
        g = self.geometry
        return self._spec((g.step_heads * g.head_dim, 1), lambda b, h, i, j: (h, 0))

    def inputs(self, operands: Operands) -> Operands:
        """Returns the blocks of all operands that are given."""
        g = self.geometry
        keys = self._spec((1, 1, g.block_k), lambda b, h, i, j: (b, 0, j))
        queries = self._spec((1, 1, g.block_q), lambda b, h, i, j: (b, 0, i))
        specs = Operands(
            q=self.q,
            k=self.k,
            v=self.k,
            bias=self._spec((g.step_heads, 1, g.distances), lambda b, h, i, j: (h, 0, 0)),
            query_segments=queries,
            key_segments=keys,
            prefix=keys,
            seeds=pl.BlockSpec(memory_space=pltpu.SMEM),
            query_table=self.table,
            key_table=self.table,
            direction=pl.BlockSpec(memory_space=pltpu.SMEM),
            content_bias=self.query_bias,
            position_bias=self.query_bias,
            same_type=self.statistics,
            query_types=queries,
            key_types=keys,
            query_ranks=queries,
            key_ranks=keys,
        )
        return Operands(*(None if x is None else spec for x, spec in zip(operands, specs, strict=True)))


def inner_products(
    output: Float[Array, "batch q_len heads kv"], gradient: Float[Array, "batch q_len heads kv"]
) -> Float[Array, "batch heads q_len"]:
    """Returns the inner product of the output of each query and its gradient, D of Dao et al. 2022, in float32."""
    product = output.astype(jnp.float32) * gradient.astype(jnp.float32)
    return jnp.moveaxis(jnp.sum(product, axis=-1), 1, 2)


def pad(x: jax.Array, axis: int, size: int, value=0) -> jax.Array:
    """Pads a dimension at its end to `size`."""
    if x.shape[axis] == size:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return jnp.pad(x, widths, constant_values=value)


def joined(x: jax.Array, length: int):
    """Returns `[batch, length, heads, kv]` as `[batch, heads · kv, length]`, with padded positions."""
    x = jnp.moveaxis(x, 1, 3)
    return pad(x.reshape(len(x), -1, x.shape[3]), 2, length)


def separated(x: jax.Array, shape: tuple[int, ...]):
    """Returns the inverse of `joined`, with a shape `[batch, length, heads, kv]`."""
    batch, length, heads, head_dim = shape
    return jnp.moveaxis(x[..., :length].reshape(batch, heads, head_dim, length), 3, 1)
