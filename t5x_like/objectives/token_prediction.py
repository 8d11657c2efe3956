"""Base class of the objectives that predict `decoder_target_tokens` at each position."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data.features import FeatureSpec
from t5x_like.decoding.score import score_hidden
from t5x_like.errors import UserError
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Params
from t5x_like.objectives.prediction import Prediction
from t5x_like.objectives.token_cross_entropy import TokenCrossEntropy

TERM = "targets"


class TokenPrediction(TokenCrossEntropy):
    """Cross-entropy of the decoder's target tokens.

    The only term is `targets`, weighted by `decoder_loss_weights`. The metrics are `loss` in nats per weighted target
    token, without z-loss and label smoothing, `accuracy` and `z_loss`. Subclasses set `features`.

    Args:
      z_loss: factor of log(Z)², which keeps the logits close to normalized.
      label_smoothing: probability that is spread over the other tokens, in [0, 1).

    Raises:
      UserError: an argument is out of range.
    """

    features: FeatureSpec
    term = TERM
    coefficients = {TERM: 1.0}

    def __init__(self, *, z_loss: float = 0.0, label_smoothing: float = 0.0):
        if z_loss < 0:
            raise UserError(f"z_loss={z_loss} is negative. Give a factor of at least 0.")
        if not 0 <= label_smoothing < 1:
            raise UserError(f"label_smoothing={label_smoothing} is out of range. Give a probability in [0, 1).")
        self.z_loss, self.label_smoothing = z_loss, label_smoothing

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Returns no heads: the logits are those of the model's `unembed`."""
        return {}

    def prediction_weights(self, batch: Batch) -> dict[str, Float[Array, "batch length"]]:
        """Returns the loss weights; see `Component.prediction_weights`."""
        return {TERM: batch["decoder_loss_weights"].astype(jnp.float32)}

    def predictions(
        self, params: Params, outputs: Outputs, batch: Batch, *, dropout_key: jax.Array | None = None
    ) -> dict[str, Prediction]:
        """Returns the distributions of the target tokens as `targets`; see `Component.predictions`."""
        weights = self.prediction_weights(batch)[TERM]
        targets = batch["decoder_target_tokens"]
        return {TERM: Prediction(outputs.hidden, params["model"].unembed, weights, targets, weights)}

    def predictions_of(self, params: Params, outputs: Outputs, batch: Batch) -> dict[str, Array]:
        """Scores the targets of each row; see `decoding.score.Scored`.

        Returns:
          `[batch]` each: `scores`, the log-probability of the targets in nats, `tokens`, the number of scored tokens,
          and `greedy`, whether each of them is the most probable one.
        """
        scored = score_hidden(params["model"], outputs.hidden, batch)
        return {"scores": scored.log_probability, "tokens": scored.tokens, "greedy": scored.greedy}
