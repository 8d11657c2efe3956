"""The forward pass: an online softmax over blocks of keys (Milakov and Gimelshein 2018; Dao et al. 2022)."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from t5x_like.kernels.fused_attention import costs, tiles
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

    def at(h, b, i, visit):
        return b, h, i, g.k_block(i, visit)[0]  # a block that is not computed is not read either

    blocks = Blocks(g, at)
    specs = blocks.inputs(operands)
    statistics = jax.ShapeDtypeStruct((g.batch, g.heads, 1, g.padded_q), jnp.float32)

    def kernel(*refs):
        given = iter(refs)
        inputs = Operands(*(None if spec is None else next(given) for spec in specs))
        _kernel(inputs, *given, geometry=g)

    return pl.pallas_call(
        kernel,
        grid=(g.head_steps, g.batch, g.q_blocks, g.k_visits),
        in_specs=[spec for spec in specs if spec is not None],
        out_specs=[blocks.q, blocks.statistics],
        out_shape=[jax.ShapeDtypeStruct(operands.q.shape, operands.q.dtype), statistics],
        scratch_shapes=[
            pltpu.VMEM((g.step_heads, g.head_dim, g.block_q), jnp.float32),
            pltpu.VMEM((g.step_heads, 1, g.block_q), jnp.float32),
            pltpu.VMEM((g.step_heads, 1, g.block_q), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"), vmem_limit_bytes=vmem_bytes
        ),
        cost_estimate=costs.forward(g, operands.q.dtype.itemsize),
        interpret=interpret,
        name="fused_attention_forward",
    )(*(x for x in operands if x is not None))


def _kernel(inputs, out_ref, lse_ref, sums_ref, max_ref, total_ref, *, geometry: Geometry):
    """Adds a block of keys to the averages of a block of queries."""
    g = geometry
    # Read here, because the interpreter does not know them within conditional code.
    head_step, row, i, visit = (pl.program_id(axis) for axis in range(4))
    last = pl.num_programs(3) - 1
    j, is_computed = g.k_block(i, visit)

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
