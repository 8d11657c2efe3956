"""Multi-label classification: any number of labels for one text or a pair of texts."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.kernels.chunks import PositionLoss
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Params, Pass
from t5x_like.objectives.heads import HeadForm
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.labels import check_names
from t5x_like.objectives.prediction import LogitTerm, Scalar
from t5x_like.objectives.sequence_prediction import SequencePrediction
from t5x_like.recorded import recorded

TERM = "multi_label_classification"


@recorded
class MultiLabelClassification(SequencePrediction):
    """Predicts for each label whether a text has it, such as the types of an entity (Zhang et al. 2019, section 3.5).

    The only term is `multi_label_classification`: the binary cross-entropy, averaged over rows and labels, as in
    torch's `BCEWithLogitsLoss`. `targets` have 1 for the labels of a row and 0 for the others; a value below 0 is
    unknown and has weight 0. The metrics are `loss` in nats per label, and `accuracy`, the share of labels whose
    probability is on the right side of 0.5. Each label is a position of the prediction.

    Args:
      labels: Names of the labels, in their order in `targets`.
      head: What the head reads, and how: a form of `objectives.heads` that reads rows.

    Raises:
      UserError: The head reads each token, or the names are not different strings.
    """

    predicts = "labels"
    coefficients = {TERM: 1.0}

    def __init__(self, labels: Sequence[str], *, head: HeadForm):
        self.labels = check_names(labels, type(self).__name__)
        super().__init__(head, len(self.labels), dtype="float32", minimum=0)

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch labels"]]:
        """Returns 1 for all labels of rows of text, known or not; see `Objective.weights`."""
        return {TERM: jnp.repeat(super().weights(rows)[TERM], self._outputs, axis=1)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the logits, one position per label; see `Objective.read`."""
        predicted = self.read_head(params, outputs, rows, keys)
        predicted = dataclasses.replace(predicted, hidden=jnp.swapaxes(predicted.hidden, 1, 2))
        if predicted.targets is not None:
            loss = PositionLoss(
                lambda logits, teachers, known: _binary_cross_entropy(logits[:, :, 0], *known),
                (predicted.targets, predicted.target_weights),
                trained=lambda sums: sums[0],
            )
            metrics = {"loss": lambda sums: (sums[0], sums[2]), "accuracy": lambda sums: (sums[1], sums[2])}
            predicted = predicted.with_loss(LogitTerm(TERM, loss, metrics=metrics))
        return Pass(rows, outputs, {TERM: predicted})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the probability of each label as `predictions` `[batch, labels]`."""
        return {"predictions": jax.nn.sigmoid(found.predictions[TERM].hidden[:, :, 0])}


def _binary_cross_entropy(
    logits: Float[Array, "batch labels"], targets: Float[Array, "batch labels"], weights: Float[Array, "batch labels"]
) -> tuple[Scalar, Scalar, Scalar]:
    """Returns the sum of the losses of known labels, the number of right ones, and their number."""
    signed = jnp.where(targets > 0, logits, -logits)
    return jnp.sum(weights * jax.nn.softplus(-signed)), jnp.sum(weights * (signed > 0)), jnp.sum(weights)
