"""Prompts of different lengths, moved so that they end together."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Int

FIRST_SEGMENT = 1


def left_pad(batch: Mapping[str, Int[Array, "batch length"]]) -> dict[str, Int[Array, "batch length"]]:
    """Rows with their padding moved to the front, so that the next token of all of them has the same place.

    `[a b c 0 0]` becomes `[0 0 a b c]` with positions `[0 0 0 1 2]`.

    Args:
      batch: `decoder_input_tokens`; `decoder_segment_ids`, 0 for padding, unless all rows are full (of a packed row the
        first segment is read); `decoder_loss_weights` where rows go on with what is to be predicted: the prompt ends
        with the first token that has a weight; `decoder_prefix` where the network is to see prompts whole.

    Returns:
      `decoder_input_tokens`, `decoder_segment_ids`, `decoder_positions` and, where it is given, `decoder_prefix`. Each
      row has at least one token: one without any is read as a token 0.
    """
    tokens = batch["decoder_input_tokens"]
    rows, length = tokens.shape
    count = jnp.full((rows, 1), length)
    if "decoder_segment_ids" in batch:
        count = jnp.sum(batch["decoder_segment_ids"] == FIRST_SEGMENT, axis=1, keepdims=True)
    if "decoder_loss_weights" in batch:
        predicted = batch["decoder_loss_weights"] > 0
        before = jnp.where(jnp.any(predicted, axis=1), jnp.argmax(predicted, axis=1), length)[:, None]
        count = jnp.minimum(count, before + 1)
    positions = jnp.arange(length) - (length - jnp.maximum(count, 1))
    real = positions >= 0

    def moved(x):
        return jnp.where(real, jnp.take_along_axis(x, jnp.maximum(positions, 0), axis=1), 0)

    return {
        **{name: moved(batch[name]) for name in ("decoder_input_tokens", "decoder_prefix") if name in batch},
        "decoder_segment_ids": real.astype(jnp.int32),
        "decoder_positions": jnp.maximum(positions, 0).astype(jnp.int32),
    }
