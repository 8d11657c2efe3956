"""Prefix language modelling: a decoder that reads its input all at once."""

import dataclasses

from t5x_like.data import features
from t5x_like.objectives.token_prediction import TokenPrediction
from t5x_like.runtime.recorded import recorded


@recorded
class PrefixLM(TokenPrediction):
    """A decoder reads `inputs` and predicts `targets` behind them (Raffel et al. 2020, section 3.2.1).

    Every position may look at all of the inputs; nothing is learnt from predicting them.
    """

    def __init__(
        self,
        *,
        bos_id: int = features.BOS_ID,
        causal_inputs: bool = False,
        z_loss: float = 0.0,
        label_smoothing: float = 0.0,
    ):
        """Args:
        bos_id: what stands in front of the inputs.
        causal_inputs: inputs look at earlier inputs alone, as a plain language model on text-to-text tasks does
        z_loss, label_smoothing: see `TokenPrediction`.
        """
        super().__init__(z_loss=z_loss, label_smoothing=label_smoothing)
        spec = dataclasses.replace(features.PREFIX_LM, bos_id=bos_id)
        if causal_inputs:
            spec = dataclasses.replace(spec, features=tuple(f for f in spec.features if f.name != "decoder_prefix"))
        self.features = spec
