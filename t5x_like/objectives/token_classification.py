"""Token classification: a label for each token, such as the type of the named entity that it belongs to."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data import specs
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Objective, Params, Pass
from t5x_like.objectives.heads import HeadForm, check_form
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.labels import LABEL_METRICS, check_names, real_tokens
from t5x_like.objectives.prediction import Prediction, identity
from t5x_like.recorded import recorded

NAME = "token_classification"


@recorded
class TokenClassification(Objective):
    """Predicts the label of each token (tagging; Devlin et al. 2019, section 5.3).

    The only term is `token_classification`: the cross-entropy of the labels. Tokens with a label below 0 (special
    tokens, and all but the first piece of a word) and padding have weight 0. The metrics are `loss` in nats per labeled
    token and `accuracy`.

    Args:
      labels: Names of the labels, in the order of their indices.
      head: What the head reads, and how: `heads.EachToken` or `heads.EachDecoderToken`.

    Raises:
      UserError: `labels` is not a sequence of at least two different names, or the head does not read each token.
    """

    coefficients = {NAME: 1.0}

    def __init__(self, labels: Sequence[str], *, head: HeadForm):
        self.labels = check_names(labels, type(self).__name__)
        check_form(head, each_token=True)
        self.features = specs.with_tags(head.inputs, num_labels=len(self.labels))
        self._head = self.head_form = head

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the head `token_classification`; see `Objective.init`."""
        return {NAME: self._head.make(model.config, len(self.labels), key=key)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch length"]]:
        """Returns 1 for tokens, with or without a label; see `Objective.weights`."""
        return {NAME: real_tokens(rows).astype(jnp.float32)}

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch length"]]:
        """Returns 1 for tokens whose label is known; see `Objective.target_weights`."""
        return {NAME: (real_tokens(rows) & (rows["labels"] >= 0)).astype(jnp.float32)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distribution over the labels of each token; see `Objective.read`."""
        logits = params["objective"][NAME](self._head.read(outputs.hidden, rows), keys.dropout)
        known = self.target_weights(rows)[NAME] if "labels" in rows else None
        predicted = Prediction(logits, identity, self.weights(rows)[NAME], rows.get("labels"), known)
        return Pass(rows, outputs, {NAME: predicted.with_cross_entropy(NAME, LABEL_METRICS)})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Predicts the label of each token.

        Returns:
          The indices of the labels as `predictions` `[batch, length]`, and `probabilities` `[batch, length, labels]`.
        """
        logits = found.predictions[NAME].hidden
        return {
            "predictions": jnp.argmax(logits, axis=-1).astype(jnp.int32),
            "probabilities": jax.nn.softmax(logits, axis=-1),
        }
