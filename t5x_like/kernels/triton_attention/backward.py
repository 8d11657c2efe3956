"""The backward pass: recomputes the weights of each tile and adds their gradients (Dao et al. 2022).

Each kernel adds up the gradients of one of the arrays, so that the result does not depend on the order of programs. The
kernels compute the scores and the gradients of the weights again, two of the nine products per tile.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.fused_attention.operands import Inputs
from t5x_like.kernels.triton_attention import bias, costs, tile
from t5x_like.kernels.triton_attention.calls import Sizes, call

# Largest number of rows whose gradients of biases a program adds. Each chunk of rows has a tile per diagonal in memory.
ROWS = 8
Statistics = Float[Array, "batch heads q_len"]


class Upstream(NamedTuple):
    """What the backward pass reads beside the inputs of the forward pass: arrays, or references to them.

    Attributes:
      gradient: Gradient of the output.
      lse: Log-sum-exp of the scores of each query.
      delta: Inner product of the output and its gradient.
    """

    gradient: Float[Array, "batch q_len heads kv"]
    lse: Statistics
    delta: Statistics


class _Queries:
    """A block of queries of a head, with what the backward pass knows of it."""

    def __init__(self, refs: Inputs, upstream: Upstream, g: Geometry, row, head, i):
        features, statistics = {"before": (row,), "after": tile.head(head)}, {"before": (row, head)}
        self.query, self.gradient = (
            tile.load(ref, g.q_len, i, g.block_q, **features) for ref in (refs.q, upstream.gradient)
        )
        self.lse = tile.load(upstream.lse, g.q_len, i, g.block_q, **statistics, other=jnp.inf)
        self.delta = tile.load(upstream.delta, g.q_len, i, g.block_q, **statistics)
        self.block = tile.query_block(refs, g, row, i)


class _Keys:
    """A block of keys and values of a head."""

    def __init__(self, refs: Inputs, g: Geometry, row, kv_head, j):
        self.key, self.value = (
            tile.load(ref, g.kv_len, j, g.block_k, before=(row,), after=tile.head(kv_head)) for ref in (refs.k, refs.v)
        )
        self.block = tile.key_block(refs, g, row, j)


def _gradients(refs: Inputs, g: Geometry, row, head, queries: _Queries, keys: _Keys, *, transposed: bool):
    """Returns the weights after dropout, and the gradients of the scaled products, with a bias those of the scores."""
    scores = tile.Tile(refs, g, row, head, queries.block, keys.block, transposed=transposed)
    score, derivative = scores.of(queries.query, keys.key)
    weights = scores.weights(score, queries.lse)
    kept = scores.dropped(weights)
    dweights = scores.dropped(scores.products(queries.gradient, keys.value))
    if g.dropout_rate:
        dweights = dweights * (1.0 / (1.0 - g.dropout_rate))
    dscores = weights * (dweights - scores.of_queries(queries.delta))
    return kept, dscores if derivative is None else dscores * derivative


def _visits(first, last, repeats):
    """Returns how many pairs of a repetition and a block from `first` to `last` there are, and a function to them."""
    blocks = jnp.maximum(last - first + 1, 0)
    return repeats * blocks, lambda number: (lax.div(number, blocks), first + lax.rem(number, blocks))


def of_keys(inputs: Inputs, g: Geometry, sizes: Sizes, upstream: Upstream, *, interpret: bool) -> list[Array]:
    """Returns the gradients of keys and values. A program adds those of a block of keys over all queries of its group.

    Args:
      inputs: See `forward`.
      g: Sizes of the problem and of tiles.
      sizes: Sizes of programs.
      upstream: What the forward pass and the gradient of its output add to the inputs.
      interpret: Whether to interpret the kernel, on any device.
    """

    def kernel(refs: Inputs, *others):
        upstream, (dk_ref, dv_ref) = Upstream(*others[:3]), others[3:]
        j, kv_head, row = (pl.program_id(axis) for axis in range(3))
        keys = _Keys(refs, g, row, kv_head, j)
        total, visit = _visits(*g.q_range(j), g.group)

        def add(number, carry):
            dk, dv = carry
            of_group, i = visit(number)
            head = kv_head * g.group + of_group
            queries = _Queries(refs, upstream, g, row, head, i)
            kept, dscores = _gradients(refs, g, row, head, queries, keys, transposed=True)
            dv = dv + plgpu.dot(kept.astype(queries.gradient.dtype), queries.gradient)
            return dk + plgpu.dot(dscores.astype(queries.query.dtype), queries.query), dv

        zeros = jnp.zeros((g.block_k, g.head_dim), jnp.float32)
        dk, dv = lax.fori_loop(0, total, add, (zeros, zeros))
        for ref, x in ((dk_ref, dk * g.scale), (dv_ref, dv / (1.0 - g.dropout_rate))):
            tile.store(ref, x, g.kv_len, j, before=(row,), after=tile.head(kv_head))

    return call(
        kernel,
        inputs,
        tuple(upstream),
        tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (inputs.k, inputs.v)),
        grid=(g.k_blocks, g.kv_heads, g.batch),
        sizes=sizes,
        cost=costs.of(costs.OF_KEYS, g, inputs),
        name="triton_attention_backward_keys",
        interpret=interpret,
    )


def of_queries(inputs: Inputs, g: Geometry, sizes: Sizes, upstream: Upstream, *, interpret: bool) -> Array:
    """Returns the gradient of the queries. A program adds it for a block of queries; see `of_keys` for arguments."""

    def kernel(refs: Inputs, *others):
        upstream, (dq_ref,) = Upstream(*others[:3]), others[3:]
        i, head, row = (pl.program_id(axis) for axis in range(3))
        queries = _Queries(refs, upstream, g, row, head, i)

        def add(j, dq):
            keys = _Keys(refs, g, row, lax.div(head, g.group), j)
            _, dscores = _gradients(refs, g, row, head, queries, keys, transposed=False)
            return dq + plgpu.dot(dscores.astype(keys.key.dtype), keys.key)

        first, last = g.k_range(i)
        dq = lax.fori_loop(first, last + 1, add, jnp.zeros((g.block_q, g.head_dim), jnp.float32))
        tile.store(dq_ref, dq * g.scale, g.q_len, i, before=(row,), after=tile.head(head))

    (dq,) = call(
        kernel,
        inputs,
        tuple(upstream),
        (jax.ShapeDtypeStruct(inputs.q.shape, inputs.q.dtype),),
        grid=(g.q_blocks, g.heads, g.batch),
        sizes=sizes,
        cost=costs.of(costs.OF_QUERIES, g, inputs),
        name="triton_attention_backward_queries",
        interpret=interpret,
    )
    return dq


def of_bias(
    inputs: Inputs, g: Geometry, sizes: Sizes, upstream: Upstream, *, interpret: bool
) -> Float[Array, "heads given"]:
    """Returns the gradient of the bias of each head and distance, summed over the rows of the device.

    Blocks on the same diagonal have the same distances. A program adds their gradients over a chunk of rows, as a tile.

    Args:
      inputs: See `forward`.
      g: Sizes of the problem and of tiles, which are squares.
      sizes: Sizes of programs.
      upstream: See `of_keys`.
      interpret: Whether to interpret the kernel, on any device.
    """
    diagonals = bias.diagonals(g)
    rows = max(n for n in range(1, ROWS + 1) if g.batch % n == 0)

    def kernel(refs: Inputs, *others):
        upstream, (sums_ref,) = Upstream(*others[:3]), others[3:]
        diagonal, head, chunk = (pl.program_id(axis) for axis in range(3))
        before = diagonal + diagonals[0]  # blocks of queries after the block of keys
        first, last = jnp.maximum(before, 0), jnp.minimum(g.q_blocks, g.k_blocks + before) - 1
        total, visit = _visits(first, last, rows)

        def add(number, sums):
            of_chunk, i = visit(number)
            row = chunk * rows + of_chunk
            queries = _Queries(refs, upstream, g, row, head, i)
            keys = _Keys(refs, g, row, lax.div(head, g.group), i - before)
            return sums + _gradients(refs, g, row, head, queries, keys, transposed=False)[1]

        sums = lax.fori_loop(0, total, add, jnp.zeros((g.block_q, g.block_k), jnp.float32))
        plgpu.store(sums_ref.at[chunk, head, diagonal, :, :], sums)

    shape = (g.batch // rows, g.heads, len(diagonals), g.block_q, g.block_k)
    (sums,) = call(
        kernel,
        inputs,
        tuple(upstream),
        (jax.ShapeDtypeStruct(shape, jnp.float32),),
        grid=(len(diagonals), g.heads, g.batch // rows),
        sizes=sizes,
        cost=costs.of(costs.OF_BIAS, g, inputs, further_bytes=4 * math.prod(shape)),
        name="triton_attention_backward_bias",
        interpret=interpret,
    )
    return bias.gradient(jnp.sum(sums, axis=0), g)
