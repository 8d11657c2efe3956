"""Scores as distributions over whole numbers (Tai et al. 2015, arXiv:1503.00075, section 4.2; Kiros et al. 2015)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.errors import UserError
from t5x_like.kernels.chunks import PositionLoss
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Params, Pass
from t5x_like.objectives.heads import HeadForm
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import LogitTerm, Scalar
from t5x_like.objectives.sequence_prediction import NAME, SequencePrediction
from t5x_like.recorded import recorded

TERM = "score_distribution"


@recorded
class ScoreDistribution(SequencePrediction):
    """Predicts the score of a text or of a pair of texts by logistic regression with soft labels.

    The classes are the whole numbers from `lowest` to `highest`. The target of a score y between them has probability
    y - ⌊y⌋ at ⌊y⌋ + 1, and the rest at ⌊y⌋. The prediction is the mean of the predicted distribution.

    The only term is `score_distribution`, the cross-entropy. The metrics are `loss`, in nats, and `squared_error` of
    the mean.

    Args:
      head: What the head reads, and how: a form of `objectives.heads` that reads rows.
      lowest: Smallest score. Smaller ones are unknown: the score of unlabeled examples is -1.
      highest: Largest score.

    Raises:
      UserError: The head reads each token, or the range is empty.
    """

    predicts = "mean_score"
    coefficients = {TERM: 1.0}

    def __init__(self, *, head: HeadForm, lowest: int = 0, highest: int = 5):
        if not 0 <= lowest < highest:
            raise UserError(f"lowest={lowest}, highest={highest} of ScoreDistribution: no range of scores from 0 on.")
        super().__init__(head, 1, dtype="float32", minimum=lowest)
        self.lowest, self.highest = lowest, highest

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the head `sequence_classification`, with an output per class; see `Objective.init`."""
        return {NAME: self._head.make(model.config, self.highest - self.lowest + 1, key=key)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distribution of the score of each row; see `Objective.read`."""
        predicted = self.read_head(params, outputs, rows, keys)
        if predicted.targets is not None:
            loss = PositionLoss(
                lambda logits, teachers, known: self._losses(logits, *known),
                (predicted.targets, predicted.target_weights),
                trained=lambda sums: sums[0],
            )
            metrics = {"loss": lambda sums: (sums[0], sums[2]), "squared_error": lambda sums: (sums[1], sums[2])}
            predicted = predicted.with_loss(LogitTerm(TERM, loss, metrics=metrics))
        return Pass(rows, outputs, {TERM: predicted})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the mean scores as `predictions` `[batch, 1]`."""
        return {"predictions": self._means(found.predictions[TERM].hidden)}

    def _means(self, logits: Float[Array, "batch positions classes"]) -> Float[Array, "batch positions"]:
        return jax.nn.softmax(logits) @ jnp.arange(self.lowest, self.highest + 1, dtype=jnp.float32)

    def _losses(
        self, logits: Float[Array, "batch 1 classes"], scores: Float[Array, "batch 1"], weights: Float[Array, "batch 1"]
    ) -> tuple[Scalar, Scalar, Scalar]:
        """Returns the sums of the cross-entropies and of the squared errors of known scores, and their number."""
        scores = jnp.where(weights > 0, jnp.clip(scores, self.lowest, self.highest), self.lowest)
        classes = jnp.arange(self.lowest, self.highest + 1, dtype=jnp.float32)
        # A class gets 1 minus its distance from the score, at least 0.
        targets = jnp.maximum(1 - jnp.abs(scores[..., None] - classes), 0)
        losses = -jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)
        errors = jnp.square(self._means(logits) - scores)
        return jnp.sum(weights * losses), jnp.sum(weights * errors), jnp.sum(weights)
