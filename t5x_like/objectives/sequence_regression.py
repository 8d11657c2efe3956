"""Sequence regression: one or several scores for one text or a pair of texts."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.kernels.chunks import PositionLoss
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import sequence_prediction
from t5x_like.objectives.base import Batch, Params, Pass
from t5x_like.objectives.heads import HeadForm
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.labels import check_names
from t5x_like.objectives.prediction import LogitTerm, Scalar
from t5x_like.objectives.sequence_prediction import SequencePrediction
from t5x_like.recorded import recorded

# Classification has the same head.
NAME = sequence_prediction.NAME
TERM = "sequence_regression"


@recorded
class SequenceRegression(SequencePrediction):
    """Predicts scores of a text or of a pair of texts, such as their similarity (STS-B).

    The only term is `sequence_regression`: the squared error, averaged over rows and scores, as in transformers with
    `problem_type="regression"`. The metric is `loss`, the mean squared error. Each score is a position of the
    prediction.

    Args:
      head: What the head reads, and how: a form of `objectives.heads` that reads rows.
      minimum: Smallest score that is known. Smaller ones have weight 0: the score of unlabeled examples is -1. None:
        all scores are known.
      labels: Names of the scores, in their order in `targets`. Empty for one score without a name.

    Raises:
      UserError: The head reads each token, or the names are not different strings.
    """

    predicts = "scores"
    coefficients = {TERM: 1.0}

    def __init__(self, *, head: HeadForm, minimum: float | None = 0.0, labels: Sequence[str] = ()):
        self.labels = check_names(labels, type(self).__name__, least=0)
        super().__init__(head, len(self.labels) or 1, dtype="float32", minimum=minimum)

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch scores"]]:
        """Returns 1 for all scores of rows of text, known or not; see `Objective.weights`."""
        return {TERM: jnp.repeat(super().weights(rows)[TERM], self._outputs, axis=1)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the scores, one position per score; see `Objective.read`."""
        predicted = self.read_head(params, outputs, rows, keys)
        predicted = dataclasses.replace(predicted, hidden=jnp.swapaxes(predicted.hidden, 1, 2))
        if predicted.targets is not None:
            loss = PositionLoss(
                lambda scores, teachers, known: _squared_error(scores, *known),
                (predicted.targets, predicted.target_weights),
                trained=lambda sums: sums[0],
            )
            predicted = predicted.with_loss(LogitTerm(TERM, loss, metrics={"loss": lambda sums: sums}))
        return Pass(rows, outputs, {TERM: predicted})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the scores as `predictions` `[batch, scores]`."""
        return {"predictions": found.predictions[TERM].hidden[:, :, 0]}


def _squared_error(
    scores: Float[Array, "batch positions 1"], targets: Float[Array, "batch positions"], weights: Array
) -> tuple[Scalar, Scalar]:
    """Returns the sum of the squared errors of known scores, and their number."""
    # Unknown scores may be NaN, which a weight of 0 does not remove.
    errors = jnp.where(weights > 0, scores[:, :, 0] - targets, 0.0)
    return jnp.sum(jnp.square(errors)), jnp.sum(weights)
