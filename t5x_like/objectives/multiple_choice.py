"""Multiple choice: which of several texts answers a question, continues a story or follows from a context."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data import specs
from t5x_like.kernels.cross_entropy import from_logits
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Params, Terms
from t5x_like.objectives.component import Component
from t5x_like.objectives.heads import HeadForm, check_form
from t5x_like.objectives.labels import real_choices, row_weights
from t5x_like.objectives.prediction import Prediction
from t5x_like.runtime.recorded import recorded

NAME = "multiple_choice"
# Logit of a choice without tokens, whose probability is 0. Its square is finite.
MASKED = -1e9


@recorded
class MultipleChoice(Component):
    """Predicts which choice is right (Devlin et al. 2019, section 4.4; Radford et al. 2018, section 3.3).

    The model reads each choice together with its context as a row of its own. The head computes one score per choice,
    and a softmax over the choices gives their probabilities. The only term is `multiple_choice`: the cross-entropy of
    the right choice. A choice without tokens has probability 0, so that examples may have fewer choices. An example
    whose label is below 0, or not that of a choice with tokens, has weight 0. The metrics are `loss` in nats per
    example and `accuracy`.

    Args:
      num_choices: number of choices per example.
      head: what the head reads, and how: a form of `objectives.heads` that reads rows. transformers' classes for BERT
        and RoBERTa have `heads.PooledFirstToken`.

    Raises:
      UserError: `num_choices` is not an integer of at least 2, or the head reads each token.
    """

    coefficients = {NAME: 1.0}

    def __init__(self, num_choices: int, *, head: HeadForm):
        check_form(head, each_token=False)
        self.features = specs.multiple_choice(num_choices, head.inputs)
        self.other_names = {f"{NAME}/{part}": name for part, name in head.pretrained.items()}
        self._head, self._choices = head, num_choices

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the head `multiple_choice`; see `Objective.init`."""
        return {NAME: self._head.make(model.config, 1, key=key)}

    def prediction_weights(self, batch: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for examples with a choice, with or without a label; see `Component.prediction_weights`."""
        return {NAME: row_weights(batch, self._choices)}

    def target_weights(self, batch: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for examples whose label is that of a choice with tokens; see `Component.target_weights`."""
        is_label = batch["label"] == jnp.arange(self._choices)
        known = is_label & real_choices(batch, self._choices)
        return {NAME: jnp.any(known, axis=1, keepdims=True).astype(jnp.float32)}

    def predictions(
        self, params: Params, outputs: Outputs, batch: Batch, *, dropout_key: jax.Array | None = None
    ) -> dict[str, Prediction]:
        """Returns the distribution over the choices, one position per example; see `Component.predictions`.

        The logit of a choice without tokens is `MASKED`.
        """
        states = self._head.read(outputs.hidden, batch)
        states = states.reshape(-1, self._choices, states.shape[-1])
        scores = params["objective"][NAME](states, dropout_key)[..., 0]
        logits = jnp.where(real_choices(batch, self._choices), scores, MASKED)[:, jnp.newaxis]
        return self.of_logits({NAME: logits}, {NAME: batch["label"]} if "label" in batch else {}, batch)

    def terms_of(
        self, params: Params, outputs: Outputs, batch: Batch, *, dropout_key: jax.Array | None = None
    ) -> Terms:
        """Computes the term from a forward pass; see `Component.terms_of`."""
        predicted = self.predictions(params, outputs, batch, dropout_key=dropout_key)[NAME]
        entropy = from_logits(predicted.hidden, predicted.targets, predicted.target_weights)
        metrics = {"loss": (entropy.nll, entropy.weight), "accuracy": (entropy.correct, entropy.weight)}
        return Terms(sums={NAME: entropy.total}, metrics=metrics)

    def predictions_of(self, params: Params, outputs: Outputs, batch: Batch) -> dict[str, Array]:
        """Returns the index of the choice as `predictions` `[batch, 1]`, and `probabilities` `[batch, choices]`."""
        logits = self.predictions(params, outputs, batch)[NAME].hidden[:, 0]
        return {
            "predictions": jnp.argmax(logits, axis=1, keepdims=True).astype(jnp.int32),
            "probabilities": jax.nn.softmax(logits, axis=1),
        }
