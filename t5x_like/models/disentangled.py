"""An encoder whose attention disentangles content and position (He et al. 2021, arXiv:2006.03654, section 3.1).

Positions are not embedded with the tokens. Each layer adds two scores to queries times keys: a query against the
relative position of the key, and a key against the relative position of the query. Both read one table of relative
positions, which the layers share and project with kernels of their own. Apart from this, layers equal BERT's.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from t5x_like.kernels.dropout import NO_DROPOUT, Dropout, split_key
from t5x_like.kernels.masks import Mask
from t5x_like.layers import captures as capturing
from t5x_like.layers import initializers
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.embeddings import Embedder
from t5x_like.layers.mlp import MLP
from t5x_like.layers.projections import Projection
from t5x_like.layers.stacks import Stack
from t5x_like.models import bert, checks
from t5x_like.models.base import BaseConfig, BaseModel, Batch, StackInfo
from t5x_like.models.outputs import Outputs

# Content to content, content to position, position to content.
NUM_SCORES = 3


@dataclasses.dataclass(frozen=True)
class DisentangledConfig(BaseConfig):
    """Sizes and hyperparameters of an encoder with disentangled attention; by default a small model."""

    # Rows of the token embedding table.
    vocab_size: int = 30522
    # Size of a hidden state.
    embed_dim: int = 128
    # Size within a feed-forward block.
    mlp_dim: int = 512
    # Number of attention heads.
    num_heads: int = 2
    # Size of the queries, keys and values of a head.
    head_dim: int = 64
    # Number of layers.
    num_layers: int = 2
    # Longest row, in tokens.
    max_length: int = 512
    # Distance from which all positions on a side share a vector of the table, which has twice as many.
    max_distance: int = 128
    # Id of the padding token, which is masked in batches without segment ids.
    padding_id: int = 0
    # Activations of the feed-forward blocks and of the masked-LM head.
    activations: tuple[str, ...] = ("gelu_exact",)
    # Dropout rate of the embeddings, of the relative positions and of the output of each block.
    dropout_rate: float = 0.1
    # Dropout rate of the attention weights.
    attention_dropout_rate: float = 0.1
    # Epsilon of the norms.
    norm_epsilon: float = 1e-7
    # Standard deviation of new kernels and tables, truncated at twice its value.
    initializer_range: float = 0.02

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "embed_dim", "mlp_dim", "num_heads", "head_dim", "num_layers")
        checks.positive_integers(self, "max_length", "max_distance")
        checks.rates(self, "dropout_rate", "attention_dropout_rate")
        checks.positive(self, "norm_epsilon", "initializer_range")
        checks.activations(self)
        checks.non_negative_integers(self, "padding_id")

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack; see `ModelConfig.stacks`."""
        return {"encoder": self.stack(self.num_layers)}

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads: positions are relative; see `ModelConfig.reads`."""
        return tuple(name for name in super().reads if not name.endswith("_positions"))

    def make(self, key: jax.Array) -> "Disentangled":
        """Returns a model with newly initialized parameters; see `ModelConfig.make`."""
        return Disentangled(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step: of BERT and of the two added scores.

        With a = num_heads · head_dim, L = length and R = 2 · max_distance, a layer adds 2R · embed_dim · a
        multiply-adds per batch, for the projected table, and 2LRa per row.
        """
        batch, length = shapes["encoder_input_tokens"]
        _, predictions = shapes.get("masked_positions", (batch, 0))
        relative, a = 2 * self.max_distance, self.num_heads * self.head_dim
        added = 2.0 * self.num_layers * 2 * relative * a * (self.embed_dim + batch * length)
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return 3.0 * (bert.forward_flops(self, batch, length, predictions) + added)


