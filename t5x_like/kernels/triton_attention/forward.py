"""The forward pass: an online softmax over blocks of keys (Milakov and Gimelshein 2018; Dao et al. 2022)."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.fused_attention.operands import Inputs
from t5x_like.kernels.masks import MASK_VALUE
from t5x_like.kernels.triton_attention import costs, tile
from t5x_like.kernels.triton_attention.calls import Sizes, call


def forward(
    inputs: Inputs, g: Geometry, sizes: Sizes, *, interpret: bool
) -> tuple[Float[Array, "batch q_len heads kv"], Float[Array, "batch heads q_len"]]:
    """Computes the output and the statistics that the backward pass needs. A program computes a block of queries.

    Args:
      inputs: The arrays of a device, with `Operands.seeds` and `bias.padded`.
      g: Sizes of the problem and of tiles.
      sizes: Sizes of programs.
      interpret: Whether to interpret the kernel, on any device.

    Returns:
      The output, and the log-sum-exp of the scores of each query, `MASK_VALUE` without visible keys.
    """

    def kernel(refs: Inputs, out_ref, lse_ref):
        i, head, row = (pl.program_id(axis) for axis in range(3))
        queries = tile.query_block(refs, g, row, i)
        query = tile.load(refs.q, g.q_len, i, g.block_q, before=(row,), after=tile.head(head))
        kv_head = tile.head(lax.div(head, g.group))

        def add(j, carry):
            sums, largest, total = carry
            key, value = (
                tile.load(ref, g.kv_len, j, g.block_k, before=(row,), after=kv_head) for ref in (refs.k, refs.v)
            )
            scores = tile.Tile(refs, g, row, head, queries, tile.key_block(refs, g, row, j))
            score = scores.masked(scores.of(query, key)[0])
            before, largest = largest, jnp.maximum(largest, jnp.max(score, axis=1))
            weights, shrink = tile.exp(score - largest[:, None]), tile.exp(before - largest)
            product = plgpu.dot(scores.dropped(weights).astype(value.dtype), value)
            return shrink[:, None] * sums + product, largest, shrink * total + jnp.sum(weights, axis=1)

        first, last = g.k_range(i)
        start = (
            jnp.zeros((g.block_q, g.head_dim), jnp.float32),
            jnp.full(g.block_q, MASK_VALUE, jnp.float32),
            jnp.zeros(g.block_q, jnp.float32),
        )
        sums, largest, total = lax.fori_loop(first, last + 1, add, start)
        seen = largest > MASK_VALUE / 2
        if g.skips:  # some keys were skipped, so a query without visible keys has no average of all values
            sums, total = jnp.where(seen[:, None], sums, 0.0), jnp.where(seen, total, 1.0)
        output = sums / (total * (1.0 - g.dropout_rate))[:, None]
        tile.store(out_ref, output, g.q_len, i, before=(row,), after=tile.head(head))
        lse = jnp.where(seen, largest + jnp.log(total), MASK_VALUE)
        tile.store(lse_ref, lse, g.q_len, i, before=(row, head))

    return call(
        kernel,
        inputs,
        (),
        (
            jax.ShapeDtypeStruct(inputs.q.shape, inputs.q.dtype),
            jax.ShapeDtypeStruct((g.batch, g.heads, g.q_len), jnp.float32),
        ),
        grid=(g.q_blocks, g.heads, g.batch),
        sizes=sizes,
        cost=costs.of(costs.FORWARD, g, inputs),
        name="triton_attention_forward",
        interpret=interpret,
    )
