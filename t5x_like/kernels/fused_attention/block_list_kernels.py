"""The kernels of lists of blocks: the forward pass, and the backward pass, which recomputes the attention weights.

Heads of 64 fill half of the lanes of a register. The kernels therefore hold keys and values side by side, as one row
`[key | value]` per position, of which any block is a slice of rows. A product with rows `[query | 0]` returns scores,
and one with attention weights returns `[… | output]`. In the backward pass, rows `[query | 0]` and `[0 | gradient]`
return the scores and the gradients of the weights at once, and their transposed product with these gradients the
gradients of keys and values.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

from t5x_like.kernels.fused_attention import costs, masking, tiles
from t5x_like.kernels.fused_attention.geometry import LANES, ListGeometry
from t5x_like.kernels.fused_attention.operands import NO_SEGMENT
from t5x_like.kernels.masks import MASK_VALUE

# Blocks of queries whose work the compiler interleaves.
_UNROLLED = 4

Joined = Float[Array, "batch heads_kv length"]
Statistics = Float[Array, "batch heads 1 length"]


class ListOperands(NamedTuple):
    """Inputs of both passes. Lengths are whole chunks; heads and positions are laid out as in `Operands`.

    Attributes:
      lists: Blocks of keys of each block of queries of a chunk, one list after another; negative entries are empty.
      q: Queries.
      k: Keys.
      v: Values.
      query_segments: Segments of the queries.
      key_segments: Segments of the keys; `NO_SEGMENT` for keys that no query sees.
      seeds: See `Operands`.
    """

    lists: Int[Array, "heads chunks 1 entries"]
    q: Joined
    k: Joined
    v: Joined
    query_segments: Int[Array, "batch 1 length"]
    key_segments: Int[Array, "batch blocks size"]
    seeds: Int[Array, " 5"] | None


def _specs(g: ListGeometry, operands: ListOperands) -> ListOperands:
    """Returns the blocks of the operands."""
    smem = {"memory_space": pltpu.SMEM}
    row = pl.BlockSpec((1, g.head_dim, g.padded), lambda h, b, c: (b, h, 0))
    return ListOperands(
        lists=pl.BlockSpec((1, 1, 1, g.blocks_per_chunk * g.listed), lambda h, b, c: (h, c, 0, 0), **smem),
        q=_chunk(g),
        k=row,
        v=row,
        query_segments=pl.BlockSpec((1, 1, g.chunk), lambda h, b, c: (b, 0, c)),
        key_segments=pl.BlockSpec((1, g.num_blocks, g.size), lambda h, b, c: (b, 0, 0)),
        seeds=None if operands.seeds is None else pl.BlockSpec(**smem),
    )


def _chunk(g: ListGeometry) -> pl.BlockSpec:
    return pl.BlockSpec((1, g.head_dim, g.chunk), lambda h, b, c: (b, h, c))


def _statistics(g: ListGeometry) -> pl.BlockSpec:
    return pl.BlockSpec((1, 1, 1, g.chunk), lambda h, b, c: (b, h, 0, c))


def _call(
    kernel: Callable, operands: ListOperands, *others, g: ListGeometry, specs, out, scratch, cost, name, vmem_bytes,
    interpret,
):  # fmt: skip
    """Calls a kernel with the operands that are given; see `pl.pallas_call`."""
    of_operands = _specs(g, operands)

    def with_operands(*refs):
        given = iter(refs)
        kernel(ListOperands(*(None if spec is None else next(given) for spec in of_operands)), *given, g=g)

    out_specs, out_shape = zip(*out, strict=True)
    return pl.pallas_call(
        with_operands,
        grid=(g.heads, g.batch, g.num_chunks),
        in_specs=[*(spec for spec in of_operands if spec is not None), *specs],
        out_specs=list(out_specs),
        out_shape=list(out_shape),
        scratch_shapes=[
            pltpu.VMEM((g.padded, 2 * g.head_dim), operands.k.dtype),
            pltpu.VMEM((g.chunk, LANES), jnp.int32),
            pltpu.VMEM((g.chunk, 2 * g.head_dim), operands.q.dtype),
            pltpu.VMEM((g.chunk, 2 * g.head_dim), jnp.float32),
            *scratch,
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=vmem_bytes
        ),
        cost_estimate=cost,
        interpret=interpret,
        name=name,
    )(*(x for x in operands if x is not None), *others)


def forward(
    operands: ListOperands, geometry: ListGeometry, *, vmem_bytes: int | None, interpret: bool
) -> tuple[Joined, Statistics]:
    """Computes the output, and the log-sum-exp of the scores of each query, `MASK_VALUE` without visible keys.

    Args:
      operands: The inputs.
      geometry: Sizes.
      vmem_bytes: Memory of the core that the kernel may use; None for the compiler's default.
      interpret: Whether to interpret the kernel, on any device.
    """
    g = geometry
    statistics = jax.ShapeDtypeStruct((g.batch, g.heads, 1, g.padded), jnp.float32)
    return _call(
        _forward_kernel,
        operands,
        g=g,
        specs=[],
        out=[(_chunk(g), jax.ShapeDtypeStruct(operands.q.shape, operands.q.dtype)), (_statistics(g), statistics)],
        scratch=[],
        cost=costs.of_lists(g, operands.q.dtype.itemsize, backward=False),
        name="block_list_attention_forward",
        vmem_bytes=vmem_bytes,
        interpret=interpret,
    )


def backward(
    operands: ListOperands,
    lse: Statistics,
    delta: Statistics,
    gradient: Joined,
    geometry: ListGeometry,
    *,
    vmem_bytes: int | None,
    interpret: bool,
) -> tuple[Joined, Joined, Joined]:
    """Computes the gradients of queries, keys and values.

    Args:
      operands: The inputs of the forward pass.
      lse: Log-sum-exps of the forward pass.
      delta: Inner product of the output and its gradient.
      gradient: Gradient of the output.
      geometry: Sizes.
      vmem_bytes: Memory of the core that the kernel may use; None for the compiler's default.
      interpret: Whether to interpret the kernel, on any device.
    """
    g = geometry
    row = pl.BlockSpec((1, g.head_dim, g.padded), lambda h, b, c: (b, h, 0))
    shape = jax.ShapeDtypeStruct(operands.q.shape, operands.q.dtype)
    return _call(
        _backward_kernel,
        operands,
        lse,
        delta,
        gradient,
        g=g,
        specs=[_statistics(g), _statistics(g), _chunk(g)],
        out=[(_chunk(g), shape), (row, shape), (row, shape)],
        scratch=[pltpu.VMEM((g.chunk, LANES), jnp.float32), pltpu.VMEM((g.padded, 2 * g.head_dim), jnp.float32)],
        cost=costs.of_lists(g, operands.q.dtype.itemsize, backward=True),
        name="block_list_attention_backward",
        vmem_bytes=vmem_bytes,
        interpret=interpret,
    )


def _forward_kernel(refs: ListOperands, out_ref, lse_ref, kv_ref, segments_ref, queries_ref, sums_ref, *, g):
    """Computes a chunk of queries."""
    # Read here, because the interpreter does not know them within conditional code.
    head, row, chunk = (pl.program_id(axis) for axis in range(3))
    _load(refs, kv_ref, segments_ref, chunk, g)
    queries_ref[...] = jnp.concatenate([refs.q[0], jnp.zeros_like(refs.q[0])], axis=0).T
    tiles_of = _Tiles(refs, kv_ref, segments_ref, g, row, head, chunk)

    def block(index, lists):
        """Computes a block of queries, whose keys are one list after another."""
        rows = pl.ds(_multiple(index * g.size, g.size), g.size)
        queries = queries_ref[rows, :]

        def visit(number, state):
            largest, total, sums = state
            tile = tiles_of.block(index, number, lists.blocks(index, number))
            scores = jnp.where(tile.visible, tiles.dot_nt(queries, tile.kv) * g.scale, MASK_VALUE)
            before, largest = largest, jnp.maximum(largest, jnp.max(scores, axis=1, keepdims=True))
            weights, shrink = jnp.exp(scores - largest), jnp.exp(before - largest)
            total = shrink * total + jnp.sum(weights, axis=1, keepdims=True)
            sums = shrink * sums + tiles.dot(tile.dropped(weights).astype(tile.kv.dtype), tile.kv)
            return largest, total, sums

        zeros = jnp.zeros((g.size, 1), jnp.float32)
        state = zeros + MASK_VALUE, zeros, jnp.zeros((g.size, 2 * g.head_dim), jnp.float32)
        largest, total, sums = lists.reduce(visit, state)
        seen = largest > MASK_VALUE / 2
        lse = jnp.where(seen, largest + jnp.log(total), MASK_VALUE)
        output = jnp.where(seen, sums / (total * (1.0 - g.dropout_rate)), 0.0)
        sums_ref[rows, :] = jnp.where(_is_first_half(output.shape), lse, output)

    _for_each_block(block, refs, chunk, g)
    both = sums_ref[...].T
    out_ref[0] = both[g.head_dim :].astype(out_ref.dtype)
    lse_ref[0, 0] = both[:1]


def _backward_kernel(
    refs: ListOperands, lse_ref, delta_ref, gradient_ref, dq_ref, dk_ref, dv_ref, kv_ref, segments_ref, queries_ref,
    dq_sum, statistics_ref, dkv_sum, *, g,
):  # fmt: skip
    """Adds the gradients of a chunk of queries."""
    head, row, chunk = (pl.program_id(axis) for axis in range(3))
    _load(refs, kv_ref, segments_ref, chunk, g)
    queries_ref[...] = jnp.concatenate([refs.q[0], gradient_ref[0]], axis=0).T
    half = (LANES // 2, g.chunk)
    both = [jnp.broadcast_to(ref[0, 0], half) for ref in (lse_ref, delta_ref)]
    statistics_ref[...] = jnp.concatenate(both, axis=0).T
    tiles_of = _Tiles(refs, kv_ref, segments_ref, g, row, head, chunk)

    @pl.when(chunk == 0)
    def _():
        dkv_sum[...] = jnp.zeros_like(dkv_sum)

    def block(index, lists):
        rows = pl.ds(_multiple(index * g.size, g.size), g.size)
        given, statistics = queries_ref[rows, :], statistics_ref[rows, :]
        lse, delta = statistics[:, :1], statistics[:, LANES // 2 : LANES // 2 + 1]
        is_query = _is_first_half(given.shape)
        zero = jnp.zeros_like(given)
        given = jnp.concatenate([jnp.where(is_query, given, zero), jnp.where(is_query, zero, given)], axis=0)

        def visit(number, dq):
            tile = tiles_of.block(index, number, lists.blocks(index, number))
            products = tiles.dot_nt(given, tile.kv)
            weights = jnp.where(tile.visible, jnp.exp(products[: g.size] * g.scale - lse), 0.0)
            dweights = tile.dropped(products[g.size :])
            if g.dropout_rate:
                dweights = dweights / (1.0 - g.dropout_rate)
            dscores = weights * (dweights - delta)
            both = jnp.concatenate([dscores, tile.dropped(weights)], axis=0).astype(tile.kv.dtype)
            dkv = tiles.dot_tn(both, given)
            for entry, start in enumerate(tile.starts):
                dkv_sum[pl.ds(start, g.size), :] += dkv[entry * g.size : (entry + 1) * g.size]
            return dq + tiles.dot(both[: g.size], tile.kv)

        dq_sum[rows, :] = lists.reduce(visit, jnp.zeros((g.size, 2 * g.head_dim), jnp.float32))

    _for_each_block(block, refs, chunk, g)
    dq_ref[0] = (dq_sum[...].T[: g.head_dim] * g.scale).astype(dq_ref.dtype)

    @pl.when(chunk == pl.num_programs(2) - 1)
    def _():
        @pl.loop(0, g.num_chunks)
        def _(number):
            positions = pl.ds(_multiple(number * g.chunk, g.chunk), g.chunk)
            both = dkv_sum[positions, :].T
            dk_ref[0, :, positions] = (both[: g.head_dim] * g.scale).astype(dk_ref.dtype)
            dv_ref[0, :, positions] = (both[g.head_dim :] / (1.0 - g.dropout_rate)).astype(dv_ref.dtype)


def _load(refs: ListOperands, kv_ref, segments_ref, chunk, g: ListGeometry) -> None:
    """Copies the segments of a chunk of queries, and with the first chunk the keys and values, to rows."""
    segments_ref[...] = jnp.broadcast_to(refs.query_segments[0], (LANES, g.chunk)).T

    @pl.when(chunk == 0)
    def _():
        @pl.loop(0, g.num_chunks)
        def _(number):
            positions = pl.ds(_multiple(number * g.chunk, g.chunk), g.chunk)
            kv_ref[positions, :] = jnp.concatenate([x[0, :, positions] for x in (refs.k, refs.v)], axis=0).T


def _for_each_block(block: Callable, refs: ListOperands, chunk, g: ListGeometry) -> None:
    """Calls `block` with each block of queries of a chunk and its lists."""
    unroll = math.gcd(g.blocks_per_chunk, _UNROLLED)
    lax.fori_loop(0, g.blocks_per_chunk, lambda index, _: block(index, _Listed(refs, g)), None, unroll=unroll)
    for each in g.all_keys:

        @pl.when(chunk == each // g.blocks_per_chunk)
        def _(index=each % g.blocks_per_chunk):
            block(index, _AllKeys(g))


@dataclasses.dataclass(frozen=True)
class _Listed:
    """The list of a block of queries."""

    refs: ListOperands
    g: ListGeometry

    def blocks(self, index, number):
        """Returns the blocks of list `number` of a block of queries, negative ones for empty entries."""
        return [self.refs.lists[0, 0, 0, index * self.g.listed + entry] for entry in range(self.g.listed)]

    def reduce(self, visit: Callable, state):
        """Returns the state after all lists: `visit` takes the number of a list and the state, and returns the next."""
        return visit(0, state)


@dataclasses.dataclass(frozen=True)
class _AllKeys:
    """All blocks in groups as long as a list; see `_Listed`."""

    g: ListGeometry

    def blocks(self, index, number):
        entries = [number * self.g.listed + entry for entry in range(self.g.listed)]
        return [jnp.where(entry < self.g.num_blocks, entry, -1) for entry in entries]

    def reduce(self, visit: Callable, state):
        return lax.fori_loop(0, self.g.groups, visit, state)


class _Tile(NamedTuple):
    """The keys of a list.

    Attributes:
      kv: Keys and values.
      starts: Position of the first key of each block; 0 for an empty entry.
      visible: Which keys each query sees.
      dropped: Sets the dropped entries of an array to zero, without scaling the others.
    """

    kv: Float[Array, "keys features"]
    starts: list[Int[Array, ""]]
    visible: Bool[Array, "queries keys"]
    dropped: Callable


@dataclasses.dataclass(frozen=True)
class _Tiles:
    """Returns the keys of lists, with the conditions of blocks of queries."""

    refs: ListOperands
    kv_ref: Array
    segments_ref: Array
    g: ListGeometry
    row: Int[Array, ""]
    head: Int[Array, ""]
    chunk: Int[Array, ""]

    def block(self, index, number, entries) -> _Tile:
        """Returns the keys of list `number`, the blocks `entries`, for block `index` of the queries of the chunk."""
        g = self.g
        first = [jnp.maximum(entry, 0) for entry in entries]
        starts = [_multiple(entry * g.size, g.size) for entry in first]
        segments = [
            jnp.where(entry < 0, NO_SEGMENT, self.refs.key_segments[0, pl.ds(block, 1), :])
            for entry, block in zip(entries, first, strict=True)
        ]
        rows = pl.ds(_multiple(index * g.size, g.size), g.size)

        def dropped(x):
            if g.dropout_rate == 0.0:
                return x
            seeds = self.refs.seeds
            head = (seeds[2] + self.row) * seeds[4] + seeds[3] + self.head
            queries = lax.broadcasted_iota(jnp.int32, (g.size, 1), 0) + (self.chunk * g.chunk + index * g.size)
            keys = lax.broadcasted_iota(jnp.int32, (1, x.shape[1]), 1) + number * g.listed * g.size
            return jnp.where(masking.keep((seeds[0], seeds[1]), head, queries, keys, g.dropout_rate), x, 0.0)

        return _Tile(
            kv=jnp.concatenate([self.kv_ref[pl.ds(start, g.size), :] for start in starts], axis=0),
            starts=starts,
            visible=self.segments_ref[rows, :1] == jnp.concatenate(segments, axis=1),
            dropped=dropped,
        )


def _is_first_half(shape: tuple[int, int]) -> Bool[Array, "rows features"]:
    """Returns which columns belong to the first half."""
    return lax.broadcasted_iota(jnp.int32, shape, 1) < shape[1] // 2


def _multiple(x, of: int):
    """Tells the compiler that a number is a multiple of another one."""
    return x if isinstance(x, int) else pl.multiple_of(x, of)
