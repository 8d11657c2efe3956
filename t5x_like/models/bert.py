"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019): encoders with learned positions and post-norm layers.

Embeddings of tokens, positions and token types are added and normalized (Devlin et al., figure 2). Each layer consists
of attention and a GELU feed-forward block, with biases and with LayerNorm after each residual sum; no norm follows the
last layer. The logits use the token embeddings as their kernel. The dense layer and the bias of the masked-LM head, and
the pooler, belong to the objectives. RoBERTa is the same model with one token type, positions that start at 2, exact
GELU and a larger epsilon.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.kernels.masks import Mask
from t5x_like.layers import captures as capturing
from t5x_like.layers import initializers
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.embeddings import Embedder, position_ids
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.stacks import Stack
from t5x_like.models import checks
from t5x_like.models.base import BaseConfig, Batch
from t5x_like.models.outputs import Outputs

# Size of a head of the compact models of Turc et al. (2019).
COMPACT_HEAD_DIM = 64


@dataclasses.dataclass(frozen=True)
class BertConfig(BaseConfig):
    """Sizes and hyperparameters of BERT; the defaults are those of BERT base, uncased, in pretraining."""

    # Rows of the token embedding table.
    vocab_size: int = 30522
    # Size of a hidden state.
    embed_dim: int = 768
    # Size within a feed-forward block.
    mlp_dim: int = 3072
    # Number of attention heads.
    num_heads: int = 12
    # Size of the queries, keys and values of a head.
    head_dim: int = 64
    # Number of layers.
    num_layers: int = 12
    # Longest row, in tokens.
    max_length: int = 512
    # Index of the first position in the position table, which has max_length + position_offset rows. RoBERTa: 2.
    position_offset: int = 0
    # Number of token types (sentence A and B). RoBERTa: 1. Without token types, as in DistilBERT: 0.
    num_token_types: int = 2
    # Id of the padding token, which is masked in batches without segment ids. RoBERTa: 1.
    padding_id: int = 0
    # Activations of the feed-forward blocks and of the masked-LM head. BERT was pretrained with the tanh approximation
    # of GELU, RoBERTa with exact GELU, ("gelu_exact",). transformers runs both with exact GELU.
    activations: tuple[str, ...] = ("gelu",)
    # Dropout rate of the embeddings and of the output of each block.
    dropout_rate: float = 0.1
    # Dropout rate of the attention weights.
    attention_dropout_rate: float = 0.1
    # Epsilon of the norms. RoBERTa: 1e-5.
    norm_epsilon: float = 1e-12
    # Standard deviation of new kernels and tables, truncated at twice its value.
    initializer_range: float = 0.02

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "embed_dim", "mlp_dim", "num_heads", "head_dim", "num_layers")
        checks.positive_integers(self, "max_length")
        checks.rates(self, "dropout_rate", "attention_dropout_rate")
        checks.positive(self, "norm_epsilon", "initializer_range")
        checks.activations(self)
        checks.non_negative_integers(self, "num_token_types", "position_offset", "padding_id")

    def make(self, key: jax.Array) -> "Bert":
        """Returns a BERT with newly initialized parameters; see `ModelConfig.make`."""
        return Bert(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step; see `forward_flops`.

        Args:
          shapes: shape `(batch, length)` of `encoder_input_tokens` in the global batch and, if the objective computes
            logits, `(batch, predictions)` of `masked_positions`.
        """
        batch, length = shapes["encoder_input_tokens"]
        _, predictions = shapes.get("masked_positions", (batch, 0))
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return 3.0 * forward_flops(self, batch, length, predictions)


def compact(
    num_layers: int, embed_dim: int, *, activations: tuple[str, ...] = ("gelu",), dropout_rate: float = 0.1
) -> BertConfig:
    """Returns the configuration of a compact model of Turc et al. (2019, arXiv:1908.08962, section 4).

    Args:
      num_layers: number of layers.
      embed_dim: size of a hidden state. A head has 64 dimensions, and a feed-forward block is 4 times as large.
      activations: activations of the feed-forward blocks.
      dropout_rate: dropout rate of the blocks and of the attention weights.

    Raises:
      UserError: `embed_dim` is not a multiple of 64.
    """
    if embed_dim % COMPACT_HEAD_DIM:
        raise UserError(f"embed_dim={embed_dim}: not a multiple of {COMPACT_HEAD_DIM}. Give 128, 256, 512 or 768.")
    return BertConfig(
        embed_dim=embed_dim,
        mlp_dim=4 * embed_dim,
        num_heads=embed_dim // COMPACT_HEAD_DIM,
        head_dim=COMPACT_HEAD_DIM,
        num_layers=num_layers,
        activations=activations,
        dropout_rate=dropout_rate,
        attention_dropout_rate=dropout_rate,
    )


def forward_flops(config: BertConfig, batch: int, length: int, predictions: int) -> float:
    """Returns the floating-point operations of the matrix products in a forward pass.

    A multiply-add counts as two operations. With d = embed_dim, a = num_heads · head_dim, f = mlp_dim, m = number of
    matrix products in a feed-forward block (2, or 3 if it is gated), L = length, P = predictions and V = vocab_size, a
    row takes this number of multiply-adds:

        num_layers · L · (4da + mdf + 2La) + P · dV

    Norms, softmax, biases and embedding lookups do not count. The layers of an objective's head do not count either:
    those of the masked-LM head take P · d², a thousandth of the total.

    Args:
      config: configuration of the model.
      batch: number of rows.
      length: L, tokens per row.
      predictions: P, positions per row for which logits are computed.
    """
    d, a, f = config.embed_dim, config.num_heads * config.head_dim, config.mlp_dim
    m = len(config.activations) + 1
    trunk = config.num_layers * length * (4 * d * a + m * d * f + 2 * length * a)
    return 2.0 * batch * (trunk + predictions * d * config.vocab_size)


def make_layer(config: BertConfig, key: jax.Array) -> TransformerLayer:
    """Makes a post-norm layer of self-attention and a feed-forward block."""
    attention_key, mlp_key = jax.random.split(key)
    attention = MultiHeadAttention(
        config.embed_dim,
        heads=config.num_heads,
        head_dim=config.head_dim,
        init=initializers.truncated_normal(config.initializer_range),
        bias=True,
        scale=config.head_dim**-0.5,
        dropout=Dropout(config.attention_dropout_rate),
        dtype=config.compute_dtype,
        key=attention_key,
    )
    mlp = MLP(
        config.embed_dim,
        config.mlp_dim,
        activations=config.activations,
        init=initializers.truncated_normal(config.initializer_range),
        bias=True,
        dtype=config.compute_dtype,
        key=mlp_key,
    )
    return TransformerLayer(
        {"attention": attention, "mlp": mlp},
        functools.partial(make_norm, config),
        norm_position="post",
        dropout=Dropout(config.dropout_rate),
    )


def make_norm(config: BertConfig) -> LayerNorm:
    """Makes the norm of a block or of the embeddings."""
    return LayerNorm(config.embed_dim, epsilon=config.norm_epsilon)


class Bert(nnx.Module):
    """BERT or RoBERTa. Implements `Model` of `models/base.py`.

    Args:
      config: configuration of the model.
      key: random key of the initialization.

    Attributes:
      token_embedder: table `[vocab_size embed_dim]` of the tokens and of the logits.
      position_embedder: table `[max_length+position_offset embed_dim]`.
      token_type_embedder: table `[num_token_types embed_dim]`; missing in a model without token types.
      embedding_norm: norm of the sum of the embeddings.
      encoder: layers of the encoder.
    """

    def __init__(self, config: BertConfig, *, key: jax.Array):
        token_key, position_key, token_type_key, encoder_key = jax.random.split(key, 4)
        self.config = config
        init = initializers.truncated_normal(config.initializer_range)

        def embedder(num_embeddings, axis, key):
            size, dtype = config.embed_dim, config.compute_dtype
            return Embedder(num_embeddings, size, key=key, axis=axis, init=init, dtype=dtype)

        self.token_embedder = embedder(config.vocab_size, "vocab", token_key)
        self.position_embedder = embedder(config.max_length + config.position_offset, "positions", position_key)
        if config.num_token_types:
            self.token_type_embedder = embedder(config.num_token_types, "token_types", token_type_key)
        self.embedding_norm = make_norm(config)
        self.encoder = Stack(
            functools.partial(make_layer, config),
            config.num_layers,
            key=encoder_key,
            scan=bool(config.scan_layers),
            remat=config.remat,
        )

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Embeds tokens, positions and token types.

        Args:
          batch: `encoder_input_tokens`; `encoder_positions` unless they are 0, 1, 2 … along each row; `token_types`
            unless they are all 0. A model without token types ignores them.

        Returns:
          The normalized sum of the embeddings as `encoder`.

        Raises:
          UserError: rows are longer than `max_length`.
        """
        tokens, token_types = batch["encoder_input_tokens"], batch.get("token_types")
        checks.row_length(self.config, tokens.shape[1])
        positions = position_ids(*tokens.shape, batch.get("encoder_positions")) + self.config.position_offset
        embedded = self.token_embedder(tokens) + self.position_embedder(positions)
        if self.config.num_token_types:
            embedded += self.token_type_embedder(jnp.zeros_like(tokens) if token_types is None else token_types)
        return {"encoder": self.embedding_norm(embedded)}

    def trunk(
        self,
        embedded: Mapping[str, Hidden],
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
    ) -> Outputs:
        """Computes everything between the embeddings and the logits; see `Model.trunk`.

        Args:
          embedded: result of `embed`.
          batch: `encoder_segment_ids` for packed rows. Without them, `encoder_input_tokens` equal to `padding_id` are
            masked.
          dropout_key: random key of dropout; None disables dropout.
          capture: names of arrays to return; see `layers.captures`.

        Returns:
          The last hidden states and the captured arrays.

        Raises:
          ValueError: a name in `capture` is unknown.
        """
        captures = capturing.parse(capture, {"encoder": (self.config.num_layers, self.encoder.capturable)})["encoder"]
        first_key, layers_key = split_key(dropout_key, 2)
        x = Dropout(self.config.dropout_rate)(embedded["encoder"], first_key)
        inputs = {"attention": {"mask": self._mask(batch)}}
        hidden, captured = self.encoder(x, inputs, dropout_key=layers_key, captures=captures)
        return Outputs(hidden=hidden, captured=captured | captures.state(capturing.OUTPUT, hidden))

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32, with the token embeddings as their kernel."""
        return self.token_embedder.attend(hidden)

    def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None, capture: Sequence[str] = ()) -> Outputs:
        """Returns `trunk(embed(batch), batch)`."""
        return self.trunk(self.embed(batch), batch, dropout_key=dropout_key, capture=capture)

    def _mask(self, batch: Batch) -> Mask:
        segments = batch.get("encoder_segment_ids")
        if segments is None:
            return Mask(key_valid=batch["encoder_input_tokens"] != self.config.padding_id)
        return Mask(query_segments=segments, key_segments=segments)
