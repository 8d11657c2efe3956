"""ETC's attention of a text and its global tokens, with relative positions (Ainslie et al. 2020, section 3)."""

import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from t5x_like.kernels import attention as kernels
from t5x_like.kernels import local_global_attention
from t5x_like.kernels.contraction import einsum_in_float32
from t5x_like.kernels.dropout import split_key
from t5x_like.kernels.local_global_attention import GlobalKeys, Window
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.scoring import Scoring
from t5x_like.layers import initializers
from t5x_like.layers.attention import KeysValues, MultiHeadAttention
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.captures import NO_EDITS, LayerEdits
from t5x_like.layers.projections import Projection, shard_activation
from t5x_like.models import bert, bigbird_etc_inputs
from t5x_like.models.bigbird_etc_inputs import GlobalInput, TableScores

# Standard deviation of new vectors of relative positions, in the released code.
_RELATIVE_STDDEV = 0.5
# Projections that exist if they are not shared.
_SEPARATE = ("global_query", "global_key", "global_value", "l2g_key", "l2g_value", "g2l_key", "g2l_value")
# Number of blocks of keys that a block of queries is multiplied with. Texts without more blocks have dense scores.
_WINDOWS = 3


class AttentionConfig(Protocol):
    """The fields of the configuration of a model that the attention reads; see `bigbird_etc.EtcConfig`."""

    embed_dim: int
    num_heads: int
    head_dim: int
    attention_dropout_rate: float
    relative_vocab_size: int
    max_distance: int
    local_radius: int
    shared_projections: bool
    hard_global_mask: bool

    @property
    def initializer(self) -> initializers.Initializer:
        """Initial values of kernels."""

    @property
    def compute_dtype(self) -> str:
        """Dtype of activations."""


class RelativeTable(nnx.Module):
    """A vector and a score per relative position and head.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      embedding: `[rows heads kv]`.
      bias: `[rows heads]`.
    """

    def __init__(self, config: AttentionConfig, *, key: jax.Array):
        shape, axes = (config.relative_vocab_size, config.num_heads, config.head_dim), ("relpos_buckets", "heads", "kv")
        self.embedding = nnx.Param(initializers.truncated_normal(_RELATIVE_STDDEV)(key, shape, 1), axes=axes)
        self.bias = nnx.Param(jnp.zeros(shape[:2], jnp.float32), axes=axes[:2])


