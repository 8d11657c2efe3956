"""What the objectives share whose network predicts `decoder_target_tokens` position by position."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.kernels.cross_entropy import cross_entropy
from t5x_like.objectives.base import Batch, Scalar, Terms


class TokenPrediction:
    """Cross-entropy of the decoder's next token.

    One term, `targets`, weighted by `decoder_loss_weights`. Metrics: `loss` in nats per real target token (neither
    z-loss nor smoothing in it), `accuracy`, `z_loss`.
    """

    features: FeatureSpec
    coefficients = {"targets": 1.0}

    def __init__(self, *, z_loss: float = 0.0, label_smoothing: float = 0.0):
        """Args:
        z_loss: factor of log(Z)^2, which keeps logits near normalised.
        label_smoothing: probability spread over the other tokens, in [0, 1).
        """
        if z_loss < 0 or not 0 <= label_smoothing < 1:
            raise UserError(f"z_loss={z_loss} must be >= 0 and label_smoothing={label_smoothing} in [0, 1)")
        self.z_loss, self.label_smoothing = z_loss, label_smoothing

    def init(self, key: jax.Array, model: Any) -> dict:
        """No head of its own: the network's unembedding is what is trained."""
        return {}

    def weights(self, batch: Batch) -> dict[str, Scalar]:
        return {"targets": jnp.sum(batch["decoder_loss_weights"]).astype(jnp.float32)}

    def terms(self, params: Mapping[str, Any], batch: Batch, *, dropout_key: jax.Array | None = None) -> Terms:
        model = params["model"]
        entropy = cross_entropy(
            model(batch, dropout_key=dropout_key).hidden,
            model.unembed,
            batch["decoder_target_tokens"],
            batch["decoder_loss_weights"],
            z_loss=self.z_loss,
            label_smoothing=self.label_smoothing,
        )
        metrics = {
            "loss": (entropy.nll, entropy.weight),
            "accuracy": (entropy.correct, entropy.weight),
            "z_loss": (entropy.z_loss, entropy.weight),
        }
        return Terms(sums={"targets": entropy.total}, metrics=metrics)