@struct.dataclass
class DisentangledBias:
    """The scores of contents against relative positions (He et al., equation 4). Implements `ScoreBias`.

    Attributes:
      relative: table of relative positions, which all layers share.
      query: projects the table to the queries that keys are multiplied with.
      key: projects the table to the keys that queries are multiplied with.
      dropout: dropout of the table.
    """

    relative: Float[Array, "relative embed"]
    query: Projection
    key: Projection
    dropout: Dropout = struct.field(pytree_node=False, default=NO_DROPOUT)

    @property
    def diagonals(self) -> None:
        """None: the scores depend on the contents; see `ScoreBias.diagonals`."""
        return None

    def materialize(
        self,
        q: Float[Array, "batch q_len heads kv"],
        k: Float[Array, "batch kv_len heads kv"],
        *,
        query_positions: Int[Array, "rows q_len"],
        key_positions: Int[Array, "rows kv_len"],
        scale: float = 1.0,
        dropout_key: jax.Array | None = None,
    ) -> Float[Array, "batch heads q_len kv_len"]:
        """Returns the scores of all pairs of queries and keys; see `ScoreBias.materialize`."""
        relative = self.dropout(self.relative, dropout_key)
        keys, queries = self.key(relative), self.query(relative)
        distance = query_positions[:, :, None] - key_positions[:, None, :]
        to_position = jnp.einsum("bqhd,rhd->bhqr", q, keys, preferred_element_type=jnp.float32)
        to_content = jnp.einsum("bkhd,rhd->bhkr", k, queries, preferred_element_type=jnp.float32)
        to_position = self._select(to_position, distance)
        to_content = self._select(to_content, -jnp.swapaxes(distance, 1, 2))
        return scale * (to_position + jnp.swapaxes(to_content, 2, 3))

    def _select(self, scores, distance):
        """Returns the scores `[batch, heads, i, relative]` at the distances `[rows, i, j]`."""
        size = len(self.relative)
        index = jnp.clip(distance + size // 2, 0, size - 1)[:, None]
        return jnp.take_along_axis(scores, index, axis=-1)


class DisentangledAttention(MultiHeadAttention):
    """Multi-head attention with scores of relative positions.

    Args:
      config: configuration of the model.
      key: random key of the initialization.

    Attributes:
      position_query: projection of the table, without bias.
      position_key: projection of the table, without bias.
    """

    def __init__(self, config: DisentangledConfig, *, key: jax.Array):
        content_key, query_key, key_key = jax.random.split(key, 3)
        init, dtype = initializers.truncated_normal(config.initializer_range), config.compute_dtype
        super().__init__(
            config.embed_dim,
            heads=config.num_heads,
            head_dim=config.head_dim,
            init=init,
            bias=True,
            scale=(NUM_SCORES * config.head_dim) ** -0.5,
            dropout=Dropout(config.attention_dropout_rate),
            dtype=dtype,
            key=content_key,
        )
        sizes = (config.embed_dim,), (config.num_heads, config.head_dim)
        options = {"axes": ("embed", "heads", "kv"), "init": init, "dtype": dtype}
        self.position_query = Projection(*sizes, key=query_key, **options)
        self.position_key = Projection(*sizes, key=key_key, **options)
        self.position_dropout = Dropout(config.dropout_rate)

    def __call__(
        self, x: Hidden, *, relative: Float[Array, "relative embed"], **options
    ) -> tuple[Hidden, dict[str, Array]]:
        """Computes self-attention.

        Args:
          x: activations.
          relative: table of relative positions.
          **options: see `MultiHeadAttention.__call__`.

        Returns:
          The output, and the captured arrays by name.
        """
        bias = DisentangledBias(relative, self.position_query, self.position_key, self.position_dropout)
        return super().__call__(x, bias=bias, **options)


def make_layer(config: DisentangledConfig, key: jax.Array) -> TransformerLayer:
    """Makes a post-norm layer of disentangled attention and a feed-forward block."""
    attention_key, mlp_key = jax.random.split(key)
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
        {"attention": DisentangledAttention(config, key=attention_key), "mlp": mlp},
        functools.partial(bert.make_norm, config),
        norm_position="post",
        dropout=Dropout(config.dropout_rate),
    )


class Disentangled(BaseModel):
    """An encoder with disentangled attention. Implements `Model` of `models/base.py`.

    Args:
      config: configuration of the model.
      key: random key of the initialization.

    Attributes:
      token_embedder: table of the tokens and of the logits.
      embedding_norm: norm of the embedded tokens.
      relative_embedder: table of relative positions; entry `query - key + max_distance`.
      encoder: layers of the encoder.
    """

    def __init__(self, config: DisentangledConfig, *, key: jax.Array):
        token_key, relative_key, encoder_key = jax.random.split(key, 3)
        self.config = config
        options = {
            "init": initializers.truncated_normal(config.initializer_range),
            "dtype": config.compute_dtype,
        }
        self.token_embedder = Embedder(config.vocab_size, config.embed_dim, key=token_key, **options)
        self.relative_embedder = Embedder(
            2 * config.max_distance, config.embed_dim, axis="positions", key=relative_key, **options
        )
        self.embedding_norm = bert.make_norm(config)
        self.encoder = Stack(
            functools.partial(make_layer, config),
            config.num_layers,
            key=encoder_key,
            scan=bool(config.scan_layers),
            remat=config.remat,
        )

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Embeds tokens.

        Args:
          batch: `encoder_input_tokens`.

        Returns:
          The normalized embeddings as `encoder`.

        Raises:
          UserError: rows are longer than `max_length`.
        """
        tokens = batch["encoder_input_tokens"]
        checks.row_length(self.config, tokens.shape[1])
        return {"encoder": self.embedding_norm(self.token_embedder(tokens))}

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
        stacks = {"encoder": (self.config.num_layers, self.encoder.capturable)}
        captures = capturing.parse(capture, stacks, edits)["encoder"]
        first_key, layers_key = split_key(dropout_key, 2)
        x = Dropout(self.config.dropout_rate)(embedded["encoder"], first_key)
        relative = self.relative_embedder.embedding[...].astype(self.config.compute_dtype)
        inputs = {"attention": {"mask": self._mask(batch), "relative": relative}}
        hidden, captured = self.encoder(x, inputs, dropout_key=layers_key, captures=captures)
        hidden, output = captures.state(capturing.OUTPUT, hidden)
        return Outputs(hidden=hidden, captured=captured | output)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32, with the token embeddings as their kernel."""
        return self.token_embedder.attend(hidden)

    def _mask(self, batch: Batch) -> Mask:
        segments = batch.get("encoder_segment_ids")
        if segments is None:
            return Mask(key_valid=batch["encoder_input_tokens"] != self.config.padding_id)
        return Mask(query_segments=segments, key_segments=segments)
