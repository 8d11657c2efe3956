"""Decoders of the layers of `rotary_layers`: Llama, and the families that override parts of it."""

import dataclasses
from collections.abc import Mapping

import jax
from jaxtyping import Array, Int

from t5x_like.layers.blocks import Hidden
from t5x_like.models import decoder
from t5x_like.models.base import StackInfo
from t5x_like.models.rotary_layers import RotaryConfig, RotaryModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryDecoderConfig(RotaryConfig):
    """Sizes and hyperparameters of a decoder."""

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack; see `ModelConfig.stacks`."""
        return {"decoder": self.stack(self.num_layers)}

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return (*super().reads, "decoder_prefix")

    def make(self, key: jax.Array) -> "RotaryDecoder":
        """Returns a model with newly initialized parameters; see `ModelConfig.make`."""
        return RotaryDecoder(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step; see `decoder.forward_flops`."""
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return 3.0 * decoder.forward_flops(self, shapes)


class RotaryDecoder(RotaryModel, decoder.Decoder):
    """A decoder. Implements `Model` and `GenerativeDecoder` of `models/base.py`.

    Attributes:
      token_embedder: See `RotaryModel`.
      decoder: Layers of the decoder.
      logits: See `RotaryModel`.
    """

    def embed_tokens(self, tokens: Int[Array, "batch length"], positions: Int[Array, "batch length"]) -> Hidden:
        """Returns the token embeddings; positions enter through the rotations."""
        return self.config.scale_embeddings(self.token_embedder(tokens))
