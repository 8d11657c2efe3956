"""Classification at every token of a text, with weights that grow (Dai and Le 2015, arXiv:1511.01432, section 2)."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Params, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.labels import LABEL_METRICS
from t5x_like.objectives.prediction import Prediction, identity
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.sequence_prediction import NAME
from t5x_like.recorded import recorded

TERM = "label_gain"


@recorded
class LabelGain(SequenceClassification):
    """Predicts the label of a text at each of its tokens, with weights from 0 at the first to 1 at the last.

    Gradients reach the beginning of a long text on shorter paths. The weight of token i of n, from 0, is i / (n - 1);
    that of a single token is 1. The only term is `label_gain`, the weighted cross-entropy of the label. The metrics and
    the predictions are those of the last token.

    Args:
      labels: See `SequenceClassification`.
      head: A form for the last token of a model that reads from left to right, such as `heads.LastToken`; its layers
        are applied at every token.
      label_smoothing: See `SequenceClassification`.

    Raises:
      UserError: An argument is invalid.
    """

    coefficients = {TERM: 1.0}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the gains of the tokens, and 1 for rows of text; see `Objective.weights`."""
        return {TERM: gains(rows["decoder_segment_ids"]), NAME: super().weights(rows)[TERM]}

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights of the rows whose label is known; see `Objective.target_weights`."""
        known = rows["label"] >= self._minimum
        return {name: weights * known for name, weights in self.weights(rows).items()}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions over the labels at all tokens and at the last one; see `Objective.read`."""
        every = params["objective"][NAME](outputs.hidden, keys.dropout)
        weights, known, targets = self.weights(rows), {}, None
        if "label" in rows:
            known, targets = self.target_weights(rows), rows["label"]
        at_all = None if targets is None else jnp.broadcast_to(targets, every.shape[:2])
        gained = Prediction(every, identity, weights[TERM], at_all, known.get(TERM))
        last = Prediction(self._head.read(every, rows), identity, weights[NAME], targets, known.get(NAME))
        gained = gained.with_cross_entropy(TERM, {}, label_smoothing=self.label_smoothing)
        # The metrics of the last token are no part of the loss.
        losses = last.with_cross_entropy(TERM, LABEL_METRICS).losses
        losses = tuple(dataclasses.replace(loss, factor=0.0) for loss in losses)
        last = dataclasses.replace(last, targets=None, target_weights=None, losses=losses)
        return Pass(rows, outputs, {TERM: gained, NAME: last})


def gains(segments: Array) -> Float[Array, "batch length"]:
    """Returns i / (n - 1) for token i of the n tokens of a row, and 0 for padding.

    Args:
      segments: 0 for padding, int32 `[batch length]`.
    """
    real = (segments != 0).astype(jnp.float32)
    last = jnp.sum(real, axis=1, keepdims=True) - 1
    number = jnp.cumsum(real, axis=1) - 1
    return real * jnp.where(last > 0, number / jnp.maximum(last, 1), 1.0)
