"""BERT whose layers are applied several times, with the same parameters (ALBERT, Lan et al. 2020, section 3.1).

Layers form groups of one stored layer each. With a single group, one layer is applied `num_layers` times.
"""

import dataclasses

import jax

from t5x_like.errors import UserError
from t5x_like.layers.stacks import Stack
from t5x_like.models import checks
from t5x_like.models.base import StackInfo
from t5x_like.models.bert import Bert, BertConfig


@dataclasses.dataclass(frozen=True)
class SharedLayersConfig(BertConfig):
    """Sizes and hyperparameters of BERT with shared layers; the defaults are those of BERT base with a single layer."""

    # Number of stored layers, each of which is applied num_layers / stored_layers times in a row.
    stored_layers: int = 1

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "stored_layers")
        if self.num_layers % self.stored_layers:
            raise UserError(
                f"SharedLayersConfig.stored_layers={self.stored_layers}: does not divide "
                f"num_layers={self.num_layers}. Give a divisor, so that each layer is applied equally often."
            )

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack; see `ModelConfig.stacks`."""
        return {"encoder": self.stack(self.num_layers, self.stored_layers)}

    def make(self, key: jax.Array) -> "SharedLayers":
        """Returns a model with newly initialized parameters; see `ModelConfig.make`."""
        return SharedLayers(self, key=key)


class SharedLayers(Bert):
    """BERT with shared layers. Implements `Model` of `models/base.py`."""

    def make_encoder(self, key: jax.Array) -> Stack:
        """Makes the stored layers; see `Bert.make_encoder`."""
        times = self.config.num_layers // self.config.stored_layers
        return super().make_encoder(key, order=[index // times for index in range(self.config.num_layers)])
