"""StructBERT's word objective: masked language modeling, and the original order of shuffled trigrams."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.data import specs
from t5x_like.data.features import ModelFeature, TaskFeature
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import masked_lm
from t5x_like.objectives.base import Batch, Params, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.masked_lm import MaskedLM, gather_positions, most_probable
from t5x_like.objectives.prediction import Prediction
from t5x_like.recorded import recorded

NAME = "word_structure"
_METRICS = {f"{NAME}_loss": "nll", f"{NAME}_accuracy": "correct"}


@recorded
class WordStructure(MaskedLM):
    """Predicts masked tokens, and the original tokens at `shuffled_positions` (Wang et al. 2020, section 3.1).

    Both predictions have the head of `MaskedLM`, which adds the first term and its metrics. The second term,
    `word_structure`, is the cross-entropy at the shuffled positions. Its metrics are `word_structure_loss` in nats per
    token and `word_structure_accuracy`.

    Args:
      z_loss: Factor of log(Z)², which keeps the logits close to normalized.
    """

    features = dataclasses.replace(
        specs.MASKED_LM,
        features=(
            *specs.MASKED_LM.features,
            ModelFeature("shuffled_positions", "shuffled_positions", "row_positions", within="inputs"),
            ModelFeature("shuffled_targets", "shuffled_targets", "tokens"),
            ModelFeature("shuffled_weights", "shuffled_targets", "weights"),
        ),
        aligned_features=(
            *specs.MASKED_LM.aligned_features,
            TaskFeature("shuffled_positions", aligned_with="shuffled_targets"),
        ),
    )
    coefficients = {masked_lm.NAME: 1.0, NAME: 1.0}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns 1 for the masked, for all and for the shuffled tokens; see `Objective.weights`."""
        return super().weights(rows) | {NAME: rows["shuffled_weights"].astype(jnp.float32)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of `MaskedLM` and those at the shuffled tokens; see `Objective.read`."""
        found = super().read(params, outputs, rows, keys=keys)
        model, head = params["model"], params["objective"][masked_lm.NAME]
        transformed = head(gather_positions(outputs.hidden, rows["shuffled_positions"]))
        weights = self.weights(rows)[NAME]
        predicted = Prediction(
            transformed, lambda hidden: head.logits(model, hidden), weights, rows["shuffled_targets"], weights
        ).with_cross_entropy(NAME, _METRICS, z_loss=self.z_loss)
        return dataclasses.replace(found, predictions=found.predictions | {NAME: predicted})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the most probable ids: `predictions` of the masked and `word_structure` of the shuffled positions."""
        return super().predict(found) | {NAME: most_probable(found.predictions[NAME])}
