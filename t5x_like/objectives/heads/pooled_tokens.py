"""A head on the maximum or the mean over the tokens of a text (Conneau et al. 2017, arXiv:1705.02364), or its last."""

import dataclasses
from typing import Literal, get_args

import jax.numpy as jnp

from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.layers import initializers
from t5x_like.objectives.base import Batch
from t5x_like.objectives.heads import HeadWithDropout, Hidden
from t5x_like.objectives.heads.head_modules import Layers, States
from t5x_like.objectives.heads.maxima import largest

Pooling = Literal["max", "mean", "last"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PooledTokens(HeadWithDropout):
    """Dropout and a linear classifier of the maximum of each feature over the tokens, their mean, or the last token.

    The kernel is drawn from Glorot's uniform distribution.
    """

    token = "last"
    inputs = specs.ENCODER_INPUTS
    layers = Layers(init=initializers.glorot_uniform)

    # What is taken over the tokens of the encoder; `last` is the vector of skip-thoughts (Kiros et al. 2015).
    pooling: Pooling = "max"

    def __post_init__(self):
        super().__post_init__()
        if self.pooling not in get_args(Pooling):
            names = ", ".join(get_args(Pooling))
            raise UserError(f"pooling={self.pooling!r} of PooledTokens: unknown. Give one of {names}.")

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns a state per row; see `heads.HeadForm.read`. For rows of padding, the maximum and the mean are 0."""
        if self.pooling == "last":
            return super().read(hidden, batch)
        real = (batch[self.segments] != 0)[..., None]
        if self.pooling == "max":
            return largest(hidden, real)[:, None]
        count = jnp.sum(real, axis=1, keepdims=True)
        return jnp.sum(jnp.where(real, hidden, 0), axis=1, keepdims=True) / jnp.maximum(count, 1)
