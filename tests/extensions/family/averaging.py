"""A family: a decoder whose layers read the mean of the tokens so far instead of attention (Zhang et al. 2018)."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx, struct

from t5x_like.layers.embeddings import Embedder
from t5x_like.layers.initializers import fan_in
from t5x_like.layers.mlp import MLP
from t5x_like.models.base import BaseConfig, BaseModel, StackInfo
from t5x_like.models.outputs import Outputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class AveragingConfig(BaseConfig):
    lacks = {"prefix": "a model without attention has no prefix"}
    vocab_size: int = 1024
    embed_dim: int = 16
    mlp_dim: int = 32
    num_layers: int = 2

    @property
    def stacks(self):
        return {"decoder": StackInfo(self.num_layers, self.embed_dim, num_heads=0, num_kv_heads=0, head_dim=0)}

    def make(self, key):
        return Averaging(self, key)

    def train_flops(self, shapes):
        rows, length = shapes["decoder_input_tokens"]
        layer = self.embed_dim * (length + 2 * self.mlp_dim)
        return 6.0 * rows * length * (self.num_layers * layer + self.embed_dim * self.vocab_size)


@struct.dataclass
class Cache:
    """What a step of decoding reads of earlier tokens: the inputs of each layer, and which slots have a token."""

    states: tuple  # [batch length embed] per layer
    is_token: jax.Array  # [batch length]

    def repeat(self, n):
        return jax.tree.map(lambda array: jnp.repeat(array, n, axis=0), self)

    def take(self, rows, *, groups):
        return jax.tree.map(lambda array: array[rows], self)


class Averaging(BaseModel):
    def __init__(self, config, key):
        self.config = config
        table_key, *keys = jax.random.split(key, config.num_layers + 1)
        self.tokens = Embedder(config.vocab_size, config.embed_dim, key=table_key)
        sizes = {"size": config.embed_dim, "hidden_size": config.mlp_dim}
        self.layers = nnx.List([MLP(**sizes, activations=("gelu",), init=fan_in(), key=each) for each in keys])

    def embed(self, batch):
        return {"decoder": self.tokens(batch["decoder_input_tokens"])}

    def trunk(self, embedded, batch, *, dropout_key=None, capture=(), edits=()):
        x, segments = embedded["decoder"], batch["decoder_segment_ids"]
        visible = (segments[:, :, None] == segments[:, None]) & jnp.tri(x.shape[1], dtype=bool)
        for layer in self.layers:
            x = x + layer(mean(visible, x))[0]
        return Outputs(hidden=normalized(x))

    def unembed(self, hidden):
        return self.tokens.attend(hidden) / self.config.embed_dim**0.5

    def prefill(self, batch, cache_length, num_positions=1):
        tokens, segments = batch["decoder_input_tokens"], batch["decoder_segment_ids"]
        shape = (len(tokens), cache_length)
        states = tuple(jnp.zeros((*shape, self.config.embed_dim)) for _ in self.layers)
        hidden, cache = self._step(tokens, segments != 0, Cache(states, jnp.zeros(shape, bool)), 0)
        return hidden[:, -1:], cache

    def decode_step(self, tokens, cache, index):
        return self._step(tokens, jnp.ones(tokens.shape, bool), cache, index)

    def _step(self, tokens, is_token, cache, index):
        is_token = jax.lax.dynamic_update_slice_in_dim(cache.is_token, is_token, index, axis=1)
        slots, positions = jnp.arange(is_token.shape[1]), index + jnp.arange(tokens.shape[1])
        visible = is_token[:, None] & (slots <= positions[:, None])
        x, states = self.tokens(tokens), []
        for layer, before in zip(self.layers, cache.states, strict=True):
            states.append(jax.lax.dynamic_update_slice_in_dim(before, x, index, axis=1))
            x = x + layer(mean(visible, states[-1]))[0]
        return normalized(x), Cache(tuple(states), is_token)


def mean(visible, x):
    """Returns the mean of the visible vectors `[batch slots embed]` for each position `[batch positions slots]`."""
    return visible.astype(x.dtype) @ x / jnp.maximum(visible.sum(-1, keepdims=True), 1)


def normalized(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)
