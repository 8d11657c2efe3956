"""Longformer (Beltagy et al. 2020, arXiv:2004.05150): RoBERTa for long rows, with windows and global tokens.

A token sees the tokens within a window around it, and the global tokens. Global tokens, such as the first token of a
text to classify or the tokens of a question, see all tokens, with projections of their own. Apart from this, layers
equal RoBERTa's.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from t5x_like.adapters import model_adapters
from t5x_like.kernels import attention as kernels
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.scoring import Scoring
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.projections import Projection, shard_activation
from t5x_like.models import bert, checks
from t5x_like.models.base import Batch
from t5x_like.models.bert import Bert, BertConfig

# Feature `[batch, length]` that is 1 for global tokens. It replaces the choice of the configuration.
GLOBAL_TOKENS = "encoder_global_tokens"


class GlobalTokens(Protocol):
    """Chooses the global tokens of rows by their tokens."""

    def choose(
        self, tokens: Int[Array, "batch length"], positions: Int[Array, "batch length"]
    ) -> Bool[Array, "batch length"]:
        """Returns True for global tokens.

        Args:
          tokens: Token ids.
          positions: Positions within the text, which start from 0 in each segment of a packed row.
        """


@dataclasses.dataclass(frozen=True)
class FirstToken:
    """The first token of each text, for classification (Beltagy et al., section 3.1)."""

    def choose(self, tokens, positions):
        """Returns True for the first token of each text; see `GlobalTokens.choose`."""
        return positions == 0


@dataclasses.dataclass(frozen=True)
class BeforeSeparator:
    """The tokens before the first separator of each text: the question, for question answering."""

    # Id of the separator.
    separator_id: int = 2

    def choose(self, tokens, positions):
        """Returns True for the tokens before the first separator; see `GlobalTokens.choose`."""
        return _separators(tokens == self.separator_id, positions) == 0


@dataclasses.dataclass(frozen=True)
class AfterSeparators:
    """The tokens after the first two separators of each text: the choice, for multiple choice in transformers."""

    # Id of the separator.
    separator_id: int = 2

    def choose(self, tokens, positions):
        """Returns True from the second position after the first separator on; see `GlobalTokens.choose`.

        As in transformers, the position after the first separator is not checked to be a separator.
        """
        is_after = _separators(tokens == self.separator_id, positions) > 0
        return jnp.pad(is_after, ((0, 0), (2, 0)))[:, :-2] & (positions >= 2)


def _separators(is_separator: Bool[Array, "batch length"], positions: Int[Array, "batch length"]) -> Array:
    """Returns the number of separators of the same text up to each token."""
    counts = jnp.cumsum(is_separator, axis=1)
    before = jnp.where(positions == 0, counts - is_separator, 0)
    return counts - lax.cummax(before, axis=1)


@dataclasses.dataclass(frozen=True)
class LongformerConfig(BertConfig):
    """Sizes and hyperparameters of Longformer; the defaults are those of Longformer base."""

    # Rows of the token embedding table.
    vocab_size: int = 50265
    # Longest row, in tokens.
    max_length: int = 4096
    # Index of the first position in the position table.
    position_offset: int = 2
    # Number of token types.
    num_token_types: int = 1
    # Id of the padding token.
    padding_id: int = 1
    # Activations of the feed-forward blocks and of the masked-LM head.
    activations: tuple[str, ...] = ("gelu_exact",)
    # Epsilon of the norms.
    norm_epsilon: float = 1e-5
    # Number of tokens that a token sees on each side (half of `attention_window` of transformers).
    window: int = 256
    # Chooses the global tokens of batches without the feature `encoder_global_tokens`; None for no global tokens.
    global_tokens: GlobalTokens | None = None
    # Largest number of global tokens per row. Later tokens are not global.
    max_global_tokens: int = 64

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "window", "max_global_tokens")

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return (*super().reads, GLOBAL_TOKENS)

    def make(self, key: jax.Array) -> "Longformer":
        """Returns a Longformer with newly initialized parameters; see `ModelConfig.make`."""
        return Longformer(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step: BERT's, with the scores of visible keys alone.

        With L = length, w = window, G = largest number of global tokens, a = num_heads · head_dim and d = embed_dim,
        scores and averages of a row take 2La · min(L, 2w + 1 + G) multiply-adds per layer instead of 2La · L. With
        global tokens, their own attention takes 2Lda for keys and values, Gda for queries, and 2LGa.
        """
        batch, length = shapes["encoder_input_tokens"]
        a, d = self.num_heads * self.head_dim, self.embed_dim
        has_global = self.global_tokens is not None or GLOBAL_TOKENS in shapes
        shared = min(self.max_global_tokens, length) if has_global else 0
        added = 2 * length * a * (min(length, 2 * self.window + 1 + shared) - length)
        if has_global:
            added += 2 * length * d * a + shared * d * a + 2 * length * shared * a
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return super().train_flops(shapes) + 3.0 * 2.0 * batch * self.num_layers * added


