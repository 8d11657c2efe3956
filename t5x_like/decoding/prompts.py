"""Prompts of different lengths, moved so that they end together."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Int

FIRST_SEGMENT = 1


def aligned(batch: Mapping[str, Int[Array, "batch length"]]) -> dict[str, Int[Array, "batch length"]]:
    """Rows with their padding moved to the front, so that the next token of all of them has the same place.

    `[a b c 0 0]` becomes `[0 0 a b c]` with positions `[0 0 0 1 2]`.

    Args:
      batch: `decoder_input_tokens`; `decoder_segment_ids`, 0 for padding, unless all rows are full (of a packed row
        the first segment is the prompt); `decoder_prefix` where the network is to see prompts whole. A row without any
        token is read as one token 0.

    Returns:
      The same features, `decoder_segment_ids` and `decoder_positions` always among them.
    """
    tokens = batch["decoder_input_tokens"]
    rows, length = tokens.shape
    segments = batch.get("decoder_segment_ids", jnp.ones((rows, length), jnp.int32))
    count = jnp.maximum(jnp.sum(segments == FIRST_SEGMENT, axis=1, keepdims=True), 1)
    positions = jnp.arange(length) - (length - count)
    real = positions >= 0

    def moved(x):
        return jnp.where(real, jnp.take_along_axis(x, jnp.maximum(positions, 0), axis=1), 0)

    return {
        **{name: moved(batch[name]) for name in ("decoder_input_tokens", "decoder_prefix") if name in batch},
        "decoder_segment_ids": real.astype(jnp.int32),
        "decoder_positions": jnp.maximum(positions, 0).astype(jnp.int32),
    }
