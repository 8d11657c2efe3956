"""Sequence regression: a score for one text or a pair of texts."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t5x_like.models.outputs import Outputs
from t5x_like.objectives import sequence_prediction
from t5x_like.objectives.base import Batch, Params, Terms
from t5x_like.objectives.heads import HeadForm
from t5x_like.objectives.sequence_prediction import SequencePrediction
from t5x_like.runtime.recorded import recorded

# Classification has the same head.
NAME = sequence_prediction.NAME
TERM = "sequence_regression"


@recorded
class SequenceRegression(SequencePrediction):
    """Predicts a score of a text or of a pair of texts, such as their similarity (STS-B).

    The only term is `sequence_regression`: the squared error, as in transformers with `num_labels=1`. The metric is
    `loss`, the mean squared error.

    Args:
      head: what the head reads, and how: a form of `objectives.heads` that reads rows.
      minimum: smallest score that is known. Rows with a smaller one have weight 0: the score of unlabeled examples
        is -1. None: all scores are known.

    Raises:
      UserError: the head reads each token.
    """

    coefficients = {TERM: 1.0}

    def __init__(self, *, head: HeadForm, minimum: float | None = 0.0):
        super().__init__(head, 1, dtype="float32", minimum=minimum)

    def terms_of(
        self, params: Params, outputs: Outputs, batch: Batch, *, dropout_key: jax.Array | None = None
    ) -> Terms:
        """Computes the term from a forward pass; see `Component.terms_of`."""
        predicted = self.predictions(params, outputs, batch, dropout_key=dropout_key)[TERM]
        weights = predicted.target_weights
        # Unknown scores may be NaN, which a weight of 0 does not remove.
        errors = jnp.where(weights > 0, predicted.hidden[:, :, 0] - predicted.targets, 0.0)
        total, weight = jnp.sum(jnp.square(errors)), jnp.sum(weights)
        return Terms(sums={TERM: total}, metrics={"loss": (total, weight)})

    def predictions_of(self, params: Params, outputs: Outputs, batch: Batch) -> dict[str, Array]:
        """Returns the score as `predictions` `[batch, 1]`."""
        return {"predictions": self.predictions(params, outputs, batch)[TERM].hidden[:, :, 0]}
