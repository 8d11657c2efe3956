"""The backward pass: recomputes the attention weights of each tile and adds their gradients (Dao et al. 2022)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from t5x_like.kernels.fused_attention import costs, distances, segment_blocks, tiles
from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.fused_attention.operands import Blocks, Operands
from t5x_like.kernels.fused_attention.scores import Scores

Statistics = Float[Array, "batch heads 1 q_len"]


class Gradients(NamedTuple):
    """Gradients of the operands with the same names, in their shapes; None for those that are not given.

    Attributes:
      q, k, v: In the dtype of the operand.
      bias: In float32, for each row.
      query_table, key_table, content_bias, position_bias, same_type: In float32, without the scale of the scores.
    """

    q: Float[Array, "batch heads_kv q_len"]
    k: Float[Array, "batch kv_heads_kv kv_len"]
    v: Float[Array, "batch kv_heads_kv kv_len"]
    bias: Float[Array, "batch heads 1 relative"] | None = None
    query_table: Float[Array, "directions heads_kv relative"] | None = None
    key_table: Float[Array, "directions heads_kv relative"] | None = None
    content_bias: Float[Array, "heads_kv 1"] | None = None
    position_bias: Float[Array, "heads_kv 1"] | None = None
    same_type: Float[Array, "batch heads 1 q_len"] | None = None


def backward(
    operands: Operands,
    lse: Statistics,
    delta: Statistics,
    gradient: Float[Array, "batch heads_kv q_len"],
    geometry: Geometry,
    *,
    vmem_bytes: int | None,
    interpret: bool,
) -> Gradients:
    """Computes the gradients of queries, keys, values, biases and tables.

    Blocks of queries are the inner loop, over which the gradients of a block of keys are added up. Those of the queries
    are added up over the outer loop, for all queries of a chunk. The gradients of the keys are summed over chunks.

    Args:
      operands: The inputs of the forward pass.
      lse: Statistics of the forward pass.
      delta: Inner product of the output and its gradient.
      gradient: Gradient of the output.
      geometry: Sizes.
      vmem_bytes: Memory of the core that the kernel may use; None for the compiler's default.
      interpret: Whether to interpret the kernel, on any device.

    Returns:
      The gradients.
    """
    g = geometry
    per_chunk = g.q_blocks // g.q_chunks

    ranges, visits = [], g.q_visits
    if g.reads_ranges:
        ranges = [segment_blocks.query_ranges(operands.query_segments[:, 0], operands.key_segments[:, 0], g)]
        visits = segment_blocks.visits(ranges[0], visits)

    def at(h, b, c, j, visit, *ranges):
        return b, h, _q_block(g, b, j, c, visit, *ranges)[0], j

    blocks = Blocks(g, at)
    specs = blocks.inputs(operands)
    features, kv_features = g.step_heads * g.head_dim, g.step_kv_heads * g.head_dim
    chunk = per_chunk * g.block_q
    kv_dtype = operands.k.dtype if g.q_chunks == 1 else jnp.float32
    kv_shape = jax.ShapeDtypeStruct((g.q_chunks, *operands.k.shape), kv_dtype)
    kv_spec = pl.BlockSpec((1, 1, kv_features, g.block_k), lambda h, b, c, j, *_: (c, b, h, j))
    out_shape = [jax.ShapeDtypeStruct(operands.q.shape, operands.q.dtype), kv_shape, kv_shape]
    out_specs = [pl.BlockSpec((1, features, chunk), lambda h, b, c, j, *_: (b, h, c)), kv_spec, kv_spec]
    if g.biased:
        out_shape.append(jax.ShapeDtypeStruct((g.batch, g.heads, 1, g.distances), jnp.float32))
        out_specs.append(pl.BlockSpec((1, g.step_heads, 1, g.distances), lambda h, b, c, j, *_: (b, h, 0, 0)))
    # Summed over the rows, whose dimension of the grid is therefore sequential.
    shared = [x for x in (operands.query_table, operands.key_table) if x is not None]
    out_specs += [blocks.table] * len(shared)
    if g.query_biases:
        shared += [operands.content_bias, operands.position_bias]
        out_specs += [blocks.query_bias] * 2
    out_shape += [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in shared]
    if g.types:
        out_shape.append(jax.ShapeDtypeStruct(operands.same_type.shape, jnp.float32))
        out_specs.append(pl.BlockSpec((1, g.step_heads, 1, chunk), lambda h, b, c, j, *_: (b, h, 0, c)))

    def kernel(*refs):
        given = iter(refs)
        ranges_of = [next(given) for _ in ranges]
        inputs = Operands(*(None if spec is None else next(given) for spec in specs))
        _kernel(inputs, ranges_of, *given, geometry=g)

    dq, dk, dv, *others = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(ranges),
            grid=(g.head_steps, g.batch, g.q_chunks, g.k_blocks, visits),
            in_specs=[
                *(spec for spec in specs if spec is not None), blocks.statistics, blocks.statistics, blocks.q
            ],
            out_specs=out_specs,
            scratch_shapes=[
                pltpu.VMEM((per_chunk, features, g.block_q), jnp.float32),
                pltpu.VMEM((kv_features, g.block_k), jnp.float32),
                pltpu.VMEM((kv_features, g.block_k), jnp.float32),
            ],
        ),
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary" if shared else "parallel", *("arbitrary",) * 3),
            vmem_limit_bytes=vmem_bytes,
        ),
        cost_estimate=costs.backward(g, operands.q.dtype.itemsize),
        interpret=interpret,
        name="fused_attention_backward",
    )(*ranges, *(x for x in operands if x is not None), lse, delta, gradient)  # fmt: skip
    dk, dv = (x[0] if g.q_chunks == 1 else jnp.sum(x, axis=0).astype(operands.k.dtype) for x in (dk, dv))
    given = iter(others)
    is_given = (g.biased, g.query_table, g.key_table, g.query_biases, g.query_biases, g.types)
    of_terms = (next(given) if each else None for each in is_given)
    return Gradients(dq, dk, dv, *of_terms)


def _q_block(g: Geometry, row, j, chunk, visit, *ranges):
    """Returns the block of queries of a visit, and whether it is computed; see `Geometry.q_block`."""
    return g.q_block(j, chunk, visit, *(segment_blocks.at(each, row, j, g.k_blocks) for each in ranges))


def _kernel(inputs, ranges, lse_ref, delta_ref, gradient_ref, dq_ref, dk_ref, dv_ref, *rest, geometry: Geometry):
    """Adds the gradients of a tile."""
    g = geometry
    *rest, dq_sum, dk_sum, dv_sum = rest
    given = iter(rest)
    dbias_ref = next(given) if g.biased else None
    query_table_sum = next(given) if g.query_table else None
    key_table_sum = next(given) if g.key_table else None
    content_sum, position_sum = (next(given), next(given)) if g.query_biases else (None, None)
    same_type_sum = next(given) if g.types else None
    head_step, row, c, j, visit = (pl.program_id(axis) for axis in range(5))
    last_block, last_visit = pl.num_programs(3) - 1, pl.num_programs(4) - 1
    per_chunk = g.q_blocks // g.q_chunks
    i, is_computed = _q_block(g, row, j, c, visit, *ranges)
    local = i - c * per_chunk

    @pl.when(visit == 0)
    def _():
        dk_sum[...] = jnp.zeros_like(dk_sum)
        dv_sum[...] = jnp.zeros_like(dv_sum)

    @pl.when((j == 0) & (visit == 0))
    def _():
        dq_sum[...] = jnp.zeros_like(dq_sum)
        if g.types:
            same_type_sum[...] = jnp.zeros_like(same_type_sum)

    if g.biased:

        @pl.when((c == 0) & (j == 0) & (visit == 0))
        def _():
            dbias_ref[...] = jnp.zeros_like(dbias_ref)

    shared = [x for x in (query_table_sum, key_table_sum, content_sum, position_sum) if x is not None]
    if shared:

        @pl.when((row == 0) & (c == 0) & (j == 0) & (visit == 0))
        def _():
            for total in shared:
                total[...] = jnp.zeros_like(total)

    @pl.when(is_computed)
    def _():
        scores = Scores(inputs, g, row, head_step, i, j)
        for head in range(g.step_heads):
            features = slice(head * g.head_dim, (head + 1) * g.head_dim)
            kv_features = slice(head // g.group * g.head_dim, (head // g.group + 1) * g.head_dim)
            query, key, do = scores.query(head), scores.key(head), scores.query(head, gradient_ref)
            weights, derivative = scores.weights(head, lse_ref[0, head])
            kept = scores.dropped(head, weights).astype(do.dtype)
            dv_sum[kv_features, :] += tiles.dot_nt(do, kept)
            dweights = scores.dropped(head, tiles.dot_tn(scores.value(head), do))
            if g.dropout_rate:
                dweights = dweights / (1.0 - g.dropout_rate)
            dscores = weights * (dweights - delta_ref[0, head])
            if derivative is not None:
                dscores = dscores * derivative
            if g.biased:
                relative = pl.ds(scores.bias_start, g.block_q + g.block_k)
                dbias_ref[0, head, :, relative] += tiles.bias_gradient(dscores, g)
            if g.types:
                positions = pl.ds(pl.multiple_of(local * g.block_q, g.block_q), g.block_q)
                of_type = jnp.where(scores.same_type, dscores, 0.0)
                same_type_sum[0, head, :, positions] += jnp.sum(of_type, axis=0, keepdims=True)
            if g.query_table:
                added = distances.gradients(
                    dscores.T,
                    scores.biased_query(head, inputs.position_bias),
                    scores.query_vectors(head, inputs.query_table),
                    scores.query_vectors(head, query_table_sum),
                    strided=g.strided,
                )
                dq_sum[local, features, :] += added
                if g.query_biases:
                    position_sum[features, :] += jnp.sum(added, axis=1, keepdims=True)
            if g.key_table:
                dk_sum[kv_features, :] += distances.gradients(
                    dscores,
                    key,
                    scores.key_vectors(head, inputs.key_table),
                    scores.key_vectors(head, key_table_sum),
                    strided=g.strided,
                )
            dscores = dscores.astype(query.dtype)
            dk_sum[kv_features, :] += tiles.dot_nt(scores.biased_query(head, inputs.content_bias), dscores)
            added = tiles.dot(key, dscores)
            dq_sum[local, features, :] += added
            if g.query_biases:
                content_sum[features, :] += jnp.sum(added, axis=1, keepdims=True)

    @pl.when(visit == last_visit)
    def _():
        dk_ref[0, 0] = (dk_sum[...] * g.scale).astype(dk_ref.dtype)
        dv_ref[0, 0] = (dv_sum[...] / (1.0 - g.dropout_rate)).astype(dv_ref.dtype)

    @pl.when((j == last_block) & (visit == last_visit))
    def _():
        @pl.loop(0, per_chunk)
        def _(block):
            positions = pl.ds(pl.multiple_of(block * g.block_q, g.block_q), g.block_q)
            dq_ref[0, :, positions] = (dq_sum[block] * g.scale).astype(dq_ref.dtype)
