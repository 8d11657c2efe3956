"""MobileBERT and its teacher IB-BERT (Sun et al. 2020, arXiv:2004.02984): encoders with bottlenecks.

Three token embeddings, of the next, this and the previous token, are concatenated and projected to the size of the
hidden states. Embeddings of positions and token types are added. In each layer, attention and feed-forward blocks work
at an inner size: MobileBERT's is smaller than the hidden size, IB-BERT's is larger (an inverted bottleneck).
Both have hidden states of one size, so that the student's are trained to equal the teacher's without projections.

The logits use the token embeddings as the kernel of their first `embedding_dim` features. The masked-LM head owns the
kernel of the others (`MobileBertConfig.untied_dim`).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.kernels.masks import Mask
from t5x_like.layers import captures as capturing
from t5x_like.layers import initializers
from t5x_like.layers.attention import MultiHeadAttention, Sizes
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.bottleneck import ATTENTION_INPUTS, AttentionInput, BottleneckLayer
from t5x_like.layers.embeddings import Embedder, position_ids
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import LayerNorm, NoNorm
from t5x_like.layers.projections import Projection
from t5x_like.layers.stacks import Stack
from t5x_like.models import bert, checks
from t5x_like.models.base import BaseConfig, BaseModel, Batch, StackInfo
from t5x_like.models.outputs import Outputs

NORMS = ("layer_norm", "no_norm")
# Number of tokens whose embeddings are concatenated.
TRIGRAM = 3


@dataclasses.dataclass(frozen=True)
class MobileBertConfig(BaseConfig):
    """Sizes and hyperparameters of MobileBERT; by default the released model."""

    # Rows of the token embedding table.
    vocab_size: int = 30522
    # Size of a hidden state.
    embed_dim: int = 512
    # Size of a token embedding.
    embedding_dim: int = 128
    # Size between the two projections of a layer. IB-BERT: 1024.
    bottleneck_dim: int = 128
    # Size within a feed-forward block. IB-BERT: 4096.
    mlp_dim: int = 512
    # Number of feed-forward blocks per layer. MobileBERT-TINY: 2. IB-BERT: 1.
    num_mlps: int = 4
    # Number of attention heads.
    num_heads: int = 4
    # Size of the queries, keys and values of a head. IB-BERT: 256.
    head_dim: int = 32
    # Number of layers.
    num_layers: int = 24
    # Longest row, in tokens.
    max_length: int = 512
    # Number of token types (sentence A and B).
    num_token_types: int = 2
    # Id of the padding token, which is masked in batches without segment ids.
    padding_id: int = 0
    # What queries, keys and values are computed from: 'shared_bottleneck' (queries and keys from a second bottleneck,
    # values from the hidden states), 'bottleneck' (all from the bottleneck; MobileBERT-TINY) or 'hidden' (all from the
    # hidden states; table 1 of the paper, IB-BERT).
    attention_input: AttentionInput = "shared_bottleneck"
    # Norms of the model: 'no_norm' (a scale and a bias without normalization) or 'layer_norm' (IB-BERT). The norm of
    # the masked-LM head is always LayerNorm.
    normalization: str = "no_norm"
    # Activations of the feed-forward blocks and of the masked-LM head. IB-BERT: ("gelu",).
    activations: tuple[str, ...] = ("relu",)
    # Dropout rate of the embeddings and of the output of each layer.
    dropout_rate: float = 0.0
    # Dropout rate of the attention weights.
    attention_dropout_rate: float = 0.1
    # Epsilon of LayerNorm.
    norm_epsilon: float = 1e-12
    # Standard deviation of new kernels and tables, truncated at twice its value.
    initializer_range: float = 0.02

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "embed_dim", "embedding_dim", "bottleneck_dim", "mlp_dim", "num_mlps")
        checks.positive_integers(self, "num_heads", "head_dim", "num_layers", "max_length", "num_token_types")
        checks.non_negative_integers(self, "padding_id")
        checks.at_most(self, "embedding_dim", "embed_dim")
        checks.one_of(self, "attention_input", ATTENTION_INPUTS)
        checks.one_of(self, "normalization", NORMS)
        checks.rates(self, "dropout_rate", "attention_dropout_rate")
        checks.positive(self, "norm_epsilon", "initializer_range")
        checks.activations(self)

    @property
    def untied_dim(self) -> int:
        """Number of features of a hidden state that a token embedding lacks; see `BaseConfig.untied_dim`."""
        return self.embed_dim - self.embedding_dim

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack; see `ModelConfig.stacks`."""
        return {"encoder": self.stack(self.num_layers)}

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return (*super().reads, "token_types")

    def make(self, key: jax.Array) -> "MobileBert":
        """Returns a MobileBERT with newly initialized parameters; see `ModelConfig.make`."""
        return MobileBert(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step; see `forward_flops`."""
        batch, length = shapes["encoder_input_tokens"]
        _, predictions = shapes.get("masked_positions", (batch, 0))
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return 3.0 * forward_flops(self, batch, length, predictions)


def _attention_sizes(config: MobileBertConfig) -> tuple[int, int]:
    """Returns the sizes that queries and keys, and that values are computed from."""
    inner, size = config.bottleneck_dim, config.embed_dim
    return {"shared_bottleneck": (inner, size), "bottleneck": (inner, inner), "hidden": (size, size)}[
        config.attention_input
    ]


def forward_flops(config: MobileBertConfig, batch: int, length: int, predictions: int) -> float:
    """Returns the floating-point operations of the matrix products in a forward pass.

    A multiply-add counts as two operations. With d = embed_dim, e = embedding_dim, b = bottleneck_dim, a = num_heads ·
    head_dim, q and v = sizes that queries and values are computed from, f = mlp_dim, m = number of matrix products in a
    feed-forward block, k = num_mlps, s = number of projections to the inner size (2 for a shared bottleneck, otherwise
    1), L = length, P = predictions and V = vocab_size, a row takes this number of multiply-adds:

        L · 3ed + num_layers · L · ((s + 1)db + a(2q + v + b) + 2La + kmbf) + P · dV

    Norms, softmax, biases, embedding lookups and the dense layer of the masked-LM head do not count.

    Args:
      config: Configuration of the model.
      batch: Number of rows.
      length: L, tokens per row.
      predictions: P, positions per row for which logits are computed.
    """
    d, b, a = config.embed_dim, config.bottleneck_dim, config.num_heads * config.head_dim
    q, v = _attention_sizes(config)
    s = 2 if config.attention_input == "shared_bottleneck" else 1
    mlps = config.num_mlps * (len(config.activations) + 1) * b * config.mlp_dim
    layer = (s + 1) * d * b + a * (2 * q + v + b) + 2 * length * a + mlps
    trunk = length * (TRIGRAM * config.embedding_dim * d + config.num_layers * layer)
    return 2.0 * batch * (trunk + predictions * d * config.vocab_size)


def make_layer(config: MobileBertConfig, key: jax.Array) -> BottleneckLayer:
    """Makes a layer of attention and feed-forward blocks between two projections."""
    bottleneck_key, shared_key, attention_key, expansion_key, *mlp_keys = jax.random.split(key, 4 + config.num_mlps)
    options = {
        "init": initializers.truncated_normal(config.initializer_range),
        "bias": True,
        "dtype": config.compute_dtype,
    }

    def project(inputs, outputs, axes, key):
        return Projection((inputs,), (outputs,), axes=axes, key=key, **options)

    size, inner = config.embed_dim, config.bottleneck_dim
    query_size, value_size = _attention_sizes(config)
    is_shared = config.attention_input == "shared_bottleneck"
    attention = MultiHeadAttention(
        Sizes(query_size, value_size, inner),
        heads=config.num_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
        dropout=Dropout(config.attention_dropout_rate),
        key=attention_key,
        **options,
    )
    return BottleneckLayer(
        project(size, inner, ("embed", None), bottleneck_key),
        attention,
        [MLP(inner, config.mlp_dim, activations=config.activations, key=each, **options) for each in mlp_keys],
        project(inner, size, (None, "embed"), expansion_key),
        functools.partial(make_norm, config),
        sizes=(inner, size),
        attention_input=config.attention_input,
        attention_bottleneck=project(size, inner, ("embed", None), shared_key) if is_shared else None,
        dropout=Dropout(config.dropout_rate),
    )


def make_norm(config: MobileBertConfig, size: int) -> LayerNorm | NoNorm:
    """Makes a norm of the given size."""
    return NoNorm(size) if config.normalization == "no_norm" else LayerNorm(size, epsilon=config.norm_epsilon)


def trigrams(
    vectors: Float[Array, "batch length embed"], segments: Int[Array, "batch length"] | Bool[Array, "batch length"]
) -> Float[Array, "batch length 3*embed"]:
    """Concatenates each vector with its neighbors: the next one, itself, the previous one (section 3.4).

    Args:
      vectors: Token embeddings.
      segments: Segment of each position. A neighbor in another segment, or beyond the row, counts as 0.
    """
    positions = jnp.arange(vectors.shape[1])

    def neighbors(offset):
        inside = (positions + offset >= 0) & (positions + offset < vectors.shape[1])
        visible = inside & (jnp.roll(segments, -offset, axis=1) == segments)
        return jnp.where(visible[..., None], jnp.roll(vectors, -offset, axis=1), 0)

    return jnp.concatenate([neighbors(1), vectors, neighbors(-1)], axis=-1)


class MobileBert(BaseModel):
    """MobileBERT or IB-BERT. Implements `Model` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      token_embedder: Table `[vocab_size embedding_dim]` of the tokens and of the logits.
      embedding_projection: Projection from three token embeddings, with kernel `[3·embedding_dim embed_dim]`.
      position_embedder: Table `[max_length embed_dim]`.
      token_type_embedder: Table `[num_token_types embed_dim]`.
      embedding_norm: Norm of the sum of the embeddings.
      encoder: Layers of the encoder.
    """

    def __init__(self, config: MobileBertConfig, *, key: jax.Array):
        token_key, projection_key, position_key, token_type_key, encoder_key = jax.random.split(key, 5)
        self.config = config
        options = {"init": initializers.truncated_normal(config.initializer_range), "dtype": config.compute_dtype}
        size, max_length = config.embed_dim, config.max_length
        self.token_embedder = Embedder(config.vocab_size, config.embedding_dim, key=token_key, axis="vocab", **options)
        self.embedding_projection = Projection(
            (TRIGRAM * config.embedding_dim,),
            (size,),
            axes=(None, "embed"),
            key=projection_key,
            bias=True,
            has_dropout_key=False,
            **options,
        )
        self.position_embedder = Embedder(max_length, size, key=position_key, axis="positions", **options)
        self.token_type_embedder = Embedder(
            config.num_token_types, size, key=token_type_key, axis="token_types", **options
        )
        self.embedding_norm = make_norm(config, size)
        self.encoder = Stack(
            functools.partial(make_layer, config),
            config.num_layers,
            key=encoder_key,
            scan=bool(config.scan_layers),
            remat=config.remat,
        )

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Embeds trigrams of tokens, positions and token types.

        Args:
          batch: `encoder_input_tokens`; `encoder_segment_ids`, which limit the trigrams, unless padding alone does;
            `encoder_positions` unless they are 0, 1, 2 … along each row; `token_types` unless they are all 0.

        Returns:
          The normalized sum of the embeddings as `encoder`.

        Raises:
          UserError: Rows are longer than `max_length`.
        """
        tokens = batch["encoder_input_tokens"]
        checks.row_length(self.config, tokens.shape[1])
        segments = batch.get("encoder_segment_ids")
        segments = self._is_text(batch) if segments is None else segments
        words = self.embedding_projection(trigrams(self.token_embedder(tokens), segments))
        positions = self.position_embedder(position_ids(*tokens.shape, batch.get("encoder_positions")))
        types = self.token_type_embedder(bert.token_types(batch, self.config.num_token_types))
        return {"encoder": self.embedding_norm(words + positions + types)}

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
        The captured `hidden` is the output of a layer, of size `embed_dim`.
        """
        stacks = {"encoder": (self.config.num_layers, self.encoder.capturable)}
        captures = capturing.parse(capture, stacks, edits)["encoder"]
        first_key, layers_key = split_key(dropout_key, 2)
        x = Dropout(self.config.dropout_rate)(embedded["encoder"], first_key)
        inputs = {"attention": {"mask": self._mask(batch)}}
        hidden, captured = self.encoder(x, inputs, dropout_key=layers_key, captures=captures)
        hidden, output = captures.state(capturing.OUTPUT, hidden)
        return Outputs(hidden=hidden, captured=captured | output)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32: the products of the first `embedding_dim` features and the token embeddings.

        The masked-LM head adds the products of the other features.
        """
        return self.token_embedder.attend(hidden[..., : self.config.embedding_dim])

    def _is_text(self, batch: Batch) -> Bool[Array, "batch length"]:
        return batch["encoder_input_tokens"] != self.config.padding_id

    def _mask(self, batch: Batch) -> Mask:
        segments = batch.get("encoder_segment_ids")
        if segments is None:
            return Mask(key_valid=self._is_text(batch))
        return Mask(query_segments=segments, key_segments=segments)
