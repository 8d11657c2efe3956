"""Scoring: how probable a model finds given targets."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def score(model: Any, batch: Mapping[str, Int[Array, "batch length"]]) -> Float[Array, "batch"]:
    """The log-probability of each row's targets in nats, summed over its weighted positions.

    Args:
      model: an encoder-decoder.
      batch: its features with `decoder_target_tokens` and `decoder_loss_weights`.
    """
    hidden = model(batch).hidden

    def row(inputs):
        hidden, targets, weights = inputs
        log_probabilities = jax.nn.log_softmax(model.unembed(hidden[None])[0])
        chosen = jnp.take_along_axis(log_probabilities, targets[:, None], axis=-1)[:, 0]
        return jnp.sum(chosen * weights)

    # Row by row, so that the logits of a whole batch are never held.
    return jax.lax.map(row, (hidden, batch["decoder_target_tokens"], batch["decoder_loss_weights"]))
