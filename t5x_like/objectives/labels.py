"""Label names of classification objectives, and the weights of labels."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t5x_like.errors import UserError
from t5x_like.objectives.base import Batch

# The metrics of a cross-entropy of labels: in nats per label without label smoothing, and the accuracy.
LABEL_METRICS = {"loss": "nll", "accuracy": "correct"}


def check_names(labels: Sequence[str], objective: str, *, least: int = 2) -> tuple[str, ...]:
    """Returns the names of labels as a tuple.

    Args:
      labels: Names of the labels, in the order of their indices.
      objective: Name of the objective, for messages.
      least: Smallest number of names.

    Raises:
      UserError: `labels` is not a sequence of at least `least` different strings.
    """
    if isinstance(labels, str) or not isinstance(labels, Sequence) or not all(isinstance(x, str) for x in labels):
        raise UserError(
            f"{objective}.labels={labels!r} is not a sequence of names. Give the names of the labels in the order of "
            "their indices, such as LABELS=('negative', 'positive')."
        )
    if len(labels) < least or len(set(labels)) < len(labels):
        wanted = "at least two different" if least == 2 else "different"
        raise UserError(f"{objective}.labels={tuple(labels)}: give {wanted} names.")
    return tuple(labels)


def real_tokens(batch: Batch) -> Bool[Array, "batch length"]:
    """Returns which tokens of the model's last input are not padding."""
    name = "encoder_segment_ids" if "encoder_segment_ids" in batch else "decoder_segment_ids"
    return batch[name] != 0


def real_choices(batch: Batch, choices: int) -> Bool[Array, "batch choices"]:
    """Returns which choices of each example have a token, if each choice is a row (`passes.flatten_choices`)."""
    return jnp.any(real_tokens(batch), axis=1).reshape(-1, choices)


def row_weights(batch: Batch, choices: int = 1) -> Float[Array, "batch 1"]:
    """Returns 1 for examples with a token, 0 for padding. The labels may be unknown."""
    return jnp.any(real_choices(batch, choices), axis=1, keepdims=True).astype(jnp.float32)
