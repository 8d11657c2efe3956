"""Left padding of prompts, so that prompts of different lengths end at the same position."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Int

FIRST_SEGMENT = 1


def left_pad(batch: Mapping[str, Int[Array, "batch length"]]) -> dict[str, Int[Array, "batch length"]]:
    """Moves the padding of prompts to the front, so that the next token of all rows has the same position.

    `[a b c 0 0]` becomes `[0 0 a b c]` with positions `[0 0 0 1 2]`.

    Args:
      batch: the features of the prompts. `decoder_input_tokens` is required. The other features are optional:
        `decoder_segment_ids` is 0 for padding, and only the first segment of a packed row is read. A prompt ends with
        the first token whose `decoder_loss_weights` is positive. `decoder_prefix` marks the tokens that all positions
        may attend to.

    Returns:
      `decoder_input_tokens`, `decoder_segment_ids`, `decoder_positions` and, if given, `decoder_prefix`, with the
      shapes of the inputs. An empty row becomes a row with a single token 0.
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

    def move(x):
        return jnp.where(real, jnp.take_along_axis(x, jnp.maximum(positions, 0), axis=1), 0)

    return {
        **{name: move(batch[name]) for name in ("decoder_input_tokens", "decoder_prefix") if name in batch},
        "decoder_segment_ids": real.astype(jnp.int32),
        "decoder_positions": jnp.maximum(positions, 0).astype(jnp.int32),
    }
