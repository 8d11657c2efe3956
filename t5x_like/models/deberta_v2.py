"""DeBERTa v2 (arXiv:2006.03654, section 5.1.4) and v3 (He et al. 2023, arXiv:2111.09543).

Differences from DeBERTa v1: the relative positions are in logarithmic buckets, their table is normalized, and the
kernels of queries and keys project it. In the larger models of v2, a convolution of the embeddings is added to the
output of the first layer. v3 is v2 without the convolution, with another pretraining:
`objectives.decoupled_replaced_tokens`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.contraction import contract
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.layers import initializers
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.captures import Captures, Edit, LayerEdits
from t5x_like.layers.mlp import ACTIVATIONS
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.projections import Projection, shard_residual
from t5x_like.models import bert, checks
from t5x_like.models.base import Batch
from t5x_like.models.deberta import Deberta, DebertaConfig, DisentangledAttention, RelativePositions


@dataclasses.dataclass(frozen=True)
class DebertaV2Config(DebertaConfig):
    """Sizes and hyperparameters of DeBERTa v2 and v3; the defaults are those of DeBERTa v3 base."""

    # Rows of the token embedding table.
    vocab_size: int = 128100
    # Number of vectors of relative positions per side, an even number. Half of them stand for one distance each.
    position_buckets: int = 256
    # Distance from which all positions on a side share a vector; larger than position_buckets / 2 + 1.
    max_distance: int = 512
    # Number of tokens that the convolution of the embeddings reads, an odd number; 0: there is no convolution.
    conv_size: int = 0
    # Activation of the convolution.
    conv_activation: str = "gelu_exact"

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "position_buckets")
        checks.non_negative_integers(self, "conv_size")
        if self.position_buckets % 2 or self.position_buckets // 2 >= self.max_distance - 1:
            raise UserError(
                f"{type(self).__name__}.position_buckets={self.position_buckets}: not supported with "
                f"max_distance={self.max_distance}. Give an even number, half of which is less than max_distance - 1."
            )
        if self.conv_size and self.conv_size % 2 == 0:
            raise UserError(
                f"{type(self).__name__}.conv_size={self.conv_size} is even. Give an odd number; 0 is no convolution."
            )
        if self.conv_activation not in ACTIVATIONS:
            raise UserError(
                f"{type(self).__name__}.conv_activation={self.conv_activation!r} is unknown. Give one of "
                f"{', '.join(ACTIVATIONS)}."
            )

    @property
    def relative_positions(self) -> RelativePositions:
        """The rows of the table by distance."""
        return RelativePositions(self.max_distance, self.position_buckets)

    def make(self, key: jax.Array) -> "DebertaV2":
        """Returns a model with newly initialized parameters; see `ModelConfig.make`."""
        return DebertaV2(self, key=key)

    def keep_layers(self, indices: Sequence[int]) -> dict[str, Any]:
        """Returns no fields; see `pruning.structures.LayerIndexed`.

        Raises:
          UserError: The convolution joins the first layer, which is not kept.
        """
        if self.conv_size and indices[0] != 0:
            raise UserError(
                f"LAYERS={list(indices)}: the convolution (conv_size={self.conv_size}) is added to the output of layer "
                "0. Keep layer 0."
            )
        return {}

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step: of DeBERTa and of the convolution."""
        batch, length = shapes["encoder_input_tokens"]
        return super().train_flops(shapes) + 6.0 * batch * length * self.conv_size * self.embed_dim**2


class SharedDisentangledAttention(DisentangledAttention):
    """Attention that projects the table of relative positions with the projections of queries and keys.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.
    """

    def add_projections(self, config: DebertaConfig, *keys: jax.Array) -> None:
        """Makes no further projections."""

    @property
    def table_projections(self) -> tuple[Projection, Projection]:
        """The projections of the table to queries and to keys."""
        return self.query, self.key


