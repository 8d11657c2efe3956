"""MosaicBERT (Portes et al. 2023, arXiv:2312.17482): BERT with ALiBi in place of positions, and with gated blocks.

The bias of a score is a constant of its head times the distance, in both directions. A feed-forward block multiplies
the exact GELU of one projection by another one, both without biases, and its dropout is before the last projection.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from t5x_like.kernels.dropout import NO_DROPOUT, Dropout
from t5x_like.layers import initializers
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.blocks import TransformerLayer
from t5x_like.layers.mlp import MLP
from t5x_like.layers.positions import symmetric_alibi
from t5x_like.models import bert, checks
from t5x_like.models.base import Batch
from t5x_like.models.bert import Bert, BertConfig


@dataclasses.dataclass(frozen=True)
class MosaicBertConfig(BertConfig):
    """Sizes and hyperparameters of MosaicBERT; by default MosaicBERT base."""

    # Rows of the token embedding table: those of BERT, uncased, rounded up to a multiple of 64.
    vocab_size: int = 30528
    # Activations of the feed-forward blocks; the masked-LM head has the first.
    activations: tuple[str, ...] = ("gelu_exact", "linear")
    # Dropout rate of the attention weights.
    attention_dropout_rate: float = 0.0
    # Standard deviation of new kernels and tables, which are not truncated.
    initializer_range: float = 0.02

    lacks = {"prefix": "MosaicBERT has no prefix, because its scores depend on the distance to a key"}

    def __post_init__(self):
        super().__post_init__()
        checks.no_position_offset(self)

    @property
    def embeds_positions(self) -> bool:
        """False: positions are relative; see `BertConfig.embeds_positions`."""
        return False

    @property
    def initializer(self) -> initializers.Initializer:
        """Initializer of kernels and tables; see `BertConfig.initializer`."""
        return initializers.normal(self.initializer_range)

    def make(self, key: jax.Array) -> Bert:
        """Returns a MosaicBERT with newly initialized parameters; see `ModelConfig.make`."""
        return MosaicBert(self, key=key)


def make_layer(
    config: MosaicBertConfig, key: jax.Array, attention: Callable[..., MultiHeadAttention] = bert.make_attention
) -> TransformerLayer:
    """Makes a post-norm layer of self-attention and a gated feed-forward block; see `bert.make_layer`."""
    attention_key, mlp_key = jax.random.split(key)
    dropout = Dropout(config.dropout_rate)
    mlp = MLP(
        config.embed_dim,
        config.mlp_dim,
        activations=config.activations,
        init=config.initializer,
        bias=("wo",),
        dropout=dropout,
        dtype=config.compute_dtype,
        key=mlp_key,
    )
    return TransformerLayer(
        {"attention": attention(config, key=attention_key), "mlp": mlp},
        functools.partial(bert.make_norm, config),
        norm_position="post",
        dropout={"attention": dropout, "mlp": NO_DROPOUT},
    )


class MosaicBert(Bert):
    """MosaicBERT. Implements `Model` of `models/base.py`; see `Bert`."""

    make_layer = staticmethod(make_layer)

    def attention_inputs(self, batch: Batch) -> dict[str, Any]:
        """Returns the inputs of the attention that all layers share: the mask and ALiBi's bias."""
        length = batch["encoder_input_tokens"].shape[1]
        return super().attention_inputs(batch) | {"bias": symmetric_alibi(self.config.num_heads, length, length)}
