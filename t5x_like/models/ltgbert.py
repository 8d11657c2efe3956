"""LTG-BERT (Samuel et al. 2023, arXiv:2303.09859): pre-norm layers with DeBERTa's attention and gated blocks.

Norms before a block, within feed-forward blocks, of the embeddings and before the masked-LM head have no parameters;
the norm of the output of the attention has. Relative positions are in logarithmic buckets, whose table has a norm and
is projected by the kernels of queries and keys, as in DeBERTa v2. The details are those of the code released for
BabyLM; that for the British National Corpus divides the projected table of positions among the heads in another way.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout
from t5x_like.layers import initializers, stacks
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import LayerNorm
from t5x_like.models import bert
from t5x_like.models.base import PredictionHead
from t5x_like.models.bert import BertEmbeddings
from t5x_like.models.deberta import DisentangledAttention, RelativePositions
from t5x_like.models.deberta_v2 import DebertaV2, DebertaV2Config, SharedDisentangledAttention


@dataclasses.dataclass(frozen=True)
class LtgBertConfig(DebertaV2Config):
    """Sizes and hyperparameters of LTG-BERT; by default LTG-BERT base."""

    # Rows of the token embedding table.
    vocab_size: int = 16384
    # Size within a feed-forward block.
    mlp_dim: int = 2048
    # Number of relative positions on each side, their center included, an even number. Half of them stand for one
    # distance each.
    position_buckets: int = 32
    # Activations of the feed-forward blocks.
    activations: tuple[str, ...] = ("gelu", "linear")
    # Standard deviation of new kernels and tables, truncated at twice its value. None: (0.4 / embed_dim)^1/2. The
    # kernels of the feed-forward block of layer i, from 0, have it divided by (2 + 2i)^1/2.
    initializer_range: float | None = None

    def __post_init__(self):
        if self.initializer_range is None:
            object.__setattr__(self, "initializer_range", (0.4 / self.embed_dim) ** 0.5)
        super().__post_init__()
        if self.conv_size:
            raise UserError(f"{type(self).__name__}.conv_size={self.conv_size}: not supported. Omit it.")

    @property
    def initializer(self) -> initializers.Initializer:
        """Initializer of kernels and tables; see `BertConfig.initializer`."""
        return initializers.truncated_normal(self.initializer_range)

    @property
    def relative_positions(self) -> "CenteredPositions":
        """The rows of the table by distance."""
        return CenteredPositions(self.max_distance, self.position_buckets)

    @property
    def prediction_head(self) -> PredictionHead:
        """Parts of the masked-LM head."""
        return PredictionHead(plain_norm=True, activation="gelu_exact", dropout=True, stddev=self.initializer_range)

    def make(self, key: jax.Array) -> "LtgBert":
        """Returns an LTG-BERT with newly initialized parameters; see `ModelConfig.make`."""
        return LtgBert(self, key=key)


class CenteredPositions(RelativePositions):
    """The rows of a table with as many buckets on both sides of distance 0: 2 * buckets - 1."""

    @property
    def num_rows(self) -> int:
        """Number of rows of the table."""
        return 2 * self.span - 1

    def table_rows(self, distance: Int[np.ndarray, " distances"]) -> Int[np.ndarray, " distances"]:
        """Returns the row of each distance: the bucket of DeBERTa v2, within `buckets - 1` on each side."""
        return np.maximum(super().table_rows(distance), 1) - 1


def make_plain_norm(config: LtgBertConfig, size: int | None = None) -> LayerNorm:
    """Makes a norm without parameters."""
    return LayerNorm(size or config.embed_dim, epsilon=config.norm_epsilon, scale=False, bias=False)


class LtgBertAttention(SharedDisentangledAttention):
    """Attention with scores of relative positions, whose output is normalized.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      out_norm: Norm of the output.
    """

    def __init__(self, config: LtgBertConfig, *, key: jax.Array):
        super().__init__(config, key=key)
        self.out_norm = bert.make_norm(config)

    def __call__(self, x: Hidden, **options) -> tuple[Hidden, dict[str, Array]]:
        """Computes attention; see `DisentangledAttention.__call__`."""
        output, captured = super().__call__(x, **options)
        return self.out_norm(output), captured


class LtgBertEmbeddings(BertEmbeddings):
    """The normalized token embeddings. The norm has no parameters."""

    def __init__(self, config: LtgBertConfig, *, keys: Sequence[jax.Array]):
        super().__init__(config, keys=keys)
        self.norm = make_plain_norm(config, config.unembed_dim)


def make_layer(
    config: LtgBertConfig, key: jax.Array, attention: Callable[..., DisentangledAttention] = LtgBertAttention
) -> TransformerLayer:
    """Makes a pre-norm layer of self-attention and a gated feed-forward block; see `bert.make_layer`."""
    attention_key, mlp_key = jax.random.split(key)
    mlp = MLP(
        config.embed_dim,
        config.mlp_dim,
        activations=config.activations,
        init=config.initializer,
        norm=make_plain_norm(config, config.mlp_dim),
        dtype=config.compute_dtype,
        key=mlp_key,
    )
    return TransformerLayer(
        {"attention": attention(config, key=attention_key), "mlp": mlp},
        functools.partial(make_plain_norm, config),
        norm_position="pre",
        dropout=Dropout(config.dropout_rate),
    )


class LtgBert(DebertaV2):
    """LTG-BERT. Implements `Model` of `models/base.py`; see `Deberta`. A norm without parameters ends the stack."""

    make_embeddings = staticmethod(LtgBertEmbeddings)
    make_layer = staticmethod(make_layer)
    make_attention = staticmethod(LtgBertAttention)
    make_stack = stacks.Stack

    def make_encoder(self, key: jax.Array, *, order: Sequence[int] | None = None) -> stacks.Stack:
        """Makes the layers, and multiplies the kernels of feed-forward blocks; see `Bert.make_encoder`."""
        config = self.config
        encoder = self.make_stack(
            functools.partial(self.make_layer, config, attention=self.make_attention),
            config.num_layers if order is None else max(order) + 1,
            key=key,
            order=order,
            norm=make_plain_norm(config),
            scan=bool(config.scan_layers),
            remat=config.remat,
        )
        scale_mlps(encoder.layers)
        return encoder


def scale_mlps(layers: Any) -> None:
    """Multiplies the kernels of the feed-forward block of layer i, from 0, by (2 + 2i)^-1/2.

    Args:
      layers: A list of layers, or one layer with stacked parameters.
    """

    def scale(layer: nnx.Module, factors: Any) -> None:
        for name in (*layer.mlp.names, "wo"):
            kernel = getattr(layer.mlp, name).kernel
            kernel[...] = kernel[...] * factors

    if stacks.is_scanned(layers):
        indices = np.arange(len(layers.mlp.wo.kernel[...]))
        scale(layers, ((2 + 2 * indices) ** -0.5).astype(np.float32)[:, None, None])
    else:
        for index, layer in enumerate(layers):
            scale(layer, (2 + 2 * index) ** -0.5)
