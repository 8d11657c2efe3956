"""Causal language modelling: every token from those before it."""

import dataclasses

from t5x_like.data import features
from t5x_like.errors import UserError
from t5x_like.objectives.token_prediction import TokenPrediction
from t5x_like.runtime.recorded import recorded


@recorded
class CausalLM(TokenPrediction):
    """A decoder predicts each token of `targets` (Radford et al. 2018, equation 1).

    The first token of each segment is predicted from BOS; without one it is read and not predicted, as where GPT is
    trained on windows cut out of a text.
    """

    def __init__(self, *, bos_id: int | None = features.BOS_ID, z_loss: float = 0.0, label_smoothing: float = 0.0):
        """Args:
        bos_id: what stands in front of each segment; GPT-2's is 50256. None for no BOS.
        z_loss, label_smoothing: see `TokenPrediction`.
        """
        super().__init__(z_loss=z_loss, label_smoothing=label_smoothing)
        if bos_id is not None and bos_id < 0:
            raise UserError(f"bos_id={bos_id} must be a token id, or None for no BOS")
        self.features = (
            features.NEXT_TOKEN if bos_id is None else dataclasses.replace(features.CAUSAL_LM, bos_id=bos_id)
        )
