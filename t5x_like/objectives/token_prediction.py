"""Base class of the objectives that predict `decoder_target_tokens` at each position."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.data.features import FeatureSpec
from t5x_like.decoding.score import score_hidden
from t5x_like.errors import UserError
from t5x_like.kernels.chunks import Unembed
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Objective, Params, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import Prediction

TERM = "targets"
# The metrics of a cross-entropy of tokens: in nats per weighted token without z-loss and label smoothing, and others.
METRICS = {"loss": "nll", "accuracy": "correct", "z_loss": "z_loss"}


class TokenPrediction(Objective):
    """Cross-entropy of the decoder's target tokens.

    The only term is `targets`, weighted by `decoder_loss_weights`. The metrics are `loss` in nats per weighted target
    token, without z-loss and label smoothing, `accuracy` and `z_loss`. Subclasses set `features`.

    Args:
      z_loss: Factor of log(Z)², which keeps the logits close to normalized.
      label_smoothing: Probability that is spread over the other tokens, in [0, 1).

    Attributes:
      inputs_eos: Whether `inputs` end with EOS where no task says so, as in text-to-text tasks do.
      eos_id: Token id that ends a text whose vocabulary has no EOS; None for EOS of the model's special tokens.
      dynamic: Whether the loss of each token is multiplied by its probability; see `kernels.cross_entropy.from_logits`.

    Raises:
      UserError: An argument is out of range.
    """

    features: FeatureSpec
    inputs_eos = True
    eos_id: int | None = None
    dynamic = False
    coefficients = {TERM: 1.0}

    def __init__(self, *, z_loss: float = 0.0, label_smoothing: float = 0.0):
        if z_loss < 0:
            raise UserError(f"z_loss={z_loss} is negative. Give a factor of at least 0.")
        if not 0 <= label_smoothing < 1:
            raise UserError(f"label_smoothing={label_smoothing} is out of range. Give a probability in [0, 1).")
        self.z_loss, self.label_smoothing = z_loss, label_smoothing

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch length"]]:
        """Returns the loss weights; see `Objective.weights`."""
        return {TERM: rows["decoder_loss_weights"].astype(jnp.float32)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the target tokens as `targets`; see `Objective.read`."""
        model = params["model"]
        return self.read_tokens(outputs, rows, outputs.hidden, model.unembed, rows["decoder_target_tokens"])

    def read_tokens(
        self,
        outputs: Outputs,
        rows: Batch,
        hidden: Float[Array, "batch positions embed"],
        unembed: Unembed,
        targets: Int[Array, "batch positions"],
    ) -> Pass:
        """Returns the distributions of tokens with their cross-entropy, weighted by `weights`, as `targets`.

        Args:
          outputs: What the model computed.
          rows: The features.
          hidden: Hidden states at the predicted positions.
          unembed: Maps hidden states to logits.
          targets: The tokens.
        """
        weights = self.weights(rows)[TERM]
        predicted = Prediction(hidden, unembed, weights, targets, weights).with_cross_entropy(
            TERM, METRICS, z_loss=self.z_loss, label_smoothing=self.label_smoothing, dynamic=self.dynamic
        )
        return Pass(rows, outputs, {TERM: predicted})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Scores the targets of each row; see `decoding.score.Scored`.

        Returns:
          `[batch]` each: `scores`, the log-probability of the targets in nats, `tokens`, the number of scored tokens,
          and `greedy`, whether each of them is the most probable one.
        """
        predicted = found.predictions[TERM]
        scored = score_hidden(predicted.hidden, predicted.logits, found.rows)
        return {"scores": scored.log_probability, "tokens": scored.tokens, "greedy": scored.greedy}
