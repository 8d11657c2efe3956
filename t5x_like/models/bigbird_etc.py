"""ETC (Ainslie et al. 2020, arXiv:2004.08483), the network of BigBird's extended transformer construction.

Beside the text, the long input, there is a global input of one token per sentence. Tokens of the text see their
neighbors and all global tokens; global tokens see each other and the text, or their own sentence alone. Both inputs
share feed-forward blocks and, unless `shared_projections` is False, queries, keys and values; the projections of the
attention's output and the norms after the embeddings and after the attention are their own. Positions are relative
(`models.bigbird_etc_inputs`).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from t5x_like.errors import UserError
from t5x_like.kernels import attention as kernels
from t5x_like.kernels import local_global_attention
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.kernels.local_global_attention import GlobalKeys, Window
from t5x_like.kernels.masks import Mask
from t5x_like.layers import captures as capturing
from t5x_like.layers import initializers
from t5x_like.layers.attention import KeysValues, MultiHeadAttention
from t5x_like.layers.blocks import Hidden, Inputs, TransformerLayer
from t5x_like.layers.captures import NO_EDITS, Captures, LayerEdits
from t5x_like.layers.mlp import MLP
from t5x_like.layers.projections import (
    Projection,
    gather_residual,
    scatter_residual,
    shard_activation,
    shard_residual,
)
from t5x_like.layers.stacks import Stack
from t5x_like.models import bert, bigbird_etc_inputs, checks
from t5x_like.models.base import Batch
from t5x_like.models.bert import Bert, BertConfig, BertEmbeddings
from t5x_like.models.bigbird_etc_inputs import GLOBAL_FEATURES, GlobalInput, TableScores
from t5x_like.models.outputs import Outputs

# Standard deviation of new vectors of relative positions, in the released code.
_RELATIVE_STDDEV = 0.5
# Projections that exist if they are not shared.
_SEPARATE = ("global_query", "global_key", "global_value", "l2g_key", "l2g_value", "g2l_key", "g2l_value")
# Number of blocks of keys that a block of queries is multiplied with. Texts without more blocks have dense scores.
_WINDOWS = 3


@dataclasses.dataclass(frozen=True)
class EtcConfig(BertConfig):
    """Sizes and hyperparameters of ETC; the defaults are those of ETC base with shared projections."""

    # Longest row of the text, in tokens.
    max_length: int = 4096
    # Number of token types: 0 for global tokens, 1 and 2 for the segments of the text.
    num_token_types: int = 16
    # Number of tokens of the text that a token sees on each side.
    local_radius: int = 84
    # Distance from which all positions on a side share a vector.
    max_distance: int = 12
    # Rows of the two tables of relative positions of a layer.
    relative_vocab_size: int = 32
    # Whether a global token sees the tokens of its own sentence alone, or all of the text.
    hard_global_mask: bool = True
    # Number of tokens per global token in batches without sentences; None for no global tokens.
    tokens_per_global: int | None = 32
    # Whether both inputs share the projections of queries, keys and values. Otherwise each input has its own queries,
    # and its own keys and values for the queries of each input.
    shared_projections: bool = True

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "local_radius", "max_distance", "relative_vocab_size")
        if self.tokens_per_global is not None:
            checks.positive_integers(self, "tokens_per_global")
        least = 1 + max(bigbird_etc_inputs.other_and_own_rows(self.max_distance))
        if self.relative_vocab_size < least:
            raise UserError(
                f"relative_vocab_size={self.relative_vocab_size}: too small for max_distance={self.max_distance}. Give "
                f"{least} or more."
            )
        if self.num_token_types < 2:
            raise UserError(
                f"num_token_types={self.num_token_types}: global tokens and tokens of the text have different types. "
                "Give 2 or more."
            )
        if self.position_offset:
            raise UserError(f"position_offset={self.position_offset}: positions of ETC are relative. Omit it.")

    @property
    def embeds_positions(self) -> bool:
        """False: positions are relative; see `BertConfig.embeds_positions`."""
        return False

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return (*(name for name in super().reads if not name.endswith("_positions")), *GLOBAL_FEATURES)

    def make(self, key: jax.Array) -> "Etc":
        """Returns an ETC with newly initialized parameters; see `ModelConfig.make`."""
        return Etc(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step: of BERT, with the visible keys of both inputs.

        A row has G more tokens, the global ones. A token of the text sees a window and G keys, a global token all keys.
        The products with the R rows of relative positions take (G + L) · Ra multiply-adds per layer. If projections are
        not shared, a token has keys and values for the queries of each input.
        """
        batch, length = shapes["encoder_input_tokens"]
        number = shapes["global_positions"][1] if "global_positions" in shapes else self.default_globals(length)
        a, tokens = self.num_heads * self.head_dim, number + length
        window = length * (2 * self.local_radius + 1) - self.local_radius * (self.local_radius + 1)
        pairs = (window if self.local_radius < length else length**2) + length * number + number * tokens
        projections = 4 if self.shared_projections or not number else 6
        products = tokens * (
            projections * self.embed_dim * a + (len(self.activations) + 1) * self.embed_dim * self.mlp_dim
        )
        products += 2 * pairs * a + tokens * self.relative_vocab_size * a
        predictions = shapes["masked_positions"][1] if "masked_positions" in shapes else 0
        return 6.0 * batch * (self.num_layers * products + predictions * self.unembed_dim * self.vocab_size)

    def default_globals(self, length: int) -> int:
        """Returns the number of global tokens of a batch without sentences."""
        return bigbird_etc_inputs.num_fixed_blocks(length, self.tokens_per_global) if self.tokens_per_global else 0


