"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019): encoders with learned positions and post-norm layers.

Embeddings of tokens, positions and token types are added and normalized (Devlin et al., figure 2). Each layer consists
of attention and a GELU feed-forward block, with biases and with LayerNorm after each residual sum; no norm follows the
last layer. The logits use the token embeddings as their kernel. The dense layer and the bias of the masked-LM head, and
the pooler, belong to the objectives. RoBERTa is the same model with one token type, positions that start at 2, exact
GELU and a larger epsilon.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.kernels.masks import Mask
from t5x_like.layers import captures as capturing
from t5x_like.layers import initializers
from t5x_like.layers.attention import MultiHeadAttention, Sizes
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.embeddings import Embedder, position_ids
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.projections import Projection
from t5x_like.layers.stacks import Stack
from t5x_like.models import checks
from t5x_like.models.base import BaseConfig, BaseModel, Batch, StackInfo
from t5x_like.models.outputs import Outputs

# Features with a position per distribution over the vocabulary that an objective computes.
PREDICTED = ("masked_positions", "next_tokens", "target_tokens")
# Size of a head of the compact models of Turc et al. (2019).
COMPACT_HEAD_DIM = 64


@dataclasses.dataclass(frozen=True)
class BertConfig(BaseConfig):
    """Sizes and hyperparameters of BERT; by default BERT base, uncased, in pretraining."""

    # Rows of the token embedding table.
    vocab_size: int = 30522
    # Size of a hidden state.
    embed_dim: int = 768
    # Size of the embeddings; None for embed_dim. A projection follows embeddings of another size.
    embedding_dim: int | None = None
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
        checks.positive_integers(self, "embed_dim", "mlp_dim", "num_heads", "head_dim", "num_layers", "max_length")
        if self.embedding_dim is not None:
            checks.positive_integers(self, "embedding_dim")
        checks.rates(self, "dropout_rate", "attention_dropout_rate")
        checks.positive(self, "norm_epsilon", "initializer_range")
        checks.activations(self)
        checks.non_negative_integers(self, "num_token_types", "position_offset", "padding_id")

    @property
    def embeds_positions(self) -> bool:
        """Whether embeddings of positions are added to those of the tokens."""
        return True

    @property
    def initializer(self) -> initializers.Initializer:
        """Initializer of kernels and tables."""
        return initializers.truncated_normal(self.initializer_range)

    @property
    def unembed_dim(self) -> int:
        """Size of the embeddings; see `BaseConfig.unembed_dim`."""
        return self.embedding_dim or self.embed_dim

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack; see `ModelConfig.stacks`."""
        return {"encoder": self.stack(self.num_layers)}

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        read = tuple(name for name in super().reads if self.embeds_positions or not name.endswith("_positions"))
        return (*read, *(("token_types",) if self.num_token_types else ()))

    def make(self, key: jax.Array) -> "Bert":
        """Returns a BERT with newly initialized parameters; see `ModelConfig.make`."""
        return Bert(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step; see `forward_flops`."""
        batch, length = shapes["encoder_input_tokens"]
        predictions = next((shapes[name][1] for name in PREDICTED if name in shapes), 0)
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return 3.0 * forward_flops(self, batch, length, predictions)


def compact(
    num_layers: int, embed_dim: int, *, activations: tuple[str, ...] = ("gelu",), dropout_rate: float = 0.1
) -> BertConfig:
    """Returns the configuration of a compact model of Turc et al. (2019, arXiv:1908.08962, section 4).

    Args:
      num_layers: Number of layers.
      embed_dim: Size of a hidden state. A head has 64 dimensions, and a feed-forward block is 4 times as large.
      activations: Activations of the feed-forward blocks.
      dropout_rate: Dropout rate of the blocks and of the attention weights.

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

    A multiply-add counts as two operations. With d = embed_dim, e = unembed_dim, a = num_heads · head_dim, f = mlp_dim,
    m = number of matrix products in a feed-forward block (2, or 3 if it is gated), L = length, P = predictions and
    V = vocab_size, a row takes this number of multiply-adds, and L · ed more if embeddings of size e ≠ d are projected:

        num_layers · L · (4da + mdf + 2La) + P · eV

    Norms, softmax, biases and embedding lookups do not count. The layers of an objective's head do not count either:
    in a masked-LM head they take P · d², a thousandth of the total.

    Args:
      config: Configuration of the model.
      batch: Number of rows.
      length: L, tokens per row.
      predictions: P, positions per row for which logits are computed.
    """
    d, a, f = config.embed_dim, config.num_heads * config.head_dim, config.mlp_dim
    m = len(config.activations) + 1
    trunk = config.num_layers * length * (4 * d * a + m * d * f + 2 * length * a)
    e = config.unembed_dim
    return 2.0 * batch * (trunk + (e != d) * length * e * d + predictions * e * config.vocab_size)


