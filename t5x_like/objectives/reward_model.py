"""Reward models: a score of a conversation, learned from pairs of completions."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data import conversation_specs
from t5x_like.errors import UserError
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import heads, sequence_prediction
from t5x_like.objectives.base import Batch, Objective, Params, Pass
from t5x_like.objectives.heads import HeadForm
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.labels import real_choices
from t5x_like.objectives.prediction import Prediction, identity
from t5x_like.objectives.preferences import NAME, predict_pairs, reward_metrics
from t5x_like.recorded import recorded

# The name of a regression's head, so that an export has one score, and a regression can start from the head.
HEAD = sequence_prediction.NAME


@recorded
class RewardModel(Objective):
    """Scores conversations so that the preferred one of a pair has the higher score (Ouyang et al. 2022, equation 1).

    The score is the output of a head on the last token. The only term is `preferences`, the mean over the pairs of
    -log σ(r_chosen - r_rejected - margin) + centering · (r_chosen + r_rejected)². The margin is a number in the data
    (Touvron et al. 2023, section 3.2.2), and 0 by default; the second part keeps scores around 0 (Eisenstein et al.
    2023, arXiv:2312.09244). The metrics are those of `preferences.reward_metrics`, whose `loss` is the first part.

    Args:
      centering: Factor of the second part; TRL recommends 0.01.
      head: Form of the head; None for that of decoders in transformers, `heads.LastToken`.

    Raises:
      UserError: `centering` is negative, or the head reads each token.
    """

    coefficients = {NAME: 1.0}
    features = conversation_specs.SCORED_PAIR
    predicts = "scores"

    def __init__(self, *, centering: float = 0.0, head: HeadForm | None = None):
        if centering < 0:
            raise UserError(f"CENTERING={centering}: negative. Give a factor such as 0.01, or 0.")
        self.head_form = head or heads.LastToken()
        heads.check_form(self.head_form, each_token=False)
        self.centering = centering

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the head `sequence_classification`; see `Objective.init`."""
        return {HEAD: self.head_form.make(model.config, 1, key=key)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for pairs of two texts; see `Objective.weights`."""
        return {NAME: jnp.all(real_choices(rows, 2), axis=1, keepdims=True).astype(jnp.float32)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the scores of each pair as the logits of two choices; see `Objective.read`."""
        states = self.head_form.read(outputs.hidden, rows)
        rewards = params["objective"][HEAD](states, keys.dropout)[..., 0].reshape(-1, 2)
        weights = self.weights(rows)[NAME]
        losses = -jax.nn.log_sigmoid(rewards[:, 0] - rewards[:, 1] - rows["margin"][:, 0])
        centered = self.centering * jnp.square(rewards[:, 0] + rewards[:, 1])
        first = jnp.zeros(weights.shape, jnp.int32)  # the chosen completion
        return Pass(
            rows,
            outputs,
            {NAME: Prediction(rewards[:, None], identity, weights, first, weights)},
            sums={NAME: jnp.sum((losses + centered) * weights[:, 0])},
            metrics=reward_metrics(losses, rewards, weights),
        )

    def predict(self, found: Pass) -> dict[str, Array]:
        """Compares the scores of each pair; see `preferences.predict_pairs`."""
        return predict_pairs(found)
