"""Multiple choice: which of several texts answers a question, continues a story or follows from a context."""

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
from t5x_like.objectives.labels import LABEL_METRICS, real_choices, row_weights
from t5x_like.objectives.prediction import Prediction, identity
from t5x_like.recorded import recorded

NAME = "multiple_choice"
# Logit of a choice without tokens, whose probability is 0. Its square is finite.
MASKED = -1e9


@recorded
class MultipleChoice(Objective):
    """Predicts which choice is right (Devlin et al. 2019, section 4.4; Radford et al. 2018, section 3.3).

    The model reads each choice together with its context as a row of its own. The head computes one score per choice,
    and a softmax over the choices gives their probabilities. The only term is `multiple_choice`: the cross-entropy of
    the right choice. A choice without tokens has probability 0, so that examples may have fewer choices. An example
    whose label is below 0, or names a choice without tokens, has weight 0. The metrics are `loss` in nats per
    example and `accuracy`.

    Args:
      num_choices: Number of choices per example.
      head: What the head reads, and how: a form of `objectives.heads` that reads rows. transformers' classes for BERT
        and RoBERTa have `heads.PooledFirstToken`.

    Raises:
      UserError: `num_choices` is not an integer of at least 2, or the head reads each token.
    """

    coefficients = {NAME: 1.0}

    def __init__(self, num_choices: int, *, head: HeadForm):
        check_form(head, each_token=False)
        self.features = specs.multiple_choice(num_choices, head.inputs)
        self.other_names = {f"{NAME}/{part}": name for part, name in head.pretrained.items()}
        self._head = self.head_form = head
        self._choices = num_choices

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the head `multiple_choice`; see `Objective.init`."""
        return {NAME: self._head.make(model.config, 1, key=key)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for examples with a choice, with or without a label; see `Objective.weights`."""
        return {NAME: row_weights(rows, self._choices)}

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for examples whose label names a choice with tokens; see `Objective.target_weights`."""
        is_label = rows["label"] == jnp.arange(self._choices)
        known = is_label & real_choices(rows, self._choices)
        return {NAME: jnp.any(known, axis=1, keepdims=True).astype(jnp.float32)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distribution over the choices, one position per example; see `Objective.read`.

        The logit of a choice without tokens is `MASKED`.
        """
        states = self._head.read(outputs.hidden, rows)
        states = states.reshape(-1, self._choices, states.shape[-1])
        scores = params["objective"][NAME](states, keys.dropout)[..., 0]
        logits = jnp.where(real_choices(rows, self._choices), scores, MASKED)[:, jnp.newaxis]
        known = self.target_weights(rows)[NAME] if "label" in rows else None
        predicted = Prediction(logits, identity, self.weights(rows)[NAME], rows.get("label"), known)
        return Pass(rows, outputs, {NAME: predicted.with_cross_entropy(NAME, LABEL_METRICS)})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the index of the choice as `predictions` `[batch, 1]`, and `probabilities` `[batch, choices]`."""
        logits = found.predictions[NAME].hidden[:, 0]
        return {
            "predictions": jnp.argmax(logits, axis=1, keepdims=True).astype(jnp.int32),
            "probabilities": jax.nn.softmax(logits, axis=1),
        }
