"""Binary cross-entropy of logits."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.kernels.chunks import PositionLoss, Scalar


def from_logits(
    logits: Float[Array, "batch length"], targets: Int[Array, "batch length"], weights: Float[Array, "batch length"]
) -> Mapping[str, Scalar]:
    """Computes the binary cross-entropy, and what its metrics count.

    Args:
      logits: Log-odds of the target 1.
      targets: 0 or 1.
      weights: Weight of each position; 0 excludes the position.

    Returns:
      Weighted sums over all positions: `loss` in nats, `correct`, `positive`, the number of targets 1, and `weight`.
    """
    signed = jnp.where(targets > 0, logits, -logits)
    return {
        "loss": jnp.sum(weights * jax.nn.softplus(-signed)),
        "correct": jnp.sum(weights * (signed > 0)),
        "positive": jnp.sum(weights * targets),
        "weight": jnp.sum(weights),
    }


def position_loss(targets: Int[Array, "batch length"], weights: Float[Array, "batch length"]) -> PositionLoss:
    """Returns the binary cross-entropy of the only logit of each position, whose sums are those of `from_logits`."""
    return PositionLoss(
        lambda logits, teachers, known: from_logits(logits[:, :, 0], *known),
        (targets, weights),
        trained=lambda sums: sums["loss"],
    )
