"""Base class of the objectives that predict one target per row of text."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data import specs
from t5x_like.data.features import DType
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Params
from t5x_like.objectives.component import Component
from t5x_like.objectives.heads import HeadForm, check_form
from t5x_like.objectives.labels import row_weights
from t5x_like.objectives.prediction import Prediction

# Classification and regression have the same head, so that one can start from the parameters of the other.
NAME = "sequence_classification"


class SequencePrediction(Component):
    """Predicts the `label` `[batch, 1]` of the rows of a batch with a head on the model.

    Subclasses set `coefficients`, with one term.

    Args:
      head: what the head reads, and how.
      outputs: number of outputs of the head.
      dtype: dtype of the labels.
      minimum: smallest label that is known; rows with a smaller label have weight 0. None: all labels are known.

    Raises:
      UserError: the head reads each token.
    """

    def __init__(self, head: HeadForm, outputs: int, *, dtype: DType, minimum: float | None):
        check_form(head, each_token=False)
        num_labels = outputs if dtype == "int32" else None
        self.features = specs.with_label(head.inputs, dtype, num_labels=num_labels)
        self.other_names = {f"{NAME}/{part}": name for part, name in head.pretrained.items()}
        self._head, self._outputs, self._minimum = head, outputs, minimum
        # Sequences per example, such as the two orders of a pair of texts.
        self._sequences = max(len(feature.parts) for feature in head.inputs.features)

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the head `sequence_classification`; see `Objective.init`."""
        return {NAME: self._head.make(model.config, self._outputs, key=key)}

    def prediction_weights(self, batch: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for rows of text, with or without a label; see `Component.prediction_weights`."""
        return {self.term: row_weights(batch, self._sequences)}

    def target_weights(self, batch: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for rows of text whose label is known; see `Component.target_weights`."""
        weights = row_weights(batch, self._sequences)
        return {self.term: weights if self._minimum is None else weights * (batch["label"] >= self._minimum)}

    def predictions(
        self, params: Params, outputs: Outputs, batch: Batch, *, dropout_key: jax.Array | None = None
    ) -> dict[str, Prediction]:
        """Returns the outputs of the head, one position per row; see `Component.predictions`."""
        logits = params["objective"][NAME](self._head.read(outputs.hidden, batch), dropout_key)
        targets = {self.term: batch["label"]} if "label" in batch else {}
        return self.of_logits({self.term: logits}, targets, batch)

    @property
    def term(self) -> str:
        """Name of the only term."""
        (term,) = self.coefficients
        return term
