"""Layers of encoders and decoders: residual blocks with the norm in front of each (Xiong et al. 2020, "pre-LN")."""

from typing import Protocol

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.kernels.dropout import dropout, split_key
from t5x_like.kernels.masks import Mask
from t5x_like.layers.attention import KeyValueCache, MultiHeadAttention
from t5x_like.layers.captures import Captures
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import RMSNorm
from t5x_like.layers.projections import shard_activation

Hidden = Float[Array, "batch length embed"]


class BlockConfig(Protocol):
    """What these layers read of a family's configuration."""

    embed_dim: int
    mlp_dim: int
    num_heads: int
    head_dim: int
    activations: tuple[str, ...]
    dropout_rate: float
    norm_epsilon: float
    compute_dtype: str


def drop_along_length(x: Hidden, rate: float, key: jax.Array | None) -> Hidden:
    """Drops the same entries at every position of a row, as T5 does."""
    return dropout(x, rate, key, broadcast_dims=(-2,))


def make_norm(config: BlockConfig) -> RMSNorm:
    return RMSNorm(config.embed_dim, epsilon=config.norm_epsilon)


def _make_attention(config: BlockConfig, key: jax.Array) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.embed_dim,
        heads=config.num_heads,
        head_dim=config.head_dim,
        dropout_rate=config.dropout_rate,
        dtype=config.compute_dtype,
        key=key,
    )


def _make_mlp(config: BlockConfig, key: jax.Array) -> MLP:
    return MLP(
        config.embed_dim,
        config.mlp_dim,
        activations=config.activations,
        dropout_rate=config.dropout_rate,
        dtype=config.compute_dtype,
        key=key,
    )


class EncoderLayer(nnx.Module):
    """Self-attention and a feed-forward block."""

    CAPTURED = ("hidden", *(f"attention/{what}" for what in MultiHeadAttention.CAPTURED))

    def __init__(self, config: BlockConfig, *, key: jax.Array):
        attention_key, mlp_key = jax.random.split(key)
        self.attention_norm = make_norm(config)
        self.attention = _make_attention(config, attention_key)
        self.mlp_norm = make_norm(config)
        self.mlp = _make_mlp(config, mlp_key)
        self.dropout_rate = config.dropout_rate

    def __call__(
        self,
        x: Hidden,
        *,
        mask: Mask,
        bias: Float[Array, "rows heads length length"] | None,
        dropout_key: jax.Array | None = None,
        captures: Captures,
    ) -> tuple[Hidden, dict[str, Array]]:
        """The layer's output, and what was captured."""
        keys = split_key(dropout_key, 4)
        normed = self.attention_norm(x)
        update, attention = self.attention(
            normed,
            self.attention.keys_values(normed),
            mask=mask,
            bias=bias,
            dropout_key=keys[0],
            capture=captures.within("attention"),
        )
        x = x + drop_along_length(update, self.dropout_rate, keys[1])
        update = self.mlp(self.mlp_norm(x), dropout_key=keys[2])
        x = shard_activation(x + drop_along_length(update, self.dropout_rate, keys[3]), "embed")
        return x, captures.collect(hidden=x, attention=attention)


class DecoderLayer(nnx.Module):
    """Self-attention, attention to an encoder's output, and a feed-forward block."""

    CAPTURED = (
        "hidden",
        *(f"self_attention/{what}" for what in MultiHeadAttention.CAPTURED),
        *(f"cross_attention/{what}" for what in MultiHeadAttention.CAPTURED),
    )

    def __init__(self, config: BlockConfig, *, key: jax.Array):
        self_key, cross_key, mlp_key = jax.random.split(key, 3)
        self.self_attention_norm = make_norm(config)
        self.self_attention = _make_attention(config, self_key)
        self.cross_attention_norm = make_norm(config)
        self.cross_attention = _make_attention(config, cross_key)
        self.mlp_norm = make_norm(config)
        self.mlp = _make_mlp(config, mlp_key)
        self.dropout_rate = config.dropout_rate

    def __call__(
        self,
        x: Hidden,
        *,
        encoded: Float[Array, "batch encoder_length embed"],
        mask: Mask,
        cross_mask: Mask,
        bias: Float[Array, "rows heads length length"] | None,
        dropout_key: jax.Array | None = None,
        captures: Captures,
    ) -> tuple[Hidden, dict[str, Array]]:
        """The layer's output, and what was captured."""
        keys = split_key(dropout_key, 6)
        normed = self.self_attention_norm(x)
        update, self_attention = self.self_attention(
            normed,
            self.self_attention.keys_values(normed),
            mask=mask,
            bias=bias,
            dropout_key=keys[0],
            capture=captures.within("self_attention"),
        )
        x = x + drop_along_length(update, self.dropout_rate, keys[1])
        update, cross_attention = self.cross_attention(
            self.cross_attention_norm(x),
            self.cross_attention.keys_values(encoded),
            mask=cross_mask,
            dropout_key=keys[2],
            capture=captures.within("cross_attention"),
        )
        x = x + drop_along_length(update, self.dropout_rate, keys[3])
        update = self.mlp(self.mlp_norm(x), dropout_key=keys[4])
        x = shard_activation(x + drop_along_length(update, self.dropout_rate, keys[5]), "embed")
        return x, captures.collect(hidden=x, self_attention=self_attention, cross_attention=cross_attention)

    def step(
        self,
        x: Float[Array, "batch 1 embed"],
        self_cache: KeyValueCache,
        cross_cache: KeyValueCache,
        layer: int | Int[Array, ""],
        position: Int[Array, ""],
        *,
        mask: Mask,
        cross_mask: Mask,
        bias: Float[Array, "rows heads 1 kv_len"] | None,
    ) -> tuple[Float[Array, "batch 1 embed"], KeyValueCache]:
        """One new position, the earlier ones being in `self_cache`, which it returns with this one in it."""
        update, self_cache = self.self_attention.step(
            self.self_attention_norm(x), self_cache, layer, position, mask=mask, bias=bias
        )
        x = x + update
        update, _ = self.cross_attention(self.cross_attention_norm(x), cross_cache.at(layer), mask=cross_mask)
        x = x + update
        return x + self.mlp(self.mlp_norm(x)), self_cache
