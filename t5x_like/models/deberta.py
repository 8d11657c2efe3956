"""DeBERTa (He et al. 2021, arXiv:2006.03654): an encoder whose attention disentangles content and position.

Positions are not embedded with the tokens. Each layer adds two scores to queries times keys: a query against the
relative position of the key, and a key against the relative position of the query. Both read one table of relative
positions, which the layers share and project with kernels of their own. Apart from this, layers equal BERT's.
`objectives.enhanced_masked_lm` has the enhanced mask decoder, which reads absolute positions.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from t5x_like.kernels.contraction import einsum_in_float32
from t5x_like.kernels.dropout import NO_DROPOUT, Dropout, split_key
from t5x_like.kernels.score_bias import ScoreTerms
from t5x_like.layers import captures as capturing
from t5x_like.layers import initializers
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.captures import Captures
from t5x_like.layers.embeddings import Embedder
from t5x_like.layers.projections import Projection
from t5x_like.layers.stacks import NO_CAPTURES
from t5x_like.models import bert, checks
from t5x_like.models.base import Batch
from t5x_like.models.bert import Bert, BertConfig
from t5x_like.models.outputs import Outputs

# Content to content, content to position, position to content.
NUM_SCORES = 3


@dataclasses.dataclass(frozen=True)
class DebertaConfig(BertConfig):
    """Sizes and hyperparameters of DeBERTa; the defaults are those of DeBERTa base."""

    # Rows of the token embedding table.
    vocab_size: int = 50265
    # Number of token types; 0: they are not embedded.
    num_token_types: int = 0
    # Distance from which all positions on a side share a vector. The table has 2 * max_distance vectors.
    max_distance: int = 512
    # Activations of the feed-forward blocks and of the masked-LM head.
    activations: tuple[str, ...] = ("gelu_exact",)
    # Dropout rate of the embeddings, of the relative positions and of the output of each block.
    dropout_rate: float = 0.1
    # Epsilon of the norms.
    norm_epsilon: float = 1e-7
    # Standard deviation of new kernels and tables, which are not truncated.
    initializer_range: float = 0.02

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "max_distance")
        checks.no_position_offset(self)

    @property
    def embeds_positions(self) -> bool:
        """False: positions are relative; see `BertConfig.embeds_positions`."""
        return False

    @property
    def initializer(self) -> initializers.Initializer:
        """Initializer of kernels and tables; see `BertConfig.initializer`."""
        return initializers.normal(self.initializer_range)

    @property
    def relative_positions(self) -> "RelativePositions":
        """The rows of the table by distance."""
        return RelativePositions(self.max_distance)

    def make(self, key: jax.Array) -> "Deberta":
        """Returns a model with newly initialized parameters; see `ModelConfig.make`."""
        return Deberta(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step: of BERT and of the two added scores.

        With a = num_heads · head_dim, L = length and R rows of the table of relative positions that occur, a layer adds
        2R · embed_dim · a multiply-adds per batch, for the projected table, and 2LRa per row.
        """
        batch, length = shapes["encoder_input_tokens"]
        first, last = self.relative_positions.limits(length)
        relative, a = last + 1 - first, self.num_heads * self.head_dim
        added = 2.0 * self.num_layers * 2 * relative * a * (self.embed_dim + batch * length)
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return super().train_flops(shapes) + 3.0 * added


@dataclasses.dataclass(frozen=True)
class RelativePositions:
    """The row of a table of relative positions for each distance.

    Attributes:
      max_distance: Distance from which all positions on a side share a row.
      buckets: Number of rows per side, the closer half of which stand for one distance each, and the others for
        distances that grow as a logarithm; None for `max_distance` rows, one for each distance.
    """

    max_distance: int
    buckets: int | None = None

    @property
    def span(self) -> int:
        """Number of rows per side."""
        return self.buckets or self.max_distance

    @property
    def num_rows(self) -> int:
        """Number of rows of the table."""
        return 2 * self.span

    def rows(self, distance: Int[Array, "*shape"]) -> Int[Array, "*shape"]:
        """Returns the row of each distance, the position of a query minus the position of a key, in traced code."""
        table = jnp.asarray(self.table_rows(np.arange(-self.max_distance, self.max_distance + 1)))
        return table[jnp.clip(distance, -self.max_distance, self.max_distance) + self.max_distance]

    def limits(self, length: int) -> tuple[int, int]:
        """Returns the first and the last row that a text of this length reads."""
        first, last = self.table_rows(np.array([1 - length, length - 1]))
        return int(first), int(last)

    def table_rows(self, distance: Int[np.ndarray, " distances"]) -> Int[np.ndarray, " distances"]:
        """Returns the row of each distance, in NumPy; with buckets, as `make_log_bucket_position` of the released code.

        With m = buckets / 2, distances up to m have a row each. A larger one has the row
        m + ⌈(m - 1) · ln(distance / m) / ln((max_distance - 1) / m)⌉ of its side.
        """
        if self.buckets is None:
            return np.clip(distance + self.span, 0, 2 * self.span - 1).astype(np.int32)
        middle, size = self.buckets // 2, np.abs(distance)
        growth = np.log(np.maximum(size, middle) / middle) / np.log((self.max_distance - 1) / middle)
        far = np.sign(distance) * (np.ceil(growth * (middle - 1)) + middle)
        return np.clip(np.where(size <= middle, distance, far) + self.span, 0, 2 * self.span - 1).astype(np.int32)