class RelativeTable(nnx.Module):
    """A vector and a score per relative position and head.

    Args:
      config: configuration of the model.
      key: random key of the initialization.

    Attributes:
      embedding: `[rows heads kv]`.
      bias: `[rows heads]`.
    """

    def __init__(self, config: EtcConfig, *, key: jax.Array):
        shape, axes = (config.relative_vocab_size, config.num_heads, config.head_dim), ("relpos_buckets", "heads", "kv")
        self.embedding = nnx.Param(initializers.truncated_normal(_RELATIVE_STDDEV)(key, shape, 1), axes=axes)
        self.bias = nnx.Param(jnp.zeros(shape[:2], jnp.float32), axes=axes[:2])


class EtcAttention(MultiHeadAttention):
    """Multi-head attention of both inputs, with relative positions.

    Args:
      config: configuration of the model.
      key: random key of the initialization.

    Attributes:
      global_out: projection of the output of global tokens.
      global_query: projection of the queries of global tokens. This and the following exist if projections are not
        shared; `query`, `key` and `value` then belong to the attention of the text to itself.
      global_key, global_value: projections of global tokens that global tokens read.
      l2g_key, l2g_value: projections of global tokens that the text reads (long to global).
      g2l_key, g2l_value: projections of the text that global tokens read (global to long).
      relative: table of relative positions of queries of the text.
      global_relative: table of relative positions of queries of global tokens.
    """

    def __init__(self, config: EtcConfig, *, key: jax.Array):
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
          x: activations, the global tokens first.
          mask: what tokens see, as a matrix, and the segments of both inputs.
          globals_: the global tokens.
          dropout_key: random key of dropout; None disables dropout.
          capture: see `MultiHeadAttention.attend`. If projections are not shared, keys and values are those for global
            tokens, followed by those for the text; edits get scores and probabilities of both. A text that is longer
            than its windows is divided into blocks unless arrays of the attention are captured or edited, or the
            attention has a prefix.
          edits: see `MultiHeadAttention.attend`.

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
          x: activations, the global tokens first.
          number: number of global tokens.
          dropout_key: random key for adapters; None disables their dropout.
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
        ids = bigbird_etc_inputs.relative_ids_of_globals(globals_, self.max_distance)
        seen = bigbird_etc_inputs.visible_to_globals(globals_, is_hard=self.is_hard)
        seen = Mask(query_segments=segments[:, of_globals], key_segments=segments, dense=seen)
        options = {"scale": self.scale, "dropout": self.dropout}
        bias = self.relative_scores(ids, number)
        of_global_queries = kernels.attention(
            query[:, of_globals], *kv_for_globals, mask=seen, bias=bias, dropout_key=global_key, **options
        )
        vectors = self.relative.embedding[...].astype(query.dtype)
        products = jnp.einsum("bqhd,rhd->bhqr", query[:, of_text], vectors, preferred_element_type=jnp.float32)
        distances = np.arange(-2 * self.radius - 1, 2 * self.radius + 2)
        rows = bigbird_etc_inputs.rows_of_distances(jnp.asarray(distances), self.max_distance)
        same = segments[:, of_text, None] == segments[:, None, of_globals]
        between = bigbird_etc_inputs.other_and_own_rows(self.max_distance)
        of_text_queries = local_global_attention.attention(
            *(each[:, of_text] for each in (query, *kv_for_text)),
            self.scale * (products + self.relative.bias[...].T[:, None]),
            window=Window(self.radius, segments[:, of_text], rows),
            globals_=GlobalKeys(*(each[:, of_globals] for each in kv_for_text), same, globals_.is_own, between),
            dropout_key=long_key,
            **options,
        )
        return jnp.concatenate([of_global_queries, of_text_queries], axis=1)


