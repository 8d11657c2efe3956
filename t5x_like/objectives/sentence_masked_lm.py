"""Masked language modeling of models with a token per sentence beside the text."""

import dataclasses

from t5x_like.data import specs
from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.recorded import recorded


def with_sentences(inputs: FeatureSpec) -> FeatureSpec:
    """Adds where sentences begin: the model features `global_positions` and `global_segment_ids` `[batch globals]`.

    The task feature `global_positions` has the first token of each sentence in `inputs`, in ascending order.
    `TASK_FEATURE_LENGTHS['global_positions']` is the maximum number of sentences per row.

    Args:
      inputs: Features of an encoder that reads `inputs`.
    """
    name = "global_positions"
    added = (
        ModelFeature(name, name, "row_positions", within="inputs"),
        ModelFeature("global_segment_ids", name, "segment_ids"),
    )
    return dataclasses.replace(inputs, features=(*inputs.features, *added))


@recorded
class SentenceMaskedLM(MaskedLM):
    """Masked language modeling of a model that reads a token per sentence (ETC, Ainslie et al. 2020, section 3).

    The task gives `global_positions` beside the features of masked language modeling. Contrastive predictive coding of
    sentences, the other objective of ETC's pretraining, is not published. Term, metrics and head are inherited.

    Args:
      z_loss: Factor of log(Z)², which keeps the logits close to normalized.
    """

    features = with_sentences(specs.MASKED_LM)
