"""Gemma 1, 2 and 3 (arXiv:2403.08295, arXiv:2408.00118, arXiv:2503.19786): decoders, of Gemma 3 the text model.

All multiply the embeddings by √embed_dim, tie the logits to them, have a GELU (tanh) instead of Llama's SiLU, and norms
that multiply by 1 + scale. Gemma 2 has a second norm after each block, limits the scores of attention and the logits,
and alternates layers with and without a window. Gemma 3 normalizes the queries and keys of each head instead of
limiting scores; of six layers, five have a window and rotations of a smaller base.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.layers.blocks import Hidden
from t5x_like.layers.norms import UnitOffsetRMSNorm
from t5x_like.layers.rotary import Rotary
from t5x_like.models import checks
from t5x_like.models.rotary_decoder import RotaryDecoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class GemmaConfig(RotaryDecoderConfig):
    """Sizes and hyperparameters of Gemma; by default Gemma 2B."""

    # Rows of the embedding table; token ids are smaller.
    vocab_size: int = 256000
    # Size of a hidden state.
    embed_dim: int = 2048
    # Size within a feed-forward block.
    mlp_dim: int = 16384
    # Number of query heads.
    num_heads: int = 8
    # Key and value heads, each shared by num_heads / num_kv_heads query heads. None: num_heads.
    num_kv_heads: int | None = 1
    # Size of the queries, keys and values of a head; even, for the rotations.
    head_dim: int = 256
    # Number of layers.
    num_layers: int = 18
    # Longest row, in tokens.
    max_length: int = 8192
    # Activations of the feed-forward blocks; with two, their product.
    activations: tuple[str, ...] = ("gelu", "linear")
    # Whether the logits use the token embeddings as their kernel.
    tied_embeddings: bool = True
    # Epsilon of the norms.
    norm_epsilon: float = 1e-6

    def make_norm(self) -> UnitOffsetRMSNorm:
        """Makes the norm of a block or of the stack."""
        return UnitOffsetRMSNorm(self.embed_dim, epsilon=self.norm_epsilon)

    def scale_embeddings(self, embedded: Hidden) -> Hidden:
        """Returns token embeddings times √embed_dim, which is rounded to their dtype."""
        return embedded * jnp.asarray(self.embed_dim**0.5, embedded.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma2Config(GemmaConfig):
    """Sizes and hyperparameters of Gemma 2; by default Gemma 2 2B."""

    # Size of a hidden state.
    embed_dim: int = 2304
    # Size within a feed-forward block.
    mlp_dim: int = 9216
    # Key and value heads, each shared by num_heads / num_kv_heads query heads. None: num_heads.
    num_kv_heads: int | None = 4
    # Number of layers.
    num_layers: int = 26
    # Number of positions, its own included, to which a position attends; None: all. Several windows repeat over the
    # layers, and the last repetition may be incomplete.
    attention_windows: tuple[int | None, ...] = (4096, None)
    # The scores of attention are divided by the root of this number. 27B: 144, embed_dim / num_heads.
    query_scalar: int = 256
    # Limit of the scores of attention; None for no limit.
    attention_softcap: float | None = 50.0
    # Limit of the logits; None for no limit.
    final_softcap: float | None = 30.0

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "query_scalar")
        limits = [name for name in ("attention_softcap", "final_softcap") if getattr(self, name) is not None]
        checks.positive(self, *limits)

    @property
    def norm_position(self) -> str:
        """Position of the norms of the blocks; see `TransformerLayer`."""
        return "both"

    def attention_options(self) -> dict[str, Any]:
        """Returns the arguments of `MultiHeadAttention`; see `RotaryConfig.attention_options`."""
        return super().attention_options() | {"scale": self.query_scalar**-0.5, "softcap": self.attention_softcap}

    def limit_logits(self, logits: Float[Array, "batch length vocab"]) -> Float[Array, "batch length vocab"]:
        """Returns logits within `final_softcap`."""
        limit = self.final_softcap
        return logits if limit is None else limit * jnp.tanh(logits / limit)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma3Config(Gemma2Config):
    """Sizes and hyperparameters of the text model of Gemma 3; by default Gemma 3 4B."""

    # Rows of the embedding table; token ids are smaller. 270M and 1B: 262,144.
    vocab_size: int = 262208
    # Size of a hidden state.
    embed_dim: int = 2560
    # Size within a feed-forward block.
    mlp_dim: int = 10240
    # Number of layers.
    num_layers: int = 34
    # Longest row, in tokens. 270M and 1B: 32,768.
    max_length: int = 131072
    # Base of the wavelengths of the rotations in layers without a window. `rope_scaling` is theirs too.
    rope_theta: float = 1e6
    # Base of the wavelengths of the rotations in layers with a window.
    local_rope_theta: float = 10000.0
    # Number of positions, its own included, to which a position attends; None: all. Several windows repeat over the
    # layers, and the last repetition may be incomplete. 270M and 1B: 512.
    attention_windows: tuple[int | None, ...] = (1024, 1024, 1024, 1024, 1024, None)
    # Limit of the scores of attention; None for no limit.
    attention_softcap: float | None = None
    # Limit of the logits; None for no limit.
    final_softcap: float | None = None

    def __post_init__(self):
        super().__post_init__()
        checks.positive(self, "local_rope_theta")

    def rotary(self, window: int | None) -> Rotary:
        """Returns the rotation of the layers with a window; see `RotaryConfig.rotary`."""
        return super().rotary(window) if window is None else Rotary(self.local_rope_theta)

    def attention_options(self) -> dict[str, Any]:
        """Returns the arguments of `MultiHeadAttention`; see `RotaryConfig.attention_options`."""
        return super().attention_options() | {"norms": self.head_norms(UnitOffsetRMSNorm)}
