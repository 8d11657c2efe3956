"""BERT and RoBERTa (Devlin et al. 2019; Liu et al. 2019): an encoder with learnt positions and norms after the sums.

What makes it BERT: tokens, positions and token types are embedded, added and normalised; each layer is attention and a
GELU block with biases, with LayerNorm after each residual sum and none at the end. Logits are products with the token
embeddings; the transform and the bias of the masked-LM head, and the pooler, belong to their objectives. RoBERTa is the
same network with one token type, positions that start at 2, the exact GELU and a larger epsilon.
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

EMBEDDED = "encoder/embedded"


@dataclasses.dataclass(frozen=True)
class BertConfig(BaseConfig):
    """Sizes and hyperparameters; the defaults are those of BERT base, uncased, as it was trained."""

    # Rows of the token table.
    vocab_size: int = 30522
    # Size of a hidden state.
    embed_dim: int = 768
    # Size within a feed-forward block.
    mlp_dim: int = 3072
    num_heads: int = 12
    # Size of a head's queries, keys and values.
    head_dim: int = 64
    num_layers: int = 12
    # The longest row.
    max_length: int = 512
    # Where positions start in their table, which has max_length + position_offset rows. RoBERTa: 2.
    position_offset: int = 0
    # Kinds of segments within an example. RoBERTa: 1.
    num_token_types: int = 2
    # The token that is padding where a batch has no segment ids. RoBERTa: 1.
    padding_id: int = 0
    # Of the feed-forward blocks, and of the masked-LM head. BERT was trained with the tanh form of GELU, RoBERTa with
    # the exact one, ("gelu_exact",), which transformers runs both with.
    activations: tuple[str, ...] = ("gelu",)
    # Of embeddings and of what is added to the residual.
    dropout_rate: float = 0.1
    # Of the attention weights.
    attention_dropout_rate: float = 0.1
    # RoBERTa: 1e-5.
    norm_epsilon: float = 1e-12

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "embed_dim", "mlp_dim", "num_heads", "head_dim", "num_layers")
        checks.positive_integers(self, "max_length", "num_token_types")
        checks.rates(self, "dropout_rate", "attention_dropout_rate")
        checks.positive(self, "norm_epsilon")
        checks.activations(self)
        for name in ("position_offset", "padding_id"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise UserError(f"BertConfig.{name}={value!r} must be a whole number of at least 0")

    def make(self, key: jax.Array) -> "Bert":
        """A freshly initialised network."""
        return Bert(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Floating-point operations of one update, forward and backward; see `forward_flops`.

        Args:
          shapes: of the global batch's `encoder_input_tokens`, `(batch, length)`, and where logits are computed, of
            `masked_positions`.
        """
        batch, length = shapes["encoder_input_tokens"]
        _, predictions = shapes.get("masked_positions", (batch, 0))
        # The backward pass needs two products of the same size for each product of the forward pass.
        return 3.0 * forward_flops(self, batch, length, predictions)


def forward_flops(config: BertConfig, batch: int, length: int, predictions: int) -> float:
    """Floating-point operations of the matrix products in a forward pass, a multiply-add as two.

    With d = embed_dim, a = num_heads · head_dim, f = mlp_dim, m = number of products in a feed-forward block (2, or 3
    of a gated one), L the length, P the positions of a row that logits are computed for and V the vocabulary, a row
    costs two operations for each of

        num_layers · L · (4da + mdf + 2La) + P · dV

    Norms, softmax, biases and lookups do not count, nor does what an objective's heads do before the logits (of the
    masked-LM head P · d², a thousandth of the whole).

    Args:
      config: the network.
      batch: rows.
      length, predictions: L and P.
    """
    d, a, f = config.embed_dim, config.num_heads * config.head_dim, config.mlp_dim
    m = len(config.activations) + 1
    trunk = config.num_layers * length * (4 * d * a + m * d * f + 2 * length * a)
    return 2.0 * batch * (trunk + predictions * d * config.vocab_size)