@struct.dataclass
class DisentangledBias:
    """The scores of contents against relative positions (He et al., section 3.1). Implements `ScoreBias`.

    The score of query i and key j has q_i · W_k r + k_j · W_q r with the same row r of the table, which `positions` has
    for i - j. Equation 4 has the row for j - i in the second product; the released code has the row for i - j.

    Attributes:
      relative: Table of relative positions, which all layers share.
      query: Projects the table to the queries that keys are multiplied with.
      key: Projects the table to the keys that queries are multiplied with.
      positions: The rows of the table.
      length: Number of positions if they are 0, 1, 2 … in each row; None if positions are arbitrary.
      dropout: Dropout of the table.
    """

    relative: Float[Array, "relative embed"]
    query: Projection
    key: Projection
    positions: RelativePositions = struct.field(pytree_node=False)
    length: int | None = struct.field(pytree_node=False, default=None)
    dropout: Dropout = struct.field(pytree_node=False, default=NO_DROPOUT)

    def terms(
        self,
        q: Float[Array, "batch q_len heads kv"],
        k: Float[Array, "batch kv_len heads kv"],
        *,
        scale: float = 1.0,
        dropout_key: jax.Array | None = None,
    ) -> ScoreTerms | None:
        """Returns both products with the vectors of all distances, or None for arbitrary positions."""
        if self.length is None:
            return None
        first, queries, keys = self._projected(k.shape[1], dropout_key)
        rows = self.positions.table_rows(np.arange(q.shape[1] - 1, -k.shape[1], -1)) - first
        # In float32, so that the gradients of distances that share a row are summed in float32.
        keys, queries = (vectors.astype(jnp.float32)[rows][None] for vectors in (keys, queries))
        return ScoreTerms(query_table=keys, key_table=queries)

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
        first, queries, keys = self._projected(k.shape[1], dropout_key)
        rows = self.positions.rows(query_positions[:, :, None] - key_positions[:, None, :])[:, None] - first
        to_position = einsum_in_float32("bqhd,rhd->bhqr", q, keys)
        to_content = einsum_in_float32("bkhd,rhd->bhkr", k, queries)
        to_content = jnp.take_along_axis(to_content, jnp.swapaxes(rows, 2, 3), axis=-1)
        return scale * (jnp.take_along_axis(to_position, rows, axis=-1) + jnp.swapaxes(to_content, 2, 3))

    def _projected(self, kv_len: int, dropout_key: jax.Array | None) -> tuple[int, Array, Array]:
        """Returns the first row of the table that occurs, and the queries and keys `[rows, heads, kv]` from it on."""
        first, last = 0, len(self.relative) - 1
        if self.length is not None:
            first, last = self.positions.limits(max(self.length, kv_len))  # the keys may begin with a prefix
        relative = self.dropout(self.relative[first : last + 1], dropout_key)
        queries, keys = (each(relative, dropout_key=dropout_key) for each in (self.query, self.key))
        return first, queries, keys