@struct.dataclass
class GlobalQueries:
    """The queries of the global tokens, which the layers share.

    Attributes:
      selection: 1 for the token of each global query, 0 elsewhere; all 0 for queries beyond the global tokens of a row.
      mask: The keys that the global queries see.
    """

    selection: Float[Array, "batch queries length"]
    mask: Mask

    @classmethod
    def of(cls, mask: Mask) -> "GlobalQueries":
        """Returns the queries of the global keys of a mask, whose number is limited."""
        positions, is_given = mask.global_positions
        selection = jax.nn.one_hot(positions, mask.global_keys.shape[1]) * is_given[:, :, None]
        segments = mask.query_segments
        if segments is not None:
            segments = jnp.take_along_axis(segments, positions, axis=1)
        seen = Mask(query_segments=segments, key_segments=mask.key_segments, key_valid=mask.key_valid)
        return cls(selection, seen)

    def take(self, x: Float[Array, "batch length embed"]) -> Float[Array, "batch queries embed"]:
        """Returns the hidden states of the global tokens, bit-exact."""
        # A product, whose gradient is a product too: the gradient of an indexed gather is a scatter.
        return jnp.einsum("bql,bl...->bq...", self.selection.astype(x.dtype), x, precision=lax.Precision.HIGHEST)

    def put(self, x: Float[Array, "batch length ..."], new: Float[Array, "batch queries ..."]) -> Array:
        """Returns `x` with the values of the global tokens replaced by `new`."""
        selection = self.selection.astype(x.dtype)
        placed = jnp.einsum("bql,bq...->bl...", selection, new, precision=lax.Precision.HIGHEST)
        is_global = jnp.any(self.selection > 0, axis=1).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))
        return jnp.where(is_global, placed, x)


class LongformerAttention(MultiHeadAttention):
    """Multi-head attention within a window and to global tokens, whose own queries see all tokens.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      query_global: Projection of the queries of global tokens.
      key_global: Projection of the keys that they see.
      value_global: Projection of the values that they average.
    """

    def __init__(self, config: LongformerConfig, *, key: jax.Array):
        local_key, *global_keys = jax.random.split(key, 4)
        super().__init__(key=local_key, scale=config.head_dim**-0.5, **bert.attention_options(config))
        axes = {"query": "heads", "key": "kv_heads", "value": "kv_heads"}
        for (name, axis), own_key in zip(axes.items(), global_keys, strict=True):
            projection = Projection(
                (config.embed_dim,),
                (config.num_heads, config.head_dim),
                axes=("embed", axis, "kv"),
                key=own_key,
                init=config.initializer,
                bias=True,
                dtype=config.compute_dtype,
            )
            setattr(self, f"{name}_global", projection)

    def __call__(
        self, x: Hidden, *, global_queries: GlobalQueries | None = None, dropout_key: jax.Array | None = None, **options
    ) -> tuple[Hidden, dict[str, Array]]:
        """Computes attention.

        Args:
          x: Activations.
          global_queries: The queries of the global tokens; None for no global tokens.
          dropout_key: Random key of dropout; None disables dropout.
          **options: See `MultiHeadAttention.__call__`.

        Returns:
          The output, and the captured arrays of the attention within windows by name.
        """
        output, captured = self.attend(x, dropout_key=dropout_key, **options)
        if global_queries is not None:
            own_key = None if dropout_key is None else jax.random.fold_in(dropout_key, 1)
            output = global_queries.put(output, self._attend_to_all(x, global_queries, own_key))
            output = shard_activation(output, "heads", "kv")
        return self.out(output, dropout_key=dropout_key), captured

    def _attend_to_all(self, x: Hidden, queries: GlobalQueries, dropout_key: jax.Array | None) -> Array:
        """Returns the outputs of the heads for the global tokens."""
        query = self.query_global(queries.take(x), dropout_key=dropout_key)
        key, value = (project(x, dropout_key=dropout_key) for project in (self.key_global, self.value_global))
        key, value = (shard_activation(each, "kv_heads", "kv") for each in (key, value))
        prefix = None if self.adapter is None else self.adapter.keys_values()
        options = {"scale": self.scale, "dropout": self.dropout, "dropout_key": dropout_key, "prefix": prefix}
        return kernels.attention(query, key, value, Scoring(queries.mask, **options))


class Longformer(Bert):
    """Longformer. Implements `Model` of `models/base.py`."""

    make_attention = staticmethod(LongformerAttention)

    def attention_inputs(self, batch: Batch) -> dict[str, Any]:
        """Returns what all layers share: the mask, and the queries of global tokens; see `Bert.attention_inputs`."""
        config = self.config
        mask = dataclasses.replace(super().attention_inputs(batch)["mask"], window=config.window + 1)
        tokens, given = batch["encoder_input_tokens"], batch.get(GLOBAL_TOKENS)
        if given is None and config.global_tokens is None:
            return {"mask": mask}
        if given is None:
            positions = batch.get("encoder_positions", jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape))
            count = model_adapters.count_tokens(config)  # whose vectors are before the text
            chosen = config.global_tokens.choose(tokens[:, count:], positions[:, count:] - count)
            chosen = jnp.pad(chosen, ((0, 0), (count, 0)))
        else:
            chosen = given != 0
        chosen &= mask.key_valid if mask.query_segments is None else mask.query_segments != 0
        mask = dataclasses.replace(mask, global_keys=chosen, max_global_keys=config.max_global_tokens)
        return {"mask": mask, "global_queries": GlobalQueries.of(mask)}
