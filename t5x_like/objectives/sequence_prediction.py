"""Base class of the objectives that predict a label or scores per row of text."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data import specs
from t5x_like.data.features import DType
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Objective, Params
from t5x_like.objectives.heads import HeadForm, check_form
from t5x_like.objectives.keys import Keys
from t5x_like.objectives.labels import row_weights
from t5x_like.objectives.prediction import Prediction, identity

# Classification and regression have the same head, so that one can start from the parameters of the other.
NAME = "sequence_classification"


class SequencePrediction(Objective):
    """Predicts the `label` of the rows of a batch, `[batch, 1]`, or `[batch, scores]`, with a head on the model.

    Subclasses set `coefficients`, with one term.

    Args:
      head: What the head reads, and how.
      outputs: Number of outputs of the head.
      dtype: Dtype of the labels.
      minimum: Smallest label that is known; rows with a smaller label have weight 0. None: all labels are known.

    Raises:
      UserError: The head reads each token.
    """

    def __init__(self, head: HeadForm, outputs: int, *, dtype: DType, minimum: float | None):
        check_form(head, each_token=False)
        if dtype == "int32":
            self.features = specs.with_label(head.inputs, num_labels=outputs)
        else:
            self.features = specs.with_scores(head.inputs, outputs)
        self.other_names = {f"{NAME}/{part}": name for part, name in head.pretrained.items()}
        self._head = self.head_form = head
        self._outputs, self._minimum = outputs, minimum
        # Sequences per example, such as the two orders of a pair of texts.
        self._sequences = max(len(feature.parts) for feature in head.inputs.features)

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the head `sequence_classification`; see `Objective.init`."""
        return {NAME: self._head.make(model.config, self._outputs, key=key)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for rows of text, with or without a label; see `Objective.weights`."""
        return {self.term: row_weights(rows, self._sequences)}

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for rows of text whose label is known; see `Objective.target_weights`."""
        weights = self.weights(rows)[self.term]
        return {self.term: weights if self._minimum is None else weights * (rows["label"] >= self._minimum)}

    def read_head(self, params: Params, outputs: Outputs, rows: Batch, keys: Keys) -> Prediction:
        """Returns the outputs of the head, one position per row, without a loss; see `Objective.read`."""
        logits = params["objective"][NAME](self._head.read(outputs.hidden, rows), keys.dropout)
        known = self.target_weights(rows)[self.term] if "label" in rows else None
        return Prediction(logits, identity, self.weights(rows)[self.term], rows.get("label"), known)

    @property
    def term(self) -> str:
        """Name of the only term."""
        (term,) = self.coefficients
        return term
