"""Qwen 2, 2.5 and 3 (arXiv:2407.10671, arXiv:2412.15115, arXiv:2505.09388): decoders, the dense models.

Qwen 2 and 2.5 are Llama with biases in the projections to queries, keys and values. Qwen 3 has no biases, heads of 128
features whatever the size of a hidden state is, and an RMSNorm of the queries and keys of each head. The smaller sizes
tie the logits to the embeddings.
"""

import dataclasses
from typing import Any

from t5x_like.layers.norms import RMSNorm
from t5x_like.models.rotary_decoder import RotaryDecoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen2Config(RotaryDecoderConfig):
    """Sizes and hyperparameters of Qwen 2 and 2.5; by default Qwen 2.5 7B."""

    # Rows of the embedding table; token ids are smaller. The models up to 3B: 151,936.
    vocab_size: int = 152064
    # Size of a hidden state.
    embed_dim: int = 3584
    # Size within a feed-forward block.
    mlp_dim: int = 18944
    # Number of query heads.
    num_heads: int = 28
    # Key and value heads, each shared by num_heads / num_kv_heads query heads. None: num_heads.
    num_kv_heads: int | None = 4
    # Number of layers.
    num_layers: int = 28
    # Longest row, in tokens.
    max_length: int = 32768
    # Base of the wavelengths of the rotations.
    rope_theta: float = 1e6
    # Epsilon of the norms.
    norm_epsilon: float = 1e-6

    def attention_options(self) -> dict[str, Any]:
        """Returns the arguments of `MultiHeadAttention`; see `RotaryConfig.attention_options`."""
        return super().attention_options() | {"bias": ("query", "key", "value")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen3Config(RotaryDecoderConfig):
    """Sizes and hyperparameters of Qwen 3; by default Qwen 3 8B."""

    # Rows of the embedding table; token ids are smaller.
    vocab_size: int = 151936
    # Size within a feed-forward block.
    mlp_dim: int = 12288
    # Key and value heads, each shared by num_heads / num_kv_heads query heads. None: num_heads.
    num_kv_heads: int | None = 8
    # Number of layers.
    num_layers: int = 36
    # Longest row, in tokens.
    max_length: int = 40960
    # Base of the wavelengths of the rotations.
    rope_theta: float = 1e6
    # Epsilon of the norms.
    norm_epsilon: float = 1e-6

    def attention_options(self) -> dict[str, Any]:
        """Returns the arguments of `MultiHeadAttention`; see `RotaryConfig.attention_options`."""
        return super().attention_options() | {"norms": self.head_norms(RMSNorm)}