class EtcAttention(MultiHeadAttention):
    """Multi-head attention of both inputs, with relative positions.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      global_out: Projection of the output of global tokens.
      global_query: Projection of the queries of global tokens. This and the following exist if projections are not
        shared; `query`, `key` and `value` then belong to the attention of the text to itself.
      global_key, global_value: Projections of global tokens that global tokens read.
      l2g_key, l2g_value: Projections of global tokens that the text reads (long to global).
      g2l_key, g2l_value: Projections of the text that global tokens read (global to long).
      relative: Table of relative positions of queries of the text.
      global_relative: Table of relative positions of queries of global tokens.
    """

    def __init__(self, config: AttentionConfig, *, key: jax.Array):
        base_key, out_key, *table_keys = jax.random.split(key, 4)
        super().__init__(key=base_key, scale=config.head_dim**-0.5, **bert.attention_options(config))
        of_heads, options = (config.num_heads, config.head_dim), {"init": config.initializer, "bias": True}
        options["dtype"] = config.compute_dtype
        self.global_out = Projection(
            of_heads, (config.embed_dim,), axes=("heads", "kv", "embed"), key=out_key, **options
        )
        self.is_shared = config.shared_projections
        if not self.is_shared:
            further_keys = jax.random.split(jax.random.fold_in(key, 4), len(_SEPARATE))
            for name, its_key in zip(_SEPARATE, further_keys, strict=True):
                axes = ("embed", "heads" if name.endswith("query") else "kv_heads", "kv")
                setattr(self, name, Projection((config.embed_dim,), of_heads, axes=axes, key=its_key, **options))
        self.relative, self.global_relative = (RelativeTable(config, key=each) for each in table_keys)
        self.max_distance, self.radius = config.max_distance, config.local_radius
        self.is_hard = config.hard_global_mask

    def __call__(
        self,
        x: Hidden,
        *,
        mask: Mask,
        globals_: GlobalInput,
        dropout_key: jax.Array | None = None,
        capture: frozenset[str] = frozenset(),
        edits: LayerEdits = NO_EDITS,
    ) -> tuple[Hidden, dict[str, Array]]:
        """Computes attention.

        Args:
          x: Activations, the global tokens first.
          mask: What tokens see, as a matrix, and the segments of both inputs.
          globals_: The global tokens.
          dropout_key: Random key of dropout; None disables dropout.
          capture: See `MultiHeadAttention.attend`. If projections are not shared, keys and values are those for global
            tokens, followed by those for the text; edits get scores and probabilities of both. A text that is longer
            than its windows is divided into blocks unless arrays of the attention are captured or edited, or the
            attention has a prefix.
          edits: See `MultiHeadAttention.attend`.

        Returns:
          The output, and the captured arrays by name.
        """
        number = globals_.number
        is_short = x.shape[1] - number <= _WINDOWS * (self.radius + 1)
        if is_short or capture or edits.edits or self.adapter is not None:
            ids = bigbird_etc_inputs.relative_ids(globals_, self.max_distance)
            options = {"dropout_key": dropout_key, "capture": capture, "edits": edits}
            if is_doubled := number > 0 and not self.is_shared:
                query, *keys_values = self.queries_keys_values(x, number, dropout_key)
                mask, ids = bigbird_etc_inputs.duplicate_keys(mask, ids, number)
                keys_values = tuple(jnp.concatenate(each, axis=1) for each in zip(*keys_values, strict=True))
                options |= {"query": query, "keys_values": keys_values}
            output, captured = self.attend(x, mask=mask, bias=self.relative_scores(ids, number), **options)
            for name in captured.keys() & {"scores", "probabilities"} if is_doubled else ():
                captured[name] = bigbird_etc_inputs.of_seen_keys(captured[name], number)
        else:
            output, captured = self.linear(x, mask.query_segments, globals_, dropout_key), {}
        projections = (functools.partial(each, dropout_key=dropout_key) for each in (self.global_out, self.out))
        return by_input(number, output, *projections), captured

    def queries_keys_values(
        self, x: Hidden, number: int, dropout_key: jax.Array | None
    ) -> tuple[Array, KeysValues, KeysValues]:
        """Returns the queries of both inputs, and keys and values of both for global tokens and for the text.

        Args:
          x: Activations, the global tokens first.
          number: Number of global tokens.
          dropout_key: Random key for adapters; None disables their dropout.
        """
        if self.is_shared or not number:
            query = shard_activation(self.query(x, dropout_key=dropout_key), "heads", "kv")
            shared = self.keys_values(x, dropout_key=dropout_key)
            return query, shared, shared

        def project(axis, *projections):
            given = (functools.partial(each, dropout_key=dropout_key) for each in projections)
            return shard_activation(by_input(number, x, *given), axis, "kv")

        for_globals = (self.global_key, self.g2l_key), (self.global_value, self.g2l_value)
        for_text = (self.l2g_key, self.key), (self.l2g_value, self.value)
        kv_for_globals, kv_for_text = (
            tuple(project("kv_heads", *pair) for pair in pairs) for pairs in (for_globals, for_text)
        )
        return project("heads", self.global_query, self.query), kv_for_globals, kv_for_text

    def relative_scores(self, ids: Array, num_global: int) -> TableScores:
        """Returns the scores of relative positions, of queries of which `num_global` are global tokens."""
        tables = self.global_relative, self.relative
        vectors, biases = tuple(table.embedding[...] for table in tables), tuple(table.bias[...] for table in tables)
        unseen, _ = bigbird_etc_inputs.other_and_own_rows(self.max_distance)
        return TableScores(vectors, biases, ids, num_global, unseen)

    def linear(self, x: Hidden, segments: Array, globals_: GlobalInput, dropout_key: jax.Array | None) -> Array:
        """Computes attention without the scores of tokens of the text that are far from each other."""
        number, length = globals_.number, x.shape[1] - globals_.number
        query, kv_for_globals, kv_for_text = self.queries_keys_values(x, number, dropout_key)
        inputs = local_global_attention.Inputs(segments, globals_.sentence, self.radius, self.is_hard)
        of_globals, of_text = (
            bigbird_etc_inputs.input_scores(table.embedding[...], table.bias[...], size, self.max_distance)
            for table, size in ((self.global_relative, number), (self.relative, length))
        )
        if local_global_attention.is_fused(query, kv_for_text[0], inputs, of_text.within, dropout=self.dropout):
            # Importing Pallas takes as long as importing Flax, and runs on other devices do not need it.
            from t5x_like.kernels.fused_attention import local_global

            scores = {"of_globals": of_globals, "of_text": of_text}
            options = {"scale": self.scale, "dropout": self.dropout, "dropout_key": dropout_key}
            output = local_global.attention(query, kv_for_globals, kv_for_text, inputs=inputs, **scores, **options)
        else:
            output = self.by_blocks(query, kv_for_globals, kv_for_text, segments, globals_, dropout_key)
        return shard_activation(output, "heads", "kv")

    def by_blocks(
        self,
        query: Array,
        kv_for_globals: KeysValues,
        kv_for_text: KeysValues,
        segments: Array,
        globals_: GlobalInput,
        dropout_key: jax.Array | None,
    ) -> Array:
        """Computes attention with products of neighboring blocks; see `linear` and `queries_keys_values`."""
        number = globals_.number
        global_key, long_key = split_key(dropout_key, 2)
        of_text, of_globals = slice(number, None), slice(0, number)
        options = {"scale": self.scale, "dropout": self.dropout}
        vectors = self.relative.embedding[...].astype(query.dtype)
        products = einsum_in_float32("bqhd,rhd->bhqr", query[:, of_text], vectors)
        relative = self.scale * (products + self.relative.bias[...].T[:, None])
        window = Window(self.radius, segments[:, of_text])
        rows = bigbird_etc_inputs.rows_of_distances(jnp.asarray(window.distances), self.max_distance)
        same = segments[:, of_text, None] == segments[:, None, of_globals]
        other, own = (relative[..., row, None] for row in bigbird_etc_inputs.other_and_own_rows(self.max_distance))
        between = jnp.where(globals_.is_own[:, None], own, other)
        of_text_queries = local_global_attention.attention(
            *(each[:, of_text] for each in (query, *kv_for_text)),
            local_global_attention.scores_of_rows(relative, rows, window),
            window=window,
            globals_=GlobalKeys(*(each[:, of_globals] for each in kv_for_text), same, between),
            dropout_key=long_key,
            **options,
        )
        if not number:
            return of_text_queries
        ids = bigbird_etc_inputs.relative_ids_of_globals(globals_, self.max_distance)
        seen = bigbird_etc_inputs.visible_to_globals(globals_, is_hard=self.is_hard)
        seen = Mask(query_segments=segments[:, of_globals], key_segments=segments, dense=seen)
        of_global_queries = kernels.attention(
            query[:, of_globals],
            *kv_for_globals,
            Scoring(seen, self.relative_scores(ids, number), dropout_key=global_key, **options),
        )
        return jnp.concatenate([of_global_queries, of_text_queries], axis=1)


def by_input(num_global: int, x: Array, of_global: Any, of_long: Any) -> Array:
    """Applies a module to the global tokens, and another to the text."""
    if not num_global:
        return of_long(x)
    return jnp.concatenate([of_global(x[:, :num_global]), of_long(x[:, num_global:])], axis=1)
