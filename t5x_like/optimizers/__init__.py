"""Optimizers that act per layer whatever the layout of a stack, parameter groups, and gradient clipping."""

from t5x_like.optimizers._adafactor import AdafactorState, adafactor
from t5x_like.optimizers._adamw import adamw
from t5x_like.optimizers._groups import ParameterGroup, merge, split
from t5x_like.optimizers._optimizer import Optimizer, clip_by_global_norm, global_norm

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
