"""Causal language modeling: a decoder predicts each token from the tokens before it."""

import dataclasses

from t5x_like.data import features, specs
from t5x_like.data.prompts import PromptFormat
from t5x_like.errors import UserError
from t5x_like.objectives.token_prediction import TokenPrediction
from t5x_like.recorded import recorded


@recorded
class CausalLM(TokenPrediction):
    """Predicts each token of `targets` (Radford et al. 2018, equation 1).

    The first token of each segment is predicted from BOS. Without BOS, the first token is an input but not a target, as
    in GPT-2's training on windows of a text.

    Args:
      bos_id: Token id in front of each segment; 50256 for GPT-2. None for no BOS.
      z_loss: See `TokenPrediction`.
      label_smoothing: See `TokenPrediction`.

    Raises:
      UserError: An argument is out of range.
    """

    def __init__(self, *, bos_id: int | None = features.BOS_ID, z_loss: float = 0.0, label_smoothing: float = 0.0):
        super().__init__(z_loss=z_loss, label_smoothing=label_smoothing)
        if bos_id is not None and bos_id < 0:
            raise UserError(f"bos_id={bos_id} is not a token id. Give an id of at least 0, or None for no BOS.")
        self.prompt_format = PromptFormat(bos_id)
        self.features = specs.NEXT_TOKEN if bos_id is None else dataclasses.replace(specs.CAUSAL_LM, bos_id=bos_id)
