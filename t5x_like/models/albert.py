"""ALBERT (Lan et al. 2020, arXiv:1909.11942): BERT with factorized embeddings whose layers share their parameters.

Tables of tokens, positions and token types have `embedding_dim` columns. Their normalized sum is projected to hidden
states of size `embed_dim` (section 3.1). Layers form groups with one set of parameters each; in all published sizes, a
single layer is applied `num_layers` times.
"""

import dataclasses

import jax

from t5x_like.errors import UserError
from t5x_like.layers.stacks import Stack
from t5x_like.models import checks
from t5x_like.models.base import StackInfo
from t5x_like.models.bert import Bert, BertConfig


@dataclasses.dataclass(frozen=True)
class AlbertConfig(BertConfig):
    """Sizes and hyperparameters of ALBERT; by default ALBERT base, version 2."""

    # Rows of the token embedding table.
    vocab_size: int = 30000
    # Size of the embeddings; None for embed_dim, without a projection.
    embedding_dim: int | None = 128
    # Number of stored layers, each of which is applied num_layers / stored_layers times in a row.
    stored_layers: int = 1
    # Dropout rate of the embeddings and of the output of each block. Version 1, except xxlarge: 0.1.
    dropout_rate: float = 0.0
    # Dropout rate of the attention weights. Version 1, except xxlarge: 0.1.
    attention_dropout_rate: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "stored_layers")
        if self.num_layers % self.stored_layers:
            raise UserError(
                f"AlbertConfig.stored_layers={self.stored_layers}: does not divide num_layers={self.num_layers}. Give "
                "a divisor, so that each layer is applied equally often."
            )

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack; see `ModelConfig.stacks`."""
        return {"encoder": self.stack(self.num_layers, self.stored_layers)}

    def make(self, key: jax.Array) -> "Albert":
        """Returns an ALBERT with newly initialized parameters; see `ModelConfig.make`."""
        return Albert(self, key=key)


class Albert(Bert):
    """ALBERT. Implements `Model` of `models/base.py`."""

    def make_encoder(self, key: jax.Array) -> Stack:
        """Makes the stored layers; see `Bert.make_encoder`."""
        times = self.config.num_layers // self.config.stored_layers
        return super().make_encoder(key, order=[index // times for index in range(self.config.num_layers)])
