"""NeoBERT (Le Breton et al. 2025, arXiv:2502.19587): a deep encoder of Llama's layers.

Neighboring entries of queries and keys are rotated together. The masked-LM head is a kernel that is not tied to the
embeddings, and a bias.
"""

import dataclasses

from t5x_like.layers import initializers
from t5x_like.layers.rotary import Rotary
from t5x_like.models.base import PredictionHead
from t5x_like.models.rotary_encoder import RotaryEncoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class NeoBertConfig(RotaryEncoderConfig):
    """Sizes and hyperparameters of NeoBERT; by default those of the published model."""

    # Rows of the embedding table; token ids are smaller.
    vocab_size: int = 30522
    # Size of a hidden state.
    embed_dim: int = 768
    # Size within a feed-forward block.
    mlp_dim: int = 2048
    # Number of attention heads.
    num_heads: int = 12
    # Size of the queries, keys and values of a head; even, for the rotations.
    head_dim: int = 64
    # Number of layers.
    num_layers: int = 28
    # Longest row, in tokens. The first phase of pretraining: 1,024.
    max_length: int = 4096

    @property
    def initializer(self) -> initializers.Initializer:
        """Initializer of kernels and tables."""
        return initializers.uniform(0.02)

    @property
    def prediction_head(self) -> PredictionHead:
        """Parts of the masked-LM head."""
        return PredictionHead(transform=False)

    def rotary(self, window: int | None) -> Rotary:
        """Returns the rotation of all layers."""
        return dataclasses.replace(super().rotary(window), interleaved=True)
