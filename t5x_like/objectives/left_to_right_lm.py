"""Left-to-right language modeling with an encoder, whose mask hides the tokens after each position."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data import specs
from t5x_like.data.features import ModelFeature
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.causal_bert import CausalBertConfig
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import masked_lm
from t5x_like.objectives.base import Batch, Objective, Params, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.masked_lm import MaskedLMHead
from t5x_like.objectives.prediction import Prediction
from t5x_like.objectives.token_prediction import METRICS
from t5x_like.recorded import recorded

NAME = "left_to_right_lm"


@recorded
class LeftToRightLM(Objective):
    """Predicts the next token of `inputs` at each token but the last (Devlin et al. 2019, section 5.1, "LTR & No NSP").

    The model is a `CausalBert`. The only term is `left_to_right_lm`, the cross-entropy of the next tokens. The metrics
    are `loss` in nats per predicted token, without z-loss, `accuracy` and `z_loss`. The head is the masked-LM head of
    BERT, `masked_lm`.

    Args:
      z_loss: Factor of log(Z)², which keeps the logits close to normalized.

    Raises:
      UserError: `z_loss` is negative.
    """

    features = dataclasses.replace(
        specs.ENCODER_INPUTS_WITH_TYPES,
        features=(
            *specs.ENCODER_INPUTS_WITH_TYPES.features,
            ModelFeature("next_tokens", "inputs", "next"),
            ModelFeature("next_weights", "inputs", "next_weights"),
        ),
    )
    coefficients = {NAME: 1.0}

    def __init__(self, *, z_loss: float = 0.0):
        if z_loss < 0:
            raise UserError(f"z_loss={z_loss} is negative. Give a factor of at least 0.")
        self.z_loss = z_loss

    def networks(self, config: ModelConfig) -> dict[str, NetworkSpec]:
        """Declares no further networks, and checks the model; see `Objective.networks`.

        Raises:
          UserError: The model is not a left-to-right BERT.
        """
        if not isinstance(config, CausalBertConfig):
            raise UserError(
                f"LeftToRightLM: the model is a {type(config).__name__}, which sees the tokens that it predicts. Give "
                "a CausalBertConfig."
            )
        return {}

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, MaskedLMHead]:
        """Initializes the head `masked_lm`; see `Objective.init`."""
        return {masked_lm.NAME: MaskedLMHead(model.config, key=key)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch length"]]:
        """Returns 1 for tokens that another token follows; see `Objective.weights`."""
        return {NAME: rows["next_weights"].astype(jnp.float32)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the next tokens; see `Objective.read`."""
        model, head = params["model"], params["objective"][masked_lm.NAME]
        weights = self.weights(rows)[NAME]
        predicted = Prediction(
            head(outputs.hidden),
            lambda transformed: head.logits(model, transformed),
            weights,
            rows["next_tokens"],
            weights,
        )
        return Pass(rows, outputs, {NAME: predicted.with_cross_entropy(NAME, METRICS, z_loss=self.z_loss)})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the most probable next token at each position as `predictions` `[batch, length]`."""
        return {"predictions": masked_lm.most_probable(found.predictions[NAME])}
