"""OLMo 2 and 3 (arXiv:2501.00656, arXiv:2512.13961): decoders.

Norms come after the blocks and before the residual sums, none before a block; the queries of all heads together are
normalized, and the keys. OLMo 3 has a window in three of four layers, and scales the rotations in the others alone.
"""

import dataclasses
from typing import Any

from t5x_like.layers.norms import ProjectionNorm
from t5x_like.layers.rotary import Rotary
from t5x_like.models.rotary_decoder import RotaryDecoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Olmo2Config(RotaryDecoderConfig):
    """Sizes and hyperparameters of OLMo 2; by default OLMo 2 7B."""

    # Rows of the embedding table; token ids are smaller.
    vocab_size: int = 100352
    # Base of the wavelengths of the rotations.
    rope_theta: float = 5e5
    # Epsilon of the norms.
    norm_epsilon: float = 1e-6

    @property
    def norm_position(self) -> str:
        """Position of the norms of the blocks; see `TransformerLayer`."""
        return "output"

    def attention_options(self) -> dict[str, Any]:
        """Returns the arguments of `MultiHeadAttention`; see `RotaryConfig.attention_options`."""
        options = {"head_dim": self.head_dim, "epsilon": self.norm_epsilon}
        queries = ProjectionNorm(self.num_heads, axis="heads", **options)
        keys = ProjectionNorm(self.num_kv_heads, axis="kv_heads", **options)
        return super().attention_options() | {"norms": (queries, keys)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Olmo3Config(Olmo2Config):
    """Sizes and hyperparameters of OLMo 3; by default OLMo 3 7B."""

    # Rows of the embedding table; token ids are smaller.
    vocab_size: int = 100278
    # Longest row, in tokens.
    max_length: int = 65536
    # Number of positions, its own included, to which a position attends; None: all. Several windows repeat over the
    # layers, and the last repetition may be incomplete.
    attention_windows: tuple[int | None, ...] = (4096, 4096, 4096, None)

    def rotary(self, window: int | None) -> Rotary:
        """Returns the rotation of the layers with a window; see `RotaryConfig.rotary`."""
        return super().rotary(window) if window is None else Rotary(self.rope_theta)