def make_attention(config: BertConfig, *, key: jax.Array) -> MultiHeadAttention:
    """Makes the self-attention of a layer."""
    return MultiHeadAttention(key=key, scale=config.head_dim**-0.5, **attention_options(config))


def attention_options(config: BertConfig) -> dict[str, Any]:
    """Returns the arguments of `MultiHeadAttention`, without scale and key."""
    return {
        "sizes": Sizes(config.embed_dim),
        "heads": config.num_heads,
        "head_dim": config.head_dim,
        "init": config.initializer,
        "bias": True,
        "dropout": Dropout(config.attention_dropout_rate),
        "dtype": config.compute_dtype,
    }


def make_layer(
    config: BertConfig, key: jax.Array, attention: Callable[..., MultiHeadAttention] = make_attention
) -> TransformerLayer:
    """Makes a post-norm layer of self-attention and a feed-forward block.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.
      attention: Makes the self-attention, `attention(config, key=key)`.
    """
    attention_key, mlp_key = jax.random.split(key)
    mlp = MLP(
        config.embed_dim,
        config.mlp_dim,
        activations=config.activations,
        init=config.initializer,
        bias=True,
        dtype=config.compute_dtype,
        key=mlp_key,
    )
    return TransformerLayer(
        {"attention": attention(config, key=attention_key), "mlp": mlp},
        functools.partial(make_norm, config),
        norm_position="post",
        dropout=Dropout(config.dropout_rate),
    )


def make_norm(config: BertConfig) -> LayerNorm:
    """Makes the norm of a block."""
    return LayerNorm(config.embed_dim, epsilon=config.norm_epsilon)


def token_types(batch: Batch, number: int) -> Int[Array, "batch length"]:
    """Returns the token types of a batch: 0 for all tokens of a batch without the feature, or of a model with one type.

    Vocabularies with BERT's template mark the second of two texts, also for a model that does not distinguish them.

    Args:
      batch: `encoder_input_tokens`, and optionally `token_types`.
      number: Number of token types of the model.
    """
    zeros = jnp.zeros_like(batch["encoder_input_tokens"])
    given = batch.get("token_types", zeros)
    return given if number > 1 else zeros


class BertEmbeddings(nnx.Module):
    """The normalized sum of the embeddings of tokens, positions and token types (Devlin et al., figure 2).

    Args:
      config: Configuration of the model.
      keys: Random keys of the three tables.

    Attributes:
      token_embedder: Table `[vocab_size embedding]` of the tokens and of the logits.
      position_embedder: Table `[max_length+position_offset embedding]`; missing in a model that embeds no positions.
      token_type_embedder: Table `[num_token_types embedding]`; missing in a model without token types.
      norm: Norm of the sum.
    """

    def __init__(self, config: BertConfig, *, keys: Sequence[jax.Array]):
        token_key, position_key, token_type_key = keys
        self.config = config

        def embedder(num_embeddings, axis, key):
            size, dtype = config.unembed_dim, config.compute_dtype
            return Embedder(num_embeddings, size, key=key, axis=axis, init=config.initializer, dtype=dtype)

        self.token_embedder = embedder(config.vocab_size, "vocab", token_key)
        if config.embeds_positions:
            self.position_embedder = embedder(config.max_length + config.position_offset, "positions", position_key)
        if config.num_token_types:
            self.token_type_embedder = embedder(config.num_token_types, "token_types", token_type_key)
        self.norm = LayerNorm(config.unembed_dim, epsilon=config.norm_epsilon)

    def __call__(self, batch: Batch) -> Hidden:
        """Embeds tokens, positions and token types; see `Bert.embed`."""
        tokens = batch["encoder_input_tokens"]
        checks.row_length(self.config, tokens.shape[1])
        embedded = self.embed_tokens(batch)
        if self.config.embeds_positions:
            positions = position_ids(*tokens.shape, batch.get("encoder_positions")) + self.config.position_offset
            embedded += self.position_embedder(positions)
        if self.config.num_token_types:
            embedded += self.token_type_embedder(token_types(batch, self.config.num_token_types))
        return self.norm(embedded)

    def embed_tokens(self, batch: Batch) -> Hidden:
        """Returns the embeddings of the tokens alone."""
        return self.token_embedder(batch["encoder_input_tokens"])


