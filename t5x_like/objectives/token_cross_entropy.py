"""Base class of the objectives whose only term is the cross-entropy of the tokens of one prediction."""

from collections.abc import Mapping

import jax

from t5x_like.kernels.chunks import PositionLoss, Readout, sum_over_positions
from t5x_like.kernels.cross_entropy import CrossEntropy, position_loss
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Params, Terms
from t5x_like.objectives.component import Component
from t5x_like.objectives.prediction import Prediction


class TokenCrossEntropy(Component):
    """The cross-entropy of the targets of the prediction `term`, with z-loss and label smoothing.

    The metrics are `loss` in nats per weighted target, without z-loss and label smoothing, `accuracy` and `z_loss`.

    Attributes:
      term: name of the term and of its prediction.
      z_loss: factor of log(Z)².
      label_smoothing: probability that is spread over the other tokens.
    """

    term: str
    z_loss: float
    label_smoothing: float = 0.0

    def terms_of(
        self, params: Params, outputs: Outputs, batch: Batch, *, dropout_key: jax.Array | None = None
    ) -> Terms:
        """Computes the term from a forward pass; see `Component.terms_of`."""
        predicted = self.predictions(params, outputs, batch, dropout_key=dropout_key)
        readout = Readout(predicted[self.term].hidden, predicted[self.term].logits)
        sums = {name: sum_over_positions(readout, loss) for name, loss in self.position_losses(predicted).items()}
        return self.terms_of_sums(sums, params, outputs, batch, dropout_key=dropout_key)

    def position_losses(self, predictions: Mapping[str, Prediction]) -> dict[str, PositionLoss]:
        """Returns the cross-entropy of the targets; see `Component.position_losses`."""
        predicted = predictions[self.term]
        return {
            self.term: position_loss(
                predicted.targets, predicted.target_weights, z_loss=self.z_loss, label_smoothing=self.label_smoothing
            )
        }

    def terms_of_sums(
        self,
        sums: Mapping[str, CrossEntropy],
        params: Params,
        outputs: Outputs,
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
    ) -> Terms:
        """Makes the term and the metrics of the cross-entropy; see `Component.terms_of_sums`."""
        entropy = sums[self.term]
        metrics = {
            "loss": (entropy.nll, entropy.weight),
            "accuracy": (entropy.correct, entropy.weight),
            "z_loss": (entropy.z_loss, entropy.weight),
        }
        return Terms(sums={self.term: entropy.total}, metrics=metrics)
