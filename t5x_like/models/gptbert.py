"""GPT-BERT (Charpentier and Samuel 2024, arXiv:2410.24159): one encoder for masked and for causal rows.

The model of the paper, `model_extra.py` of the released code: LTG-BERT with a gate of the values of each head, with a
norm before the output projection in place of the one after it, and with depth-weighted averages after each block.
`objectives.masked_next_token` trains it on rows of both kinds.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jaxtyping import Array, Float

from t5x_like.errors import UserError
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.dense_averages import DenselyAveragedStack
from t5x_like.layers.mlp import gelu_exact
from t5x_like.layers.projections import Projection, shard_activation
from t5x_like.models.deberta_v2 import SharedDisentangledAttention
from t5x_like.models.ltgbert import LtgBert, LtgBertConfig, make_plain_norm
from t5x_like.models.unilm import RANKS, RankMask


@dataclasses.dataclass(frozen=True)
class GptBertConfig(LtgBertConfig):
    """Sizes and hyperparameters of GPT-BERT; by default GPT-BERT base."""

    # Size within a feed-forward block.
    mlp_dim: int = 2560
    # Epsilon of the norms.
    norm_epsilon: float = 1e-5

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return (*super().reads, RANKS)

    def make(self, key: jax.Array) -> LtgBert:
        """Returns a GPT-BERT with newly initialized parameters; see `ModelConfig.make`."""
        return GptBert(self, key=key)

    def keep_layers(self, indices: Sequence[int]) -> dict[str, Any]:
        """Refuses to remove layers; see `pruning.structures.LayerIndexed`.

        Raises:
          UserError: Always.
        """
        raise UserError(
            f"LAYERS={tuple(indices)}: not supported for GptBertConfig, whose blocks read averages over the layers "
            "before them. Remove heads or units instead."
        )

    def train_flops(self, shapes: dict[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step: of LTG-BERT, of the gates and of the averages.

        Block i of 2 · num_layers averages i + 2 states of size embed_dim per token.
        """
        batch, length = shapes["encoder_input_tokens"]
        blocks = 2 * self.num_layers
        averages = self.embed_dim * blocks * (blocks + 3) / 2
        gates = self.num_layers * self.embed_dim * self.num_heads * self.head_dim
        return super().train_flops(shapes) + 6.0 * batch * length * (averages + gates)


class GatedDisentangledAttention(SharedDisentangledAttention):
    """Attention with scores of relative positions, whose averages of values are gated and normalized.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      gate: Projection with kernel `[embed, heads, kv]` to the gates, to which GELU is applied.
      value_norm: Norm of the gated averages of all heads, without parameters.
    """

    def __init__(self, config: GptBertConfig, *, key: jax.Array):
        super().__init__(config, key=key)
        self.gate = Projection(
            (config.embed_dim,),
            (config.num_heads, config.head_dim),
            axes=("embed", "heads", "kv"),
            key=jax.random.fold_in(key, 0),
            init=config.initializer,
            bias=True,
            dtype=config.compute_dtype,
        )
        self.value_norm = make_plain_norm(config, config.num_heads * config.head_dim)

    def attend(
        self, x: Hidden, *, dropout_key: jax.Array | None = None, **options
    ) -> tuple[Float[Array, "batch q_len heads kv"], dict[str, Array]]:
        """Computes the gated averages that the output projection reads; see `MultiHeadAttention.attend`."""
        averages, captured = super().attend(x, dropout_key=dropout_key, **options)
        gated = averages * gelu_exact(self.gate(x, dropout_key=dropout_key))
        normalized = self.value_norm(gated.reshape(*gated.shape[:2], -1)).reshape(gated.shape)
        return shard_activation(normalized, "heads", "kv"), captured


class GptBert(RankMask, LtgBert):
    """GPT-BERT. Implements `Model` of `models/base.py`; see `LtgBert` and `RankMask`."""

    make_attention = staticmethod(GatedDisentangledAttention)
    make_stack = DenselyAveragedStack
