"""T5Gemma (Zhang et al. 2025, arXiv:2504.06225) and T5Gemma 2 (arXiv:2512.14856): encoder-decoders from Gemma 2 and 3.

T5Gemma has the layers of Gemma 2 in both stacks, an attention to the encoder, and a table of embeddings per stack.
T5Gemma 2, of which the text model is here, has the layers of Gemma 3, one attention of the decoder to both stacks, and
one table.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from t5x_like.axis_rules import EMBED_VECTOR
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.embeddings import Embedder
from t5x_like.layers.layer_kinds import LayerKind
from t5x_like.models import checks
from t5x_like.models.gemma import Gemma2Config, Gemma3Config
from t5x_like.models.rotary_encoder_decoder import RotaryEncoderDecoder, RotaryEncoderDecoderConfig
from t5x_like.models.rotary_layers import RotaryConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5GemmaConfig(RotaryEncoderDecoderConfig):
    """The two stacks of a T5Gemma; by default 2B-2B."""

    # Configuration of the decoder that becomes the encoder.
    encoder: Gemma2Config = Gemma2Config()
    # Configuration of the decoder.
    decoder: Gemma2Config = Gemma2Config()
    # Token that is padding in inputs without segment ids; None if inputs must have them.
    padding_id: int | None = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Gemma2Config(RotaryEncoderDecoderConfig):
    """The two stacks of the text model of a T5Gemma 2; by default 4B-4B."""

    # Configuration of the decoder that becomes the encoder.
    encoder: Gemma3Config = Gemma3Config(vocab_size=262144)
    # Configuration of the decoder.
    decoder: Gemma3Config = Gemma3Config(vocab_size=262144)
    # Whether both stacks have one table of token embeddings.
    shared_embeddings: bool = True
    # Whether layers of the decoder have one attention to both stacks, with one softmax.
    merged_attention: bool = True
    # Token id of the end of an image, whose vector is a parameter of its own that is not scaled.
    end_of_image_id: int = 256000
    # Token that is padding in inputs without segment ids; None if inputs must have them.
    padding_id: int | None = 0

    def __post_init__(self):
        super().__post_init__()
        checks.non_negative_integers(self, "end_of_image_id")

    @property
    def encoder_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of the layers of the encoder: a window of w positions is half before and half after a position."""
        return tuple(
            kind
            if kind.window is None
            else dataclasses.replace(kind, window=(kind.window + 1) // 2, window_after=kind.window // 2 + 1)
            for kind in super().encoder_kinds
        )

    def make(self, key: jax.Array) -> "T5Gemma2":
        """Returns a T5Gemma 2 with newly initialized parameters; see `ModelConfig.make`."""
        return T5Gemma2(self, key=key)


class T5Gemma2(RotaryEncoderDecoder):
    """The text model of T5Gemma 2; see `RotaryEncoderDecoder`.

    Attributes:
      end_of_image: float32 `[embed]`, initially 0: the vector of `end_of_image_id`.
    """

    def __init__(self, config: T5Gemma2Config, *, key: jax.Array):
        super().__init__(config, key=key)
        self.end_of_image = nnx.Param(jnp.zeros((config.embed_dim,), jnp.float32), axes=(EMBED_VECTOR,))

    def embed_stack(self, stack: RotaryConfig, table: Embedder, tokens: Int[Array, "batch length"]) -> Hidden:
        """Returns the input of a stack; see `RotaryEncoderDecoder.embed_stack`."""
        embedded, is_end = super().embed_stack(stack, table, tokens), tokens == self.config.end_of_image_id
        return jnp.where(is_end[..., None], self.end_of_image[...].astype(embedded.dtype), embedded)
