"""The log-probabilities of the completions of pairs, which `t5x_like cache_logits` stores of a reference model."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.data import conversation_specs
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Objective, Params, Pass
from t5x_like.objectives.completions import summed_log_probabilities, with_completion
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import Prediction, identity
from t5x_like.recorded import recorded

NAME = "completions"
# Texts of an example.
TEXTS = 2


@recorded
class CompletionScores(Objective):
    """Scores the two texts of an example by the log-probabilities of their completions; it has no loss.

    The only prediction, `completions`, has the two numbers as logits.

    Args:
      objective: The objective that reads the stored numbers, whose features are read here as well.
    """

    coefficients = {NAME: 1.0}
    text_features = conversation_specs.CONVERSATION

    def __init__(self, objective: Objective):
        self.features = objective.features

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for examples with a completion; see `Objective.weights`."""
        some = jnp.any(with_completion(rows).reshape(-1, TEXTS), axis=1, keepdims=True)
        return {NAME: some.astype(jnp.float32)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the log-probabilities; see `Objective.read`."""
        scores = summed_log_probabilities(params["model"], outputs, rows).reshape(-1, 1, TEXTS)
        return Pass(rows, outputs, {NAME: Prediction(scores, identity, self.weights(rows)[NAME])})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns `predictions` `[batch, 1]`, the more probable text, and `probabilities` `[batch, 2]` of the two."""
        scores = found.predictions[NAME].hidden[:, 0]
        return {
            "predictions": jnp.argmax(scores, axis=1, keepdims=True).astype(jnp.int32),
            "probabilities": jax.nn.softmax(scores, axis=1),
        }
