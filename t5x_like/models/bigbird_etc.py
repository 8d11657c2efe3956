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
from jaxtyping import Array

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.kernels.masks import Mask
from t5x_like.layers import captures as capturing
from t5x_like.layers.blocks import Hidden, Inputs, TransformerLayer
from t5x_like.layers.captures import Captures
from t5x_like.layers.mlp import MLP
from t5x_like.layers.projections import gather_residual, scatter_residual, shard_residual
from t5x_like.layers.stacks import Stack
from t5x_like.models import bert, bigbird_etc_inputs, checks
from t5x_like.models.base import Batch
from t5x_like.models.bert import Bert, BertConfig, BertEmbeddings
from t5x_like.models.bigbird_etc_attention import EtcAttention, by_input
from t5x_like.models.bigbird_etc_inputs import GLOBAL_FEATURES, GlobalInput
from t5x_like.models.outputs import Outputs


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
        checks.no_position_offset(self)

    @property
    def embeds_positions(self) -> bool:
        """False: positions are relative; see `BertConfig.embeds_positions`."""
        return False

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return (*super().reads, *GLOBAL_FEATURES)

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


class EtcLayer(TransformerLayer):
    """A post-norm layer of both inputs.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      global_attention_norm: Norm of global tokens after the attention.
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
        x = x + self.dropout["attention"](scatter_residual(update), keys[1])
        x = by_input(num_global, x, self.global_attention_norm, self.attention_norm)
        x, _ = self.residual("mlp", lambda x: self.mlp(x, dropout_key=keys[2]), x, keys[3])
        x = self.select(before, x, dropout_key)
        x = captures.edits("hidden", shard_residual(x))
        return x, captures.collect(hidden=x, attention=captured)


class EtcEmbeddings(BertEmbeddings):
    """The normalized embeddings of both inputs, the global tokens first.

    Args:
      config: Configuration of the model.
      keys: Random keys of the tables.

    Attributes:
      global_norm: Norm of the embeddings of global tokens.
    """

    def __init__(self, config: EtcConfig, *, keys: Sequence[jax.Array]):
        super().__init__(config, keys=keys)
        self.global_norm = bert.make_norm(config)

    def __call__(self, batch: Batch) -> Hidden:
        """Embeds tokens and their types; see `Etc.embed`."""
        tokens = batch["encoder_input_tokens"]
        checks.row_length(self.config, tokens.shape[1])
        types = bert.token_types(batch, self.config.num_token_types - 1) + 1
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
      config: Configuration of the model.
      key: Random key of the initialization.
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
          embedded: Result of `embed`.
          batch: `encoder_input_tokens`; `encoder_segment_ids` in packed rows, without which `padding_id` is masked;
            `token_types`; and `GLOBAL_FEATURES`, see `bigbird_etc_inputs.given_sentences`.
          dropout_key: Random key of dropout; None disables dropout.
          capture: Names of intermediate arrays to return.
          edits: Interventions in intermediate arrays of the same names.
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
