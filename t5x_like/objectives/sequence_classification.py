"""Sequence classification: one of several labels for one text or a pair of texts."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t5x_like.errors import UserError
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Params, Pass
from t5x_like.objectives.heads import HeadForm
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.labels import LABEL_METRICS, check_names
from t5x_like.objectives.sequence_prediction import NAME, SequencePrediction
from t5x_like.recorded import recorded


@recorded
class SequenceClassification(SequencePrediction):
    """Predicts the label of a text or of a pair of texts (Devlin et al. 2019, section 4.1).

    The only term is `sequence_classification`: the cross-entropy of the label. A row whose label is below 0, as of
    unlabeled examples, has weight 0. The metrics are `loss` in nats per row, without label smoothing, and `accuracy`.

    Args:
      labels: Names of the labels, in the order of their indices.
      head: What the head reads, and how: a form of `objectives.heads` that reads rows.
      label_smoothing: Probability that is spread over the other labels, in [0, 1).

    Raises:
      UserError: An argument is invalid.
    """

    coefficients = {NAME: 1.0}

    def __init__(self, labels: Sequence[str], *, head: HeadForm, label_smoothing: float = 0.0):
        self.labels = check_names(labels, type(self).__name__)
        if not 0 <= label_smoothing < 1:
            raise UserError(f"label_smoothing={label_smoothing} is out of range. Give a probability in [0, 1).")
        self.label_smoothing = label_smoothing
        super().__init__(head, len(self.labels), dtype="int32", minimum=0)

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distribution over the labels of each row; see `Objective.read`."""
        predicted = self.read_head(params, outputs, rows, keys)
        predicted = predicted.with_cross_entropy(NAME, LABEL_METRICS, label_smoothing=self.label_smoothing)
        return Pass(rows, outputs, {NAME: predicted})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the index of the label as `predictions` `[batch, 1]`, and `probabilities` `[batch, labels]`."""
        logits = found.predictions[NAME].hidden
        return {
            "predictions": jnp.argmax(logits, axis=-1).astype(jnp.int32),
            "probabilities": jax.nn.softmax(logits[:, 0], axis=-1),
        }
