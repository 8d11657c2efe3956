"""Teacher-forced sequence-to-sequence prediction: span corruption and every text-to-text task of T5."""

import dataclasses

from t5x_like.data import features
from t5x_like.objectives.token_prediction import TokenPrediction
from t5x_like.runtime.recorded import recorded


@recorded
class SequenceToSequence(TokenPrediction):
    """The decoder predicts `targets` given the encoder's `inputs` (Raffel et al. 2020, section 2)."""

    def __init__(self, *, bos_id: int = features.BOS_ID, z_loss: float = 1e-4, label_smoothing: float = 0.0):
        """Args:
        bos_id: what the decoder begins with; BART's is 2.
        z_loss, label_smoothing: see `TokenPrediction`; T5X's z-loss by default.
        """
        super().__init__(z_loss=z_loss, label_smoothing=label_smoothing)
        self.features = dataclasses.replace(features.ENCODER_DECODER, bos_id=bos_id)
