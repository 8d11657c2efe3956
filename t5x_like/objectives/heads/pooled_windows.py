"""A wrapper of heads for texts that are longer than the rows of a model: the text is read in windows."""

import dataclasses
from typing import Literal, get_args

import jax.numpy as jnp

from t5x_like.data import choices
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.objectives.base import Batch
from t5x_like.objectives.heads import Hidden, check_form
from t5x_like.objectives.heads.head_modules import States
from t5x_like.objectives.heads.maxima import largest
from t5x_like.objectives.heads.wrapper import HeadWrapper
from t5x_like.objectives.labels import real_choices

Pooling = Literal["max", "mean"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PooledWindows(HeadWrapper):
    """Any head that reads one state per row, on the pooled states of the windows of a text.

    The hierarchical method of Sun et al. (2019, arXiv:1905.05583): the model reads each window as a row of its own, and
    the states of the windows, such as those of [CLS], are combined by their maximum or mean, per feature. The task
    gives the windows as `inputs_0`, `inputs_1`, …; windows without tokens are left out.
    """

    # Number of windows of a text; shorter texts have windows without tokens.
    windows: int
    # How states are combined.
    pooling: Pooling = "max"

    def __post_init__(self):
        check_form(self.form, each_token=False)
        if self.pooling not in get_args(Pooling):
            raise UserError(
                f"pooling={self.pooling!r} of PooledWindows: unknown. Give one of {', '.join(get_args(Pooling))}."
            )
        if isinstance(self.windows, bool) or not isinstance(self.windows, int) or self.windows < 2:
            raise UserError(
                f"windows={self.windows!r} of PooledWindows is not an integer of at least 2. Give the number of "
                "windows of a text."
            )

    @property
    def inputs(self) -> FeatureSpec:
        """The features that the model reads of all windows."""
        return choices.with_choices(self.form.inputs, self.windows)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the pooled state of each text; see `HeadForm.read`."""
        states = self.form.read(hidden, batch)
        states = states.reshape(-1, self.windows, *states.shape[1:])
        real = real_choices(batch, self.windows)[:, :, None, None]
        if self.pooling == "max":
            return largest(states, real)
        count = jnp.maximum(jnp.sum(real, axis=1), 1)
        return jnp.sum(jnp.where(real, states, 0), axis=1) / count.astype(states.dtype)