def by_input(num_global: int, x: Array, of_global: Any, of_long: Any) -> Array:
    """Applies a module to the global tokens, and another to the text."""
    if not num_global:
        return of_long(x)
    return jnp.concatenate([of_global(x[:, :num_global]), of_long(x[:, num_global:])], axis=1)


class EtcLayer(TransformerLayer):
    """A post-norm layer of both inputs.

    Args:
      config: configuration of the model.
      key: random key of the initialization.

    Attributes:
      global_attention_norm: norm of global tokens after the attention.
    """

    def __init__(self, config: EtcConfig, key: jax.Array):
        attention_key, mlp_key = jax.random.split(key)
        options = {"activations": config.activations, "init": config.initializer, "bias": True}
        mlp = MLP(config.embed_dim, config.mlp_dim, dtype=config.compute_dtype, key=mlp_key, **options)
        blocks = {"attention": EtcAttention(config, key=attention_key), "mlp": mlp}
        make_norm = functools.partial(bert.make_norm, config)
        super().__init__(blocks, make_norm, norm_position="post", dropout=Dropout(config.dropout_rate))
        self.global_attention_norm = make_norm()

    def __call__(
        self, x: Hidden, inputs: Inputs, *, dropout_key: jax.Array | None = None, captures: Captures
    ) -> tuple[Hidden, dict[str, Array]]:
        """Applies attention and the feed-forward block; see `TransformerLayer.__call__`."""
        keys, num_global = split_key(dropout_key, 4), inputs["attention"]["globals_"].number
        options = {"dropout_key": keys[0], **captures.within("attention"), **inputs["attention"]}
        before = x
        update, captured = self.attention(gather_residual(x), **options)
        x = x + self.dropout(scatter_residual(update), keys[1])
        x = by_input(num_global, x, self.global_attention_norm, self.attention_norm)
        x, _ = self.residual("mlp", lambda x: self.mlp(x, dropout_key=keys[2]), x, keys[3])
        x = self.select(before, x, dropout_key)
        x = captures.edits("hidden", shard_residual(x))
        return x, captures.collect(hidden=x, attention=captured)


