"""A form of a head that reads other features, or reads hidden states in another way, than the form within it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from t5x_like.data.features import FeatureSpec
from t5x_like.objectives.base import Batch, HeadConfig
from t5x_like.objectives.heads import HeadForm, Hidden


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadWrapper:
    """Any form of a head. Subclasses override `inputs` or `read`."""

    # The head.
    form: HeadForm

    @property
    def each_token(self) -> bool:
        """See `HeadForm`."""
        return self.form.each_token

    @property
    def inputs(self) -> FeatureSpec:
        """See `HeadForm`."""
        return self.form.inputs

    @property
    def pretrained(self) -> Mapping[str, tuple[str, ...]]:
        """See `HeadForm`."""
        return self.form.pretrained

    @property
    def dropout_rate(self) -> float | None:
        """Dropout rate of the head."""
        return getattr(self.form, "dropout_rate", None)

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> Any:
        """Creates the head; see `HeadForm.make`."""
        return self.form.make(config, outputs, key=key)

    def read(self, hidden: Hidden, batch: Batch) -> Any:
        """Returns what the head reads; see `HeadForm.read`."""
        return self.form.read(hidden, batch)
