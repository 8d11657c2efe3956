"""Prompted language modeling: the text of a task, read and scored as a causal language model does."""

import dataclasses

from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.objectives.token_prediction import TokenPrediction
from t5x_like.recorded import recorded


@recorded
class PromptedLM(TokenPrediction):
    """Predicts `targets` after `inputs`, the prompt, with causal attention (Radford et al. 2019, section 3).

    Input tokens have no loss. A model that was trained by `CausalLM` computes the same probabilities.

    Args:
      bos_id: token id in front of the inputs, as in the training of the model; None for no BOS. Without BOS, the first
        token of an example without inputs is not predicted.
      z_loss: see `TokenPrediction`.
      label_smoothing: see `TokenPrediction`.

    Raises:
      UserError: an argument is out of range.
    """

    inputs_eos = False  # `targets` continue them

    def __init__(self, *, bos_id: int | None = None, z_loss: float = 0.0, label_smoothing: float = 0.0):
        super().__init__(z_loss=z_loss, label_smoothing=label_smoothing)
        if bos_id is not None and bos_id < 0:
            raise UserError(f"bos_id={bos_id} is not a token id. Give an id of at least 0, or None for no BOS.")
        self.features = (
            specs.PROMPTED if bos_id is None else dataclasses.replace(specs.PROMPTED_WITH_BOS, bos_id=bos_id)
        )
