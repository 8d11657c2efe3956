"""An encoder whose attention disentangles content and position (He et al. 2021, arXiv:2006.03654, section 3.1).

Positions are not embedded with the tokens. Each layer adds two scores to queries times keys: a query against the
relative position of the key, and a key against the relative position of the query. Both read one table of relative
positions, which the layers share and project with kernels of their own. Apart from this, layers equal BERT's.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import NO_DROPOUT, Dropout
from t5x_like.layers import initializers
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.embeddings import Embedder
from t5x_like.layers.projections import Projection
from t5x_like.models import bert, checks
from t5x_like.models.base import Batch
from t5x_like.models.bert import Bert, BertConfig

# Content to content, content to position, position to content.
NUM_SCORES = 3


@dataclasses.dataclass(frozen=True)
class DisentangledConfig(BertConfig):
    """Sizes and hyperparameters of an encoder with disentangled attention; by default a small model."""

    # Size of a hidden state.
    embed_dim: int = 128
    # Size within a feed-forward block.
    mlp_dim: int = 512
    # Number of attention heads.
    num_heads: int = 2
    # Number of layers.
    num_layers: int = 2
    # Number of token types; 0: they are not embedded.
    num_token_types: int = 0
    # Distance from which all positions on a side share a vector of the table, which has twice as many.
    max_distance: int = 128
    # Activations of the feed-forward blocks and of the masked-LM head.
    activations: tuple[str, ...] = ("gelu_exact",)
    # Dropout rate of the embeddings, of the relative positions and of the output of each block.
    dropout_rate: float = 0.1
    # Epsilon of the norms.
    norm_epsilon: float = 1e-7

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "max_distance")
        if self.position_offset:
            raise UserError(
                f"position_offset={self.position_offset}: not supported by DisentangledConfig, whose positions are "
                "relative. Omit it."
            )

    @property
    def embeds_positions(self) -> bool:
        """False: positions are relative; see `BertConfig.embeds_positions`."""
        return False

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
        relative, a = 2 * self.max_distance, self.num_heads * self.head_dim
        added = 2.0 * self.num_layers * 2 * relative * a * (self.embed_dim + batch * length)
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return super().train_flops(shapes) + 3.0 * added


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
        keys, queries = (each(relative, dropout_key=dropout_key) for each in (self.key, self.query))
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
        options = bert.attention_options(config)
        super().__init__(key=content_key, scale=(NUM_SCORES * config.head_dim) ** -0.5, **options)
        sizes = (config.embed_dim,), (config.num_heads, config.head_dim)
        of_table = {"axes": ("embed", "heads", "kv"), "init": options["init"], "dtype": options["dtype"]}
        self.position_query = Projection(*sizes, key=query_key, **of_table)
        self.position_key = Projection(*sizes, key=key_key, **of_table)
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


class Disentangled(Bert):
    """An encoder with disentangled attention. Implements `Model` of `models/base.py`.

    Args:
      config: configuration of the model.
      key: random key of the initialization.

    Attributes:
      relative_embedder: table of relative positions; entry `query - key + max_distance`.
    """

    make_attention = staticmethod(DisentangledAttention)

    def __init__(self, config: DisentangledConfig, *, key: jax.Array):
        model_key, relative_key = jax.random.split(key)
        super().__init__(config, key=model_key)
        self.relative_embedder = Embedder(
            2 * config.max_distance,
            config.embed_dim,
            axis="positions",
            key=relative_key,
            init=initializers.truncated_normal(config.initializer_range),
            dtype=config.compute_dtype,
        )

    def attention_inputs(self, batch: Batch) -> dict[str, Any]:
        """Returns the inputs of the attention that all layers share: the mask and the table of relative positions."""
        relative = self.relative_embedder.embedding[...].astype(self.config.compute_dtype)
        return {**super().attention_inputs(batch), "relative": relative}