class DisentangledAttention(MultiHeadAttention):
    """Multi-head attention with scores of relative positions. Its keys have no bias.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      position_query: Projection of the table, with bias.
      position_key: Projection of the table, without bias.
    """

    def __init__(self, config: DebertaConfig, *, key: jax.Array):
        content_key, key_key, position_query_key, position_key_key = jax.random.split(key, 4)
        options = bert.attention_options(config)
        super().__init__(key=content_key, scale=(NUM_SCORES * config.head_dim) ** -0.5, **options)
        self.positions, self.position_dropout = config.relative_positions, Dropout(config.dropout_rate)
        self.add_projections(config, key_key, position_query_key, position_key_key)

    def add_projections(self, config: DebertaConfig, *keys: jax.Array) -> None:
        """Makes the projection of the keys, and those of the table."""
        sizes = (config.embed_dim,), (config.num_heads, config.head_dim)
        options = {"init": config.initializer, "dtype": config.compute_dtype}
        self.key = Projection(*sizes, axes=("embed", "kv_heads", "kv"), key=keys[0], **options)
        of_table = {"axes": ("embed", "heads", "kv"), **options}
        self.position_query = Projection(*sizes, key=keys[1], bias=True, **of_table)
        self.position_key = Projection(*sizes, key=keys[2], **of_table)

    @property
    def table_projections(self) -> tuple[Projection, Projection]:
        """The projections of the table to queries and to keys."""
        return self.position_query, self.position_key

    def __call__(
        self, x: Hidden, *, relative: Float[Array, "relative embed"], **options
    ) -> tuple[Hidden, dict[str, Array]]:
        """Computes attention.

        Args:
          x: Activations.
          relative: Table of relative positions.
          **options: See `MultiHeadAttention.__call__`.

        Returns:
          The output, and the captured arrays by name.
        """
        length = x.shape[1] if options.get("positions") is None and options.get("key_positions") is None else None
        bias = DisentangledBias(relative, *self.table_projections, self.positions, length, self.position_dropout)
        return super().__call__(x, bias=bias, **options)


class Deberta(Bert):
    """DeBERTa. Implements `Model` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      relative_embedder: Table of relative positions; see `RelativePositions`.
    """

    make_attention = staticmethod(DisentangledAttention)

    def __init__(self, config: DebertaConfig, *, key: jax.Array):
        model_key, relative_key = jax.random.split(key)
        super().__init__(config, key=model_key)
        self.relative_embedder = Embedder(
            config.relative_positions.num_rows,
            config.embed_dim,
            axis="positions",
            key=relative_key,
            init=config.initializer,
            dtype=config.compute_dtype,
        )

    def attention_inputs(self, batch: Batch) -> dict[str, Any]:
        """Returns the inputs of the attention that all layers share: the mask and the table of relative positions."""
        return {**super().attention_inputs(batch), "relative": self.relative_table()}

    def relative_table(self) -> Float[Array, "relative embed"]:
        """Returns the table of relative positions that the layers read."""
        return self.relative_embedder.table.astype(self.config.compute_dtype)

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
        config = self.config
        stacks = {"encoder": (config.num_layers, self.encoder.capturable)}
        captures = capturing.parse(capture, stacks, edits)["encoder"]
        hidden, captured = self.run_layers(
            embedded, batch, config.num_layers, dropout_key=dropout_key, captures=captures
        )
        hidden, output = captures.state(capturing.OUTPUT, self.encoder.apply_norm(hidden))
        return Outputs(hidden=hidden, captured=captured | output)

    def run_layers(
        self,
        embedded: Mapping[str, Hidden],
        batch: Batch,
        num_layers: int,
        *,
        dropout_key: jax.Array | None = None,
        captures: Captures = NO_CAPTURES,
    ) -> tuple[Hidden, dict[str, Array]]:
        """Applies the first layers.

        Args:
          embedded: Result of `embed`.
          batch: See `trunk`.
          num_layers: Number of layers to apply; 0 for none.
          dropout_key: Random key of dropout; None disables dropout.
          captures: What to capture and to edit in all layers of the model; `NO_CAPTURES` if only some are applied.

        Returns:
          The hidden states, and the captured arrays by name.
        """
        first_key, layers_key = split_key(dropout_key, 2)
        x = self.first_layer_input(embedded["encoder"], first_key)
        return (x, {}) if num_layers == 0 else self.apply_first(x, batch, num_layers, layers_key, captures)

    def apply_first(
        self, x: Hidden, batch: Batch, num_layers: int, dropout_key: jax.Array | None, captures: Captures
    ) -> tuple[Hidden, dict[str, Array]]:
        """Applies the first layers to their input; see `run_layers`."""
        inputs = {"attention": self.attention_inputs(batch)}
        return self.encoder.run(x, inputs, order=range(num_layers), dropout_key=dropout_key, captures=captures)

    def decode_masked(
        self, queries: Hidden, source: Hidden, batch: Batch, *, dropout_key: jax.Array | None = None
    ) -> Hidden:
        """Applies the last layer twice, as the enhanced mask decoder (He et al., section 3.2, and the released code).

        Args:
          queries: What queries and residual sums are computed from in the first application.
          source: The input of the last layer, which keys and values are computed from in both applications.
          batch: See `trunk`.
          dropout_key: Random key of dropout; None disables dropout.
        """
        inputs = {"attention": {**self.attention_inputs(batch), "source": source}}
        last = self.config.num_layers - 1
        hidden, _ = self.encoder.run(queries, inputs, order=[last, last], dropout_key=dropout_key)
        return self.encoder.apply_norm(hidden)
