"""Losses between a student and its teachers, by name for gin: `@losses.ForwardKL()`.

Each class implements `distillation.loss.Loss`. Its value for a batch is an average in the unit that its docstring
names; coefficients are applied elsewhere.
"""

from t5x_like.distillation.losses.across_tokenizers import GOLD, ULD, MinED
from t5x_like.distillation.losses.approximate_likelihood import ALM
from t5x_like.distillation.losses.attention import AttentionKL, AttentionScoresMSE, AttentionTransfer
from t5x_like.distillation.losses.dual_space import DSKD
from t5x_like.distillation.losses.feature_maps import FeatureMap, FeatureMean, FeatureVariance
from t5x_like.distillation.losses.hidden import HiddenCosine, HiddenMSE, PatientCLS
from t5x_like.distillation.losses.logits import GKD, ForwardKL, JensenShannon, LogitMSE, ReverseKL, SoftCrossEntropy
from t5x_like.distillation.losses.progressive import per_layer, turns
from t5x_like.distillation.losses.relations import Relations
from t5x_like.distillation.losses.sequences import MiniLLM

__all__ = [
    "ALM",
    "DSKD",
    "GKD",
    "GOLD",
    "ULD",
    "AttentionKL",
    "AttentionScoresMSE",
    "AttentionTransfer",
    "FeatureMap",
    "FeatureMean",
    "FeatureVariance",
    "ForwardKL",
    "HiddenCosine",
    "HiddenMSE",
    "JensenShannon",
    "LogitMSE",
    "MinED",
    "MiniLLM",
    "PatientCLS",
    "Relations",
    "ReverseKL",
    "SoftCrossEntropy",
    "per_layer",
    "turns",
]
