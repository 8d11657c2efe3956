"""XLNet's attention, with scores of distances and of token types (Yang et al. 2019, sections 2.4 and 2.5)."""

from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.relative_scores import RelativeScores
from t5x_like.layers.attention import MultiHeadAttention, Sizes
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.cache import KeyValueCache
from t5x_like.layers.initializers import Initializer
from t5x_like.layers.projections import Projection


class AttentionConfig(Protocol):
    """The fields of the configuration of a model that the attention reads; see `xlnet.XLNetConfig`."""

    embed_dim: int
    num_heads: int
    head_dim: int
    attention_dropout_rate: float

    @property
    def initializer(self) -> Initializer:
        """Initial values of kernels and biases."""

    @property
    def compute_dtype(self) -> str:
        """Dtype of activations."""


class RelativeAttention(MultiHeadAttention):
    """Attention with scores of distances and of token types. Its projections have no bias.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      relative: Projection of the sinusoids of distances.
      content_bias: float32 `[heads, kv]`, added to the query of a key's content.
      position_bias: float32 `[heads, kv]`, added to the query of a distance.
      type_bias: float32 `[heads, kv]`, added to the query of token types.
      types: float32 `[2, heads, kv]`, keys for the same token type and for another one.
    """

    def __init__(self, config: AttentionConfig, *, key: jax.Array):
        content_key, relative_key, *keys = jax.random.split(key, 6)
        heads, init, dtype = (config.num_heads, config.head_dim), config.initializer, config.compute_dtype
        super().__init__(
            Sizes(config.embed_dim),
            heads=config.num_heads,
            head_dim=config.head_dim,
            init=init,
            scale=config.head_dim**-0.5,
            dropout=Dropout(config.attention_dropout_rate),
            dtype=dtype,
            key=content_key,
        )
        axes = ("embed", "heads", "kv")
        self.relative = Projection((config.embed_dim,), heads, axes=axes, key=relative_key, init=init, dtype=dtype)
        for name, each in zip(("content_bias", "position_bias", "type_bias"), keys, strict=False):
            setattr(self, name, nnx.Param(init(each, heads, 0), axes=("heads", "kv")))
        self.types = nnx.Param(init(keys[-1], (2, *heads), 0), axes=(None, "heads", "kv"))

    def __call__(
        self,
        x: Hidden,
        *,
        relative: Float[Array, "directions relative embed"],
        query_types: Int[Array, "batch q_len"],
        key_types: Int[Array, "batch kv_len"],
        is_reversed: Int[Array, " batch"] | None = None,
        length: int | None = None,
        memory: Float[Array, "batch memory embed"] | None = None,
        **options,
    ) -> tuple[Hidden, dict[str, Array]]:
        """Computes attention.

        Args:
          x: The states of both streams, one after another.
          relative: See `RelativeScores.relative`, before its projection.
          query_types: Token types of the queries.
          key_types: Token types of the keys, those of the memory included.
          is_reversed: 1 for rows whose text is reversed; None: no row.
          length: Number of states of the content stream, which begin `x` and from which keys and values are computed.
            None, as in a step of decoding: `options` has the keys and values.
          memory: States before those of the content stream.
          **options: See `MultiHeadAttention.__call__`.

        Returns:
          The output, and the captured arrays by name.
        """
        dropout_key = options.get("dropout_key")
        if length is not None:
            source = x[:, :length]
            source = source if memory is None else jnp.concatenate([memory.astype(x.dtype), source], axis=1)
            options["keys_values"] = self.keys_values(source, dropout_key=dropout_key)
        names = ("content_bias", "position_bias", "type_bias", "types")
        scores = RelativeScores(
            self.relative(relative, dropout_key=dropout_key),
            *(getattr(self, name)[...].astype(x.dtype) for name in names),
            query_types,
            key_types,
            is_reversed,
            length,
            None if length is None else options["positions"][:, length:],
        )
        return super().__call__(x, bias=scores, **options)

    def step(
        self, x: Hidden, cache: KeyValueCache, layer: int | Int[Array, ""], index: Int[Array, ""], **inputs
    ) -> tuple[Hidden, KeyValueCache]:
        """Computes attention of new positions, and writes their keys and values to the cache.

        Args:
          x: Activations of the new positions.
          cache: Keys and values of the earlier positions.
          layer: Index of this layer in the cache.
          index: The first new position.
          **inputs: See `__call__`.

        Returns:
          The output and the updated cache.
        """
        cache = cache.write(layer, index, *self.keys_values(x))
        output, _ = self(x, keys_values=cache.at(layer), **inputs)
        return output, cache