class Bert(BaseModel):
    """BERT or RoBERTa. Implements `Model` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      embeddings: Embeddings of tokens, positions and token types, and the kernel of the logits.
      embedding_projection: Maps embeddings to hidden states; only if they have other sizes.
      encoder: Layers of the encoder.
    """

    def __init__(self, config: BertConfig, *, key: jax.Array):
        token_key, position_key, token_type_key, encoder_key = jax.random.split(key, 4)
        self.config = config
        self.embeddings = self.make_embeddings(config, keys=(token_key, position_key, token_type_key))
        if config.unembed_dim != config.embed_dim:
            self.embedding_projection = Projection(
                (config.unembed_dim,),
                (config.embed_dim,),
                axes=("embed", "mlp"),
                key=jax.random.fold_in(encoder_key, 0),
                init=config.initializer,
                bias=True,
                dtype=config.compute_dtype,
            )
        self.encoder = self.make_encoder(encoder_key)

    # Make the embeddings, a layer, and its self-attention.
    make_embeddings = staticmethod(BertEmbeddings)
    make_layer = staticmethod(make_layer)
    make_attention = staticmethod(make_attention)

    def make_encoder(self, key: jax.Array, *, order: Sequence[int] | None = None) -> Stack:
        """Makes the layers.

        Args:
          key: Random key of the initialization.
          order: The stored layer of each application; None for `num_layers` layers once.
        """
        return Stack(
            functools.partial(self.make_layer, self.config, attention=self.make_attention),
            self.config.num_layers if order is None else max(order) + 1,
            key=key,
            order=order,
            scan=bool(self.config.scan_layers),
            remat=self.config.remat,
        )

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Embeds tokens, positions and token types.

        Args:
          batch: `encoder_input_tokens`; `encoder_positions` unless they are 0, 1, 2 … along each row; `token_types`
            unless they are all 0. A model with at most one token type ignores them.

        Returns:
          The normalized sum of the embeddings as `encoder`.

        Raises:
          UserError: Rows are longer than `max_length`.
        """
        return {"encoder": self.embeddings(batch)}

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

        Packed rows have `encoder_segment_ids`. Without them, `encoder_input_tokens` equal to `padding_id` are masked.
        """
        options = {"dropout_key": dropout_key, "capture": capture, "edits": edits}
        return self.apply_layers(embedded["encoder"], self.attention_inputs(batch), **options)

    def apply_layers(
        self,
        embedded: Hidden,
        attention: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]],
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[capturing.Edit] = (),
    ) -> Outputs:
        """Computes everything between the embeddings and the logits, for any mask.

        Args:
          embedded: Embeddings of the rows.
          attention: The inputs of the attention, such as `mask`, or a function from the index of a layer to its inputs.
          dropout_key: Random key of dropout; None disables dropout.
          capture: See `Model.trunk`.
          edits: See `Model.trunk`.
        """
        stacks = {"encoder": (self.config.num_layers, self.encoder.capturable)}
        captures = capturing.parse(capture, stacks, edits)["encoder"]
        first_key, layers_key = split_key(dropout_key, 2)
        x = self.first_layer_input(embedded, first_key)
        inputs = (lambda index: {"attention": attention(index)}) if callable(attention) else {"attention": attention}
        hidden, captured = self.encoder(x, inputs, dropout_key=layers_key, captures=captures)
        hidden, output = captures.state(capturing.OUTPUT, hidden)
        return Outputs(hidden=hidden, captured=captured | output)

    def first_layer_input(self, embedded: Hidden, dropout_key: jax.Array | None = None) -> Hidden:
        """Returns the input of the first layer: the embeddings after dropout, in the size of the hidden states."""
        x = Dropout(self.config.dropout_rate)(embedded, dropout_key)
        if self.config.unembed_dim != self.config.embed_dim:
            x = self.embedding_projection(x, dropout_key=dropout_key)
        return x

    def attention_inputs(self, batch: Batch) -> dict[str, Any]:
        """Returns the inputs of the attention that all layers share: the mask."""
        segments = batch.get("encoder_segment_ids")
        if segments is None:
            return {"mask": Mask(key_valid=batch["encoder_input_tokens"] != self.config.padding_id)}
        return {"mask": Mask(query_segments=segments, key_segments=segments)}

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32, with the token embeddings as their kernel."""
        return self.embeddings.token_embedder.attend(hidden)