class EtcEmbeddings(BertEmbeddings):
    """The normalized embeddings of both inputs, the global tokens first.

    Args:
      config: configuration of the model.
      keys: random keys of the tables.

    Attributes:
      global_norm: norm of the embeddings of global tokens.
    """

    def __init__(self, config: EtcConfig, *, keys: Sequence[jax.Array]):
        super().__init__(config, keys=keys)
        self.global_norm = bert.make_norm(config)

    def __call__(self, batch: Batch) -> Hidden:
        """Embeds tokens and their types; see `Etc.embed`."""
        tokens = batch["encoder_input_tokens"]
        checks.row_length(self.config, tokens.shape[1])
        types = batch.get("token_types", jnp.zeros_like(tokens)) + 1
        text = self.norm(self.embed_tokens(batch) + self.token_type_embedder(types))
        globals_ = global_input(self.config, batch)
        if not globals_.number:
            return text
        types = self.token_type_embedder(jnp.zeros_like(globals_.tokens))
        return jnp.concatenate([self.global_norm(self.token_embedder(globals_.tokens) + types), text], axis=1)


def global_input(config: EtcConfig, batch: Batch) -> GlobalInput:
    """Returns the global tokens of a batch: those of its sentences, or one per block of tokens."""
    segments = text_segments(config, batch)
    positions, of_globals, tokens = (batch.get(name) for name in GLOBAL_FEATURES)
    if positions is not None:
        return bigbird_etc_inputs.given_sentences(positions, of_globals, tokens, segments)
    return bigbird_etc_inputs.fixed_blocks(segments, config.tokens_per_global)


def text_segments(config: EtcConfig, batch: Batch) -> Array:
    """Returns the segments of the text, 0 for padding."""
    segments = batch.get("encoder_segment_ids")
    return (batch["encoder_input_tokens"] != config.padding_id).astype(jnp.int32) if segments is None else segments


class Etc(Bert):
    """ETC. Implements `Model` of `models/base.py`.

    Captured arrays have the global tokens first; the hidden states of the outputs are those of the text.

    Args:
      config: configuration of the model.
      key: random key of the initialization.
    """

    make_embeddings = staticmethod(EtcEmbeddings)

    def make_encoder(self, key: jax.Array, *, order: Sequence[int] | None = None) -> Stack:
        """Makes the layers; see `Bert.make_encoder`."""
        config = self.config
        number = config.num_layers if order is None else max(order) + 1
        options = {"order": order, "scan": bool(config.scan_layers), "remat": config.remat}
        return Stack(functools.partial(EtcLayer, config), number, key=key, **options)

    def trunk(
        self,
        embedded: Mapping[str, Hidden],
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[capturing.Edit] = (),
    ) -> Outputs:
        """Computes everything between the embeddings and the logits; see `Model.trunk`.

        Args:
          embedded: result of `embed`.
          batch: `encoder_input_tokens`; `encoder_segment_ids` in packed rows, without which `padding_id` is masked;
            `token_types`; and `GLOBAL_FEATURES`, see `bigbird_etc_inputs.given_sentences`.
          dropout_key: random key of dropout; None disables dropout.
          capture: names of intermediate arrays to return.
          edits: interventions in intermediate arrays of the same names.
        """
        outputs = super().trunk(embedded, batch, dropout_key=dropout_key, capture=capture, edits=edits)
        number = outputs.hidden.shape[1] - batch["encoder_input_tokens"].shape[1]
        return outputs.replace(hidden=outputs.hidden[:, number:])

    def attention_inputs(self, batch: Batch) -> dict[str, Any]:
        """Returns the mask and the global tokens."""
        config, globals_ = self.config, global_input(self.config, batch)
        segments = jnp.concatenate([globals_.segments, text_segments(config, batch)], axis=1)
        seen = bigbird_etc_inputs.visible(globals_, radius=config.local_radius, is_hard=config.hard_global_mask)
        return {"mask": Mask(query_segments=segments, key_segments=segments, dense=seen), "globals_": globals_}
