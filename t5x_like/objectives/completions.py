"""Completions in the rows of a decoder: the tokens with a loss weight, and their log-probabilities."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t5x_like.kernels.cross_entropy import TargetProbabilities, target_probabilities
from t5x_like.models.base import Batch
from t5x_like.models.outputs import Outputs


def log_probabilities(model: Any, outputs: Outputs, rows: Batch) -> Float[Array, "rows length"]:
    """Returns the log-probability of the next token at each position, in nats."""
    return probabilities(model, outputs, rows, entropy=False).log_probability


def probabilities(model: Any, outputs: Outputs, rows: Batch, *, entropy: bool = True) -> TargetProbabilities:
    """Returns the log-probability of the next token and the entropy at each position."""
    return target_probabilities(outputs.hidden, model.unembed, rows["decoder_target_tokens"], entropy=entropy)


def completion_weights(rows: Batch) -> Float[Array, "rows length"]:
    """Returns 1 where the next token belongs to a completion."""
    return rows["decoder_loss_weights"].astype(jnp.float32)


def with_completion(rows: Batch) -> Bool[Array, " rows"]:
    """Returns which rows have a token of a completion."""
    return jnp.any(completion_weights(rows) > 0, axis=1)


def summed_log_probabilities(model: Any, outputs: Outputs, rows: Batch) -> Float[Array, " rows"]:
    """Returns the log-probability of the completion of each row, in nats."""
    return jnp.sum(log_probabilities(model, outputs, rows) * completion_weights(rows), axis=1)
