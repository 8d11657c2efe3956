"""Teacher-forced sequence-to-sequence prediction, such as span corruption and T5's text-to-text tasks."""

import dataclasses

from t5x_like.data import features, prompts, specs
from t5x_like.objectives.token_prediction import TokenPrediction
from t5x_like.recorded import recorded


@recorded
class SequenceToSequence(TokenPrediction):
    """Predicts the decoder's `targets` from the encoder's `inputs` (Raffel et al. 2020, section 2).

    Args:
      bos_id: Token id that the decoder's inputs begin with; 2 for BART.
      encoder_bos: Whether `inputs` begin with the same id and do not end in EOS, as the published T5Gemma reads them.
      z_loss: See `TokenPrediction`. The default is T5X's.
      label_smoothing: See `TokenPrediction`.

    Raises:
      UserError: An argument is out of range.
    """

    def __init__(
        self,
        *,
        bos_id: int = features.BOS_ID,
        encoder_bos: bool = False,
        z_loss: float = 1e-4,
        label_smoothing: float = 0.0,
    ):
        super().__init__(z_loss=z_loss, label_smoothing=label_smoothing)
        self.features = dataclasses.replace(specs.ENCODER_DECODER, bos_id=bos_id)
        if encoder_bos:
            self.features = prompts.with_encoder_bos(self.features)