def make_layer(config: BertConfig, key: jax.Array) -> TransformerLayer:
    """A layer: self-attention and a feed-forward block, the norm after each sum."""
    attention_key, mlp_key = jax.random.split(key)
    attention = MultiHeadAttention(
        config.embed_dim,
        heads=config.num_heads,
        head_dim=config.head_dim,
        init=initializers.BERT,
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
        init=initializers.BERT,
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
    """A norm of hidden states."""
    return LayerNorm(config.embed_dim, epsilon=config.norm_epsilon)


class Bert(nnx.Module):
    """The network; its interface is "The model seam" in docs/architecture.md.

    Attributes:
      token_embedder, position_embedder, token_type_embedder: tables, `[vocab_size, embed_dim]`,
        `[max_length + position_offset, embed_dim]` and `[num_token_types, embed_dim]`.
      embedding_norm: of their sum.
      encoder: the layers.
    """

    def __init__(self, config: BertConfig, *, key: jax.Array):
        token_key, position_key, token_type_key, encoder_key = jax.random.split(key, 4)
        self.config = config

        def embedder(number, axis, key):
            size, dtype = config.embed_dim, config.compute_dtype
            return Embedder(number, size, key=key, axis=axis, init=initializers.BERT, dtype=dtype)

        self.token_embedder = embedder(config.vocab_size, "vocab", token_key)
        self.position_embedder = embedder(config.max_length + config.position_offset, "positions", position_key)
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
        """The normalised sum of the embeddings of tokens, positions and token types, as `encoder`.

        Args:
          batch: `encoder_input_tokens`; where they are not 0, 1, 2 … along a row, `encoder_positions`; where they are
            not all 0, `token_types`.

        Raises:
          UserError: rows are longer than the table of positions.
        """
        tokens, token_types = batch["encoder_input_tokens"], batch.get("token_types")
        checks.row_length(self.config, tokens.shape[1])
        positions = position_ids(*tokens.shape, batch.get("encoder_positions")) + self.config.position_offset
        types = self.token_type_embedder(jnp.zeros_like(tokens) if token_types is None else token_types)
        return {"encoder": self.embedding_norm(self.token_embedder(tokens) + self.position_embedder(positions) + types)}

    def trunk(
        self,
        embedded: Mapping[str, Hidden],
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
    ) -> Outputs:
        """Everything between embeddings and logits.

        Args:
          embedded: as `embed` returns.
          batch: `encoder_segment_ids` where rows are packed; without them `encoder_input_tokens`, of which `padding_id`
            is padding.
          dropout_key: None for no dropout.
          capture: names of what to hand back beside the result: `encoder/embedded` (what goes into the first layer), or
            `encoder/layers/WHAT` with a leading dimension `layers`, or `encoder/layers/INDEX/WHAT`. WHAT is `hidden` (a
            layer's output) or `attention/query`, `/key`, `/value`, `/scores` (before the softmax, with the mask) or
            `/probabilities`. Layers of which scores or probabilities are captured use the reference attention.
        """
        captures = capturing.parse(
            capture, {"encoder": (self.config.num_layers, self.encoder.capturable)}, others=(EMBEDDED,)
        )
        first_key, layers_key = split_key(dropout_key, 2)
        x = Dropout(self.config.dropout_rate)(embedded["encoder"], first_key)
        inputs = {"attention": {"mask": self._mask(batch)}}
        hidden, captured = self.encoder(x, inputs, dropout_key=layers_key, captures=captures["encoder"])
        return Outputs(hidden=hidden, captured=({EMBEDDED: x} if EMBEDDED in capture else {}) | captured)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Products with the token embeddings, in float32."""
        return self.token_embedder.attend(hidden)

    def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None, capture: Sequence[str] = ()) -> Outputs:
        """`trunk(embed(batch), batch)`."""
        return self.trunk(self.embed(batch), batch, dropout_key=dropout_key, capture=capture)

    def _mask(self, batch: Batch) -> Mask:
        segments = batch.get("encoder_segment_ids")
        if segments is None:
            return Mask(key_valid=batch["encoder_input_tokens"] != self.config.padding_id)
        return Mask(query_segments=segments, key_segments=segments)
