"""umT5 (Chung et al. 2023): mT5 with a table of relative position biases in each self-attention."""

import dataclasses
from typing import Any

import jax
from jaxtyping import Array, Float, Int

from t5x_like.kernels.masks import Mask
from t5x_like.kernels.score_bias import ScoreBias
from t5x_like.layers.attention import MultiHeadAttention, Sizes
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.cache import KeyValueCache
from t5x_like.models import t5
from t5x_like.models.t5 import T5, T5Config


@dataclasses.dataclass(frozen=True)
class UMT5Config(T5Config):
    """Sizes and hyperparameters of umT5; by default umT5 small."""

    # Rows of the embedding table: 256,000 tokens, 300 sentinels, and padding to a multiple of 128.
    vocab_size: int = 256384

    def make(self, key: jax.Array) -> "UMT5":
        """Returns a umT5 with newly initialized parameters; see `ModelConfig.make`."""
        return UMT5(self, key=key)


class BiasedAttention(MultiHeadAttention):
    """Self-attention with position biases of its own.

    Args:
      config: Configuration of the model.
      bidirectional: Whether positions attend to later positions.
      key: Random key of the initialization.

    Attributes:
      relative_bias: The table of the biases.
    """

    def __init__(self, config: UMT5Config, *, bidirectional: bool, key: jax.Array):
        key, bias_key = jax.random.split(key)
        super().__init__(Sizes(config.embed_dim), **t5.attention_settings(config), key=key)
        self.relative_bias = t5.relative_bias(config, bidirectional=bidirectional, key=bias_key)

    def attend(
        self, x: Float[Array, "batch length embed"], *, bias: ScoreBias | None = None, **options
    ) -> tuple[Float[Array, "batch length heads kv"], dict[str, Array]]:
        """Computes self-attention; see `MultiHeadAttention.attend`. Decoding steps give their `bias`."""
        bias = self.relative_bias(x.shape[1], x.shape[1]) if bias is None else bias
        return super().attend(x, bias=bias, **options)

    def step(
        self, x: Float[Array, "batch steps embed"], cache: KeyValueCache, layer, index: Int[Array, ""], **options
    ) -> tuple[Float[Array, "batch steps embed"], KeyValueCache]:
        """Computes self-attention of new positions; see `MultiHeadAttention.step`."""
        bias = self.relative_bias.at(index, cache.length_of(layer), x.shape[1])
        return super().step(x, cache, layer, index, bias=bias, **options)


class Stack(t5.Stack):
    """The layers of the encoder or of the decoder, each with its position biases; see `t5.Stack`."""

    def make_layer(self, config: UMT5Config, attentions: tuple[str, ...], key: jax.Array) -> TransformerLayer:
        """Makes a layer of the stack."""
        return t5.make_layer(config, attentions, key, _make_attention)

    def make_bias(self, config: UMT5Config, *, bidirectional: bool, key: jax.Array) -> None:
        """Creates nothing: the layers have the biases."""

    def self_attention_inputs(self, x: Hidden, mask: Mask, *, bidirectional: bool) -> dict[str, Any]:
        """Returns the mask alone: the layers have the biases."""
        return {"mask": mask}


def _make_attention(config: UMT5Config, name: str, key: jax.Array) -> MultiHeadAttention:
    if name == "cross_attention":
        return t5.make_attention(config, name, key)
    return BiasedAttention(config, bidirectional=name == "attention", key=key)


class UMT5(T5):
    """umT5; see `T5`."""

    STACK = Stack

    def step_inputs(self, index: Int[Array, ""], cache_length: int, num_positions: int) -> dict[str, ScoreBias]:
        """Returns nothing: the layers have the position biases of a decoding step."""
        return {}