class EmbeddingConvolution(nnx.Module):
    """A convolution of the embeddings, which is added to the output of the first layer and normalized with it.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      kernel: float32 `[conv_size, embed, embed]`, for the inputs from the first token to the last one of a window.
      bias: float32 `[embed]`.
      norm: Norm of the sum.
    """

    def __init__(self, config: DebertaV2Config, *, key: jax.Array):
        kernel_key, bias_key = jax.random.split(key)
        size, embed = config.conv_size, config.embed_dim
        # The released code leaves both to torch's Conv1d, whose bound is 1 / √(number of inputs).
        init = initializers.uniform((size * embed) ** -0.5)
        self.kernel = nnx.Param(init(kernel_key, (size, embed, embed), 2), axes=(None, "embed", "mlp"))
        self.bias = nnx.Param(init(bias_key, (embed,), 0), axes=("mlp",))
        self.norm = bert.make_norm(config)
        self.dropout, self.activation = Dropout(config.dropout_rate), config.conv_activation

    def __call__(self, x: Hidden, segments: Int[Array, "batch length"], dropout_key: jax.Array | None = None) -> Hidden:
        """Returns what is added: a token reads the neighbors of its own segment alone, others count as 0.

        Args:
          x: Input of the first layer.
          segments: Segment of each token; 0 is padding.
          dropout_key: Random key; None disables dropout.
        """
        size, length = len(self.kernel[...]), x.shape[1]
        margin = size // 2
        padded = jnp.pad(x, ((0, 0), (margin, margin), (0, 0)))
        ids = jnp.pad(segments, ((0, 0), (margin, margin)))
        neighbors = [
            jnp.where((ids[:, start : start + length] == segments)[..., None], padded[:, start : start + length], 0)
            for start in range(size)
        ]
        kernel = self.kernel[...].astype(x.dtype).reshape(-1, x.shape[-1])
        y = contract(jnp.concatenate(neighbors, axis=-1), kernel, 1) + self.bias[...].astype(x.dtype)
        return shard_residual(ACTIVATIONS[self.activation](self.dropout(y, dropout_key)))


class DebertaV2(Deberta):
    """DeBERTa v2 or v3. Implements `Model` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      relative_norm: Norm of the table of relative positions.
      convolution: Convolution of the embeddings; only if `conv_size` is positive.
    """

    make_attention = staticmethod(SharedDisentangledAttention)

    def __init__(self, config: DebertaV2Config, *, key: jax.Array):
        model_key, convolution_key = jax.random.split(key)
        super().__init__(config, key=model_key)
        self.relative_norm = LayerNorm(config.embed_dim, epsilon=config.norm_epsilon)
        if config.conv_size:
            self.convolution = EmbeddingConvolution(config, key=convolution_key)

    def relative_table(self) -> Float[Array, "relative embed"]:
        """Returns the normalized table of relative positions."""
        return self.relative_norm(super().relative_table())

    def apply_first(
        self, x: Hidden, batch: Batch, num_layers: int, dropout_key: jax.Array | None, captures: Captures
    ) -> tuple[Hidden, dict[str, Array]]:
        """Applies the first layers, and the convolution after the first one; see `Deberta.run_layers`."""
        if not self.config.conv_size:
            return super().apply_first(x, batch, num_layers, dropout_key, captures)
        convolution_key, first_key, others_key = split_key(dropout_key, 3)
        segments = batch.get("encoder_segment_ids")
        if segments is None:
            segments = (batch["encoder_input_tokens"] != self.config.padding_id).astype(jnp.int32)
        x, captured = captures.state("embedding", x)
        added = self.convolution(x, segments, convolution_key)
        join = Edit("encoder/layers/0/hidden", lambda hidden: self.convolution.norm(hidden + added))
        first = captures.part(0, 1)
        edits = dict(first.edits.edits)
        edits["hidden"] = [(None, join), *edits.get("hidden", ())]
        first = Captures(first.stack, 1, first.requests, edits=LayerEdits(edits))
        inputs = {"attention": self.attention_inputs(batch)}
        x, in_layers = self.encoder.run(x, inputs, order=[0], dropout_key=first_key, captures=first)
        if num_layers > 1:
            options = {"dropout_key": others_key, "captures": captures.part(1, num_layers)}
            x, found = self.encoder.run(x, inputs, order=range(1, num_layers), **options)
            in_layers |= found
        return x, captured | captures.join(in_layers)
