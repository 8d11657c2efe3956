"""Scoring of given targets by their log-probability."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from t5x_like.kernels.chunks import Unembed
from t5x_like.kernels.cross_entropy import target_probabilities


@struct.dataclass
class Scored:
    """The targets of each row under a model. The positions whose `decoder_loss_weights` are positive are scored.

    Attributes:
      log_probability: Log-probability of the targets, summed over positions with their weights, in nats.
      tokens: Number of scored positions.
      greedy: Whether each scored token is the most probable one. True for a row without scored positions.
      positions: Log-probability of the target at each position, 0 where none is scored; None unless requested.
    """

    log_probability: Float[Array, " batch"]
    tokens: Int[Array, " batch"]
    greedy: Bool[Array, " batch"]
    positions: Float[Array, "batch length"] | None = None


def score(model: Any, batch: Mapping[str, Int[Array, "batch length"]], *, per_position: bool = False) -> Scored:
    """Runs a model and computes the log-probability of each row's targets.

    The sum of the scores of a set equals its negative cross-entropy: the loss of `eval` times the number of tokens.

    Args:
      model: An encoder-decoder or a decoder.
      batch: The model's features, with `decoder_target_tokens` and `decoder_loss_weights`.
      per_position: Whether to also return the log-probability at each position.

    Returns:
      The scores.
    """
    return score_hidden(model(batch).hidden, model.unembed, batch, per_position=per_position)


def score_hidden(
    hidden: Float[Array, "batch length embed"],
    unembed: Unembed,
    batch: Mapping[str, Int[Array, "batch length"]],
    *,
    per_position: bool = False,
    budget_bytes: int | None = None,
) -> Scored:
    """Scores targets like `score`, from the last hidden states of the decoder.

    Args:
      hidden: The last hidden states of the decoder.
      unembed: Maps hidden states to logits.
      batch: `decoder_target_tokens` and `decoder_loss_weights`.
      per_position: See `score`.
      budget_bytes: Bytes of float32 logits to hold on a device at a time; None: see `chunks.Chunks.of`.

    Returns:
      The scores.
    """
    weights = batch["decoder_loss_weights"]
    found = target_probabilities(hidden, unembed, batch["decoder_target_tokens"], budget_bytes=budget_bytes)
    positions = jnp.where(weights > 0, found.log_probability * weights, 0.0)
    return Scored(
        log_probability=jnp.sum(positions, axis=1),
        tokens=jnp.sum(weights > 0, axis=1),
        greedy=jnp.all(found.most_probable | (weights <= 0), axis=1),
        positions=positions if per_position else None,
    )
