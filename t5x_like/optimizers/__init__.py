"""Optimizers that act per layer whatever the layout of a stack, parameter groups, and gradient clipping."""

from t5x_like.optimizers.adafactor import AdafactorState, adafactor
from t5x_like.optimizers.adamw import adamw
from t5x_like.optimizers.base import Optimizer, clip_by_global_norm, global_norm
from t5x_like.optimizers.groups import ParameterGroup, merge, split

__all__ = [
    "AdafactorState",
    "Optimizer",
    "ParameterGroup",
    "adafactor",
    "adamw",
    "clip_by_global_norm",
    "global_norm",
    "merge",
    "split",
]
