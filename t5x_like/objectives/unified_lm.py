"""Masked language modeling under masks that differ between rows, as UniLM's pretraining has them."""

import dataclasses

from t5x_like.data import specs
from t5x_like.data.features import ModelFeature, TaskFeature
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.recorded import recorded


@recorded
class UnifiedLM(MaskedLM):
    """Masked language modeling whose task says what each token sees (UniLM, Dong et al. 2019, section 2.3).

    The task gives `ranks` and `token_types`: a token sees the tokens of its own rank and of lower ranks. Term, metrics
    and head are inherited.

    Args:
      z_loss: Factor of log(Z)², which keeps the logits close to normalized.
    """

    features = dataclasses.replace(
        specs.MASKED_LM_WITH_TYPES,
        features=(*specs.MASKED_LM_WITH_TYPES.features, ModelFeature("encoder_ranks", "ranks", "tokens")),
        aligned_features=(
            *specs.MASKED_LM_WITH_TYPES.aligned_features,
            TaskFeature("ranks", aligned_with="inputs"),
        ),
    )
