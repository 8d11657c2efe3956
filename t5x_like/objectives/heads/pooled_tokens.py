"""A head on the maximum or the mean over the tokens of a text (Conneau et al. 2017, arXiv:1705.02364), or its last."""

import dataclasses
import types
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.layers import initializers
from t5x_like.objectives.base import Batch, HeadConfig
from t5x_like.objectives.heads import Hidden, last_token
from t5x_like.objectives.heads.head_modules import LinearHead, States
from t5x_like.objectives.heads.maxima import largest

Pooling = Literal["max", "mean", "last"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PooledTokens:
    """Dropout and a linear classifier of the maximum of each feature over the tokens, their mean, or the last token.

    The kernel is drawn from Glorot's uniform distribution.
    """

    each_token = False
    inputs = specs.ENCODER_INPUTS
    pretrained = types.MappingProxyType({})

    # What is taken over the tokens of the encoder; `last` is the vector of skip-thoughts (Kiros et al. 2015).
    pooling: Pooling = "max"
    # Dropout rate of the head. None: the `dropout_rate` of the model.
    dropout_rate: float | None = None

    def __post_init__(self):
        if self.pooling not in get_args(Pooling):
            names = ", ".join(get_args(Pooling))
            raise UserError(f"pooling={self.pooling!r} of PooledTokens: unknown. Give one of {names}.")
        if self.dropout_rate is not None and not 0 <= self.dropout_rate < 1:
            raise UserError(f"dropout_rate={self.dropout_rate} of the head is out of range. Give a rate in [0, 1).")

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> LinearHead:
        """Creates the head; see `heads.HeadForm.make`."""
        rate = config.dropout_rate if self.dropout_rate is None else self.dropout_rate
        return LinearHead(config, outputs, rate=rate, init=initializers.glorot_uniform, bias=True, key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns a state per row; see `heads.HeadForm.read`. For rows of padding, the maximum and the mean are 0."""
        if self.pooling == "last":
            return last_token(hidden, batch["encoder_segment_ids"])
        real = (batch["encoder_segment_ids"] != 0)[..., None]
        if self.pooling == "max":
            return largest(hidden, real)[:, None]
        count = jnp.sum(real, axis=1, keepdims=True)
        return jnp.sum(jnp.where(real, hidden, 0), axis=1, keepdims=True) / jnp.maximum(count, 1)
