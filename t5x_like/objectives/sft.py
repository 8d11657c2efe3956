"""Supervised fine-tuning on conversations: a decoder predicts the tokens of the answers."""

from t5x_like.data import conversation_specs
from t5x_like.errors import UserError
from t5x_like.objectives.token_prediction import TokenPrediction
from t5x_like.recorded import recorded


@recorded
class SFT(TokenPrediction):
    """Predicts the tokens of a conversation whose `loss_mask` is 1, from all tokens before them (Ouyang et al. 2022).

    The chat template of the tokenizer writes all special tokens, BOS included.

    Args:
      dynamic: Whether the loss of each token is multiplied by its probability, which has no gradient: dynamic
        fine-tuning (Wu et al. 2025, arXiv:2508.05629, equation 9). The metric `loss` stays the mean negative
        log-likelihood.
      z_loss: See `TokenPrediction`.
      label_smoothing: See `TokenPrediction`.

    Raises:
      UserError: An argument is out of range, or `dynamic` is combined with another change of the loss.
    """

    features = conversation_specs.CONVERSATION

    def __init__(self, *, dynamic: bool = False, z_loss: float = 0.0, label_smoothing: float = 0.0):
        super().__init__(z_loss=z_loss, label_smoothing=label_smoothing)
        if dynamic and (z_loss or label_smoothing):
            raise UserError(
                f"dynamic=True with z_loss={z_loss}, label_smoothing={label_smoothing}: dynamic fine-tuning has "
                "neither. Set both to 0."
            )
        self.dynamic = dynamic
