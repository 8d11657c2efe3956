"""The other networks of T5's study of architectures (Raffel et al. 2020, section 3.2).

Beside the encoder-decoder of `t5.py`: one whose encoder is the decoder's own layers run without their cross-attention,
and a decoder alone, the language model; it is a prefix language model where a batch says what the prefix is.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
from flax import nnx
from jaxtyping import Array

from t5x_like.errors import UserError
from t5x_like.kernels.masks import Mask
from t5x_like.layers import captures as capturing
from t5x_like.layers import embeddings
from t5x_like.layers.blocks import Hidden
from t5x_like.models.base import Batch
from t5x_like.models.outputs import Outputs
from t5x_like.models.t5 import T5, Stack, T5Config, make_norm


@dataclasses.dataclass(frozen=True)
class SharedT5Config(T5Config):
    """A T5 whose encoder and decoder are the same layers; as many of them as `decoder_layers` says."""

    def __post_init__(self):
        super().__post_init__()
        if self.encoder_layers != self.decoder_layers:
            raise UserError(
                f"SharedT5Config.encoder_layers={self.encoder_layers} must equal decoder_layers={self.decoder_layers}: "
                "they are the same layers"
            )

    def make(self, key: jax.Array) -> "SharedT5":
        """A freshly initialised network."""
        return SharedT5(self, key=key)


class FinalNorm(nnx.Module):
    """All that a shared encoder has of its own."""

    def __init__(self, config: T5Config):
        self.norm = make_norm(config)


class SharedT5(T5):
    """T5 with one set of layers, norms and position biases for encoder and decoder, each with a final norm of its own.

    The table of position biases serves buckets that look both ways in the encoder, and back alone in the decoder.
    """

    def _make_encoder(self, config: T5Config, key: jax.Array) -> FinalNorm:
        return FinalNorm(config)

    def run_encoder(self, x: Hidden, **options) -> tuple[Hidden, dict[str, Array]]:
        return self.decoder(x, encoder_norm=self.encoder.norm, **options)

    @property
    def encoder_capturable(self) -> tuple[str, ...]:
        return tuple(name for name in self.decoder.capturable if not name.startswith("cross_attention/"))


@dataclasses.dataclass(frozen=True)
class T5DecoderConfig(T5Config):
    """A decoder alone, of `decoder_layers` layers without cross-attention; `encoder_layers` means nothing."""

    def make(self, key: jax.Array) -> "T5Decoder":
        """A freshly initialised network."""
        return T5Decoder(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Floating-point operations of one update, as `T5Config.train_flops`: an encoder's that predicts tokens.

        Args:
          shapes: of the global batch's `decoder_input_tokens`, `(batch, length)`.
        """
        batch, length = shapes["decoder_input_tokens"]
        d, a, f = self.embed_dim, self.num_heads * self.head_dim, self.mlp_dim
        m = len(self.activations) + 1
        layers = self.decoder_layers * length * (4 * d * a + m * d * f + 2 * length * a)
        return 3.0 * 2.0 * batch * (layers + length * d * self.vocab_size)


class T5Decoder(T5):
    """The decoder-only network; `decoder_prefix` of a batch marks tokens that every position of its segment may see."""

    def __init__(self, config: T5DecoderConfig, *, key: jax.Array):
        embedder_key, decoder_key, logits_key = jax.random.split(key, 3)
        self.config = config
        self.token_embedder = embeddings.Embedder(
            config.vocab_size, config.embed_dim, key=embedder_key, dtype=config.compute_dtype
        )
        self.decoder = Stack(
            config, config.decoder_layers, attentions=("attention",), bidirectional=False, key=decoder_key
        )
        self._make_logits(config, logits_key)

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """The vectors of `decoder_input_tokens`, as `decoder`."""
        return {"decoder": self.token_embedder(batch["decoder_input_tokens"])}

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
          batch: `decoder_segment_ids` where rows are packed, `decoder_prefix` where there is one.
          dropout_key: None for no dropout.
          capture: `decoder/layers/WHAT` as in `T5.trunk`, `attention` being the one attention there is.
        """
        captures = capturing.parse(capture, {"decoder": (self.config.decoder_layers, self.decoder.capturable)})
        segments, prefix = batch.get("decoder_segment_ids"), batch.get("decoder_prefix")
        mask = Mask(
            causal=True,
            prefix=None if prefix is None else prefix > 0,
            query_segments=segments,
            key_segments=segments,
        )
        hidden, captured = self.decoder(
            embedded["decoder"], mask=mask, dropout_key=dropout_key, captures=captures["decoder"]
        )
        return Outputs(hidden=hidden, captured=captured)
