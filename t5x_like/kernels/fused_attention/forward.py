"""The forward pass: an online softmax over blocks of keys (Milakov and Gimelshein 2018; Dao et al. 2022)."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from t5x_like.kernels.fused_attention import costs, segment_blocks, tiles
from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.fused_attention.operands import Blocks, Operands
from t5x_like.kernels.fused_attention.scores import Scores
from t5x_like.kernels.masks import MASK_VALUE


def forward(
    operands: Operands, geometry: Geometry, *, vmem_bytes: int | None, interpret: bool
) -> tuple[Float[Array, "batch heads_kv q_len"], Float[Array, "batch heads 1 q_len"]]:
    """Computes the output and the statistics that the backward pass needs.

    Args:
      operands: The inputs.
      geometry: Sizes.
      vmem_bytes: Memory of the core that the kernel may use; None for the compiler's default.
      interpret: Whether to interpret the kernel, on any device.

    Returns:
      The output, and the log-sum-exp of the scores of each query, `MASK_VALUE` without visible keys.
    """
    g = geometry
    ranges, visits = [], g.k_visits
    if g.reads_ranges:
        ranges = [segment_blocks.key_ranges(operands.query_segments[:, 0], operands.key_segments[:, 0], g)]
        visits = segment_blocks.visits(ranges[0], visits)

    def at(h, b, i, visit, *ranges):
        return b, h, i, _k_block(g, b, i, visit, *ranges)[0]  # a block that is not computed is not read either

    blocks = Blocks(g, at)
    specs = blocks.inputs(operands)
    statistics = jax.ShapeDtypeStruct((g.batch, g.heads, 1, g.padded_q), jnp.float32)

    def kernel(*refs):
        given = iter(refs)
        ranges_of = [next(given) for _ in ranges]
        inputs = Operands(*(None if spec is None else next(given) for spec in specs))
        _kernel(inputs, ranges_of, *given, geometry=g)

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(ranges),
            grid=(g.head_steps, g.batch, g.q_blocks, visits),
            in_specs=[spec for spec in specs if spec is not None],
            out_specs=[blocks.q, blocks.statistics],
            scratch_shapes=[
                pltpu.VMEM((g.step_heads, g.head_dim, g.block_q), jnp.float32),
                pltpu.VMEM((g.step_heads, 1, g.block_q), jnp.float32),
                pltpu.VMEM((g.step_heads, 1, g.block_q), jnp.float32),
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct(operands.q.shape, operands.q.dtype), statistics],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"), vmem_limit_bytes=vmem_bytes
        ),
        cost_estimate=costs.forward(g, operands.q.dtype.itemsize),
        interpret=interpret,
        name="fused_attention_forward",
    )(*ranges, *(x for x in operands if x is not None))


def _k_block(g: Geometry, row, i, visit, *ranges):
    """Returns the block of keys of a visit, and whether it is computed; see `Geometry.k_block`."""
    return g.k_block(i, visit, *(segment_blocks.at(each, row, i, g.q_blocks) for each in ranges))


def _kernel(inputs, ranges, out_ref, lse_ref, sums_ref, max_ref, total_ref, *, geometry: Geometry):
    """Adds a block of keys to the averages of a block of queries."""
    g = geometry
    # Read here, because the interpreter does not know them within conditional code.
    head_step, row, i, visit = (pl.program_id(axis) for axis in range(4))
    last = pl.num_programs(3) - 1
    j, is_computed = _k_block(g, row, i, visit, *ranges)

    @pl.when(visit == 0)
    def _():
        sums_ref[...] = jnp.zeros_like(sums_ref)
        max_ref[...] = jnp.full_like(max_ref, MASK_VALUE)
        total_ref[...] = jnp.zeros_like(total_ref)

    @pl.when(is_computed)
    def _():
        scores = Scores(inputs, g, row, head_step, i, j)
        for head in range(g.step_heads):
            score = scores.of(head)
            before = max_ref[head]
            largest = jnp.maximum(before, jnp.max(score, axis=0, keepdims=True))
            weights = scores.without_padding(jnp.exp(score - largest))
            shrink = jnp.exp(before - largest)
            max_ref[head] = largest
            total_ref[head] = shrink * total_ref[head] + jnp.sum(weights, axis=0, keepdims=True)
            value = scores.value(head)
            product = tiles.dot(value, scores.dropped(head, weights).astype(value.dtype))
            sums_ref[head] = shrink * sums_ref[head] + product

    @pl.when(visit == last)
    def _():
        for head in range(g.step_heads):
            total, largest = total_ref[head], max_ref[head]
            seen = largest > MASK_VALUE / 2
            output = sums_ref[head] / (total * (1.0 - g.dropout_rate))
            if g.skips:  # some keys were skipped, so a query without visible keys has no average of all values
                output = jnp.where(seen, output, 0.0)
            out_ref[0, head * g.head_dim : (head + 1) * g.head_dim, :] = output.astype(out_ref.dtype)
            lse_ref[0, head] = jnp.where(seen, largest + jnp.log(total), MASK_VALUE)
