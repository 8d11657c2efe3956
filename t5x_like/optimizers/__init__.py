"""Optimizers that act per layer in any layout of a stack, parameter groups and gradient clipping."""

from t5x_like.optimizers.adafactor import AdafactorState, adafactor
from t5x_like.optimizers.adamw import adamw
from t5x_like.optimizers.base import Optimizer, clip_by_global_norm, clip_groups, global_norm
from t5x_like.optimizers.finetuning import GradualUnfreezing, LayerDecay, finetuning_groups
from t5x_like.optimizers.from_optax import from_optax, hidden_matrices, matrices
from t5x_like.optimizers.groups import ParameterGroup, count_trained, merge, scale_initial, split
from t5x_like.optimizers.jointly import jointly
from t5x_like.optimizers.muon import normuon
from t5x_like.optimizers.mup import mup_groups
from t5x_like.optimizers.progressive import ProgressiveLayers
from t5x_like.optimizers.schedule_free import schedule_free_adamw
from t5x_like.optimizers.soap import soap
from t5x_like.optimizers.stable_adamw import decay_of_peak, scaled_adam, stable_adamw

__all__ = [
    "AdafactorState",
    "GradualUnfreezing",
    "LayerDecay",
    "Optimizer",
    "ParameterGroup",
    "ProgressiveLayers",
    "adafactor",
    "adamw",
    "clip_by_global_norm",
    "clip_groups",
    "count_trained",
    "decay_of_peak",
    "finetuning_groups",
    "from_optax",
    "global_norm",
    "hidden_matrices",
    "jointly",
    "matrices",
    "merge",
    "mup_groups",
    "normuon",
    "scale_initial",
    "scaled_adam",
    "schedule_free_adamw",
    "soap",
    "split",
    "stable_adamw",
]
