"""The other models of T5's study of architectures (Raffel et al. 2020, section 3.2.2).

`SharedT5` is an encoder-decoder whose stacks share their layers: the encoder runs them without cross-attention.
`T5Decoder` is a decoder-only language model, or a prefix language model if the batch marks a prefix.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
from flax import nnx
from jaxtyping import Array, Int

from t5x_like.errors import UserError
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.score_bias import ScoreBias
from t5x_like.layers import captures as capturing
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.layer_kinds import LayerKind
from t5x_like.models.base import Batch, StackInfo
from t5x_like.models.decoder import Decoder
from t5x_like.models.outputs import Outputs
from t5x_like.models.t5 import T5, Stack, T5Config, Vocabulary, make_norm


@dataclasses.dataclass(frozen=True)
class SharedT5Config(T5Config):
    """Configuration of a T5 whose encoder and decoder share their `decoder_layers` layers."""

    def __post_init__(self):
        super().__post_init__()
        if self.encoder_layers != self.decoder_layers:
            raise UserError(
                f"SharedT5Config.encoder_layers={self.encoder_layers}: must equal decoder_layers="
                f"{self.decoder_layers}, since the layers are shared"
            )

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the layers, which both stacks share; see `ModelConfig.stacks`."""
        return dict.fromkeys(("encoder", "decoder"), self.stack(self.decoder_layers))

    def make(self, key: jax.Array) -> "SharedT5":
        """Returns a SharedT5 with newly initialized parameters; see `ModelConfig.make`."""
        return SharedT5(self, key=key)


class FinalNorm(nnx.Module):
    """The final norm, the only parameters of the encoder that the decoder does not share.

    Args:
      config: Configuration of the model.
    """

    def __init__(self, config: T5Config):
        self.norm = make_norm(config)


class SharedT5(T5):
    """T5 with one set of layers and position biases for encoder and decoder, and a final norm for each of them.

    The encoder uses the table of position biases with bidirectional buckets, the decoder with unidirectional ones.
    """

    def _make_encoder(self, config: T5Config, key: jax.Array) -> FinalNorm:
        return FinalNorm(config)

    def run_encoder(self, x: Hidden, **options) -> tuple[Hidden, dict[str, Array]]:
        """Runs the shared layers as the encoder; see `EncoderDecoder.run_encoder`."""
        return self.decoder(x, encoder_norm=self.encoder.norm, **options)

    @property
    def encoder_capturable(self) -> tuple[str, ...]:
        """Names of the arrays that can be captured in a layer of the encoder."""
        return tuple(name for name in self.decoder.capturable if not name.startswith("cross_attention/"))


@dataclasses.dataclass(frozen=True)
class T5DecoderConfig(T5Config):
    """Configuration of a decoder-only T5 with `decoder_layers` layers; `encoder_layers` is not used."""

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack; see `ModelConfig.stacks`."""
        return {"decoder": self.stack(self.decoder_layers)}

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return (*super().reads, "decoder_prefix")

    def make(self, key: jax.Array) -> "T5Decoder":
        """Returns a T5Decoder with newly initialized parameters; see `ModelConfig.make`."""
        return T5Decoder(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step.

        With d, a, f, m, P and V as in `encoder_decoder.forward_flops` and L = length, the forward pass of a row takes
        decoder_layers · L · (4da + mdf + 2La) + P · dV multiply-adds. A multiply-add counts as two operations.

        Args:
          shapes: Shape `(batch, length)` of `decoder_input_tokens` in the global batch and, if the objective computes
            logits, `(batch, predictions)` of `decoder_target_tokens`.
        """
        batch, length = shapes["decoder_input_tokens"]
        _, predictions = shapes.get("decoder_target_tokens", (batch, 0))
        d, a, f = self.embed_dim, self.num_heads * self.head_dim, self.mlp_dim
        m = len(self.activations) + 1
        layers = self.decoder_layers * length * (4 * d * a + m * d * f + 2 * length * a)
        return 3.0 * 2.0 * batch * (layers + predictions * d * self.vocab_size)


class T5Decoder(Vocabulary, Decoder):
    """Decoder-only T5. Implements `Model` and `GenerativeDecoder` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      token_embedder: Embedding table `[vocab_size embed_dim]` of the tokens, and of the logits if they are tied.
      decoder: Layers of the decoder.
      logits: Kernel of the logits, unless they are tied.
    """

    def __init__(self, config: T5DecoderConfig, *, key: jax.Array):
        embedder_key, decoder_key, logits_key = jax.random.split(key, 3)
        self.config = config
        self.decoder = Stack(
            config, config.decoder_layers, attentions=("attention",), bidirectional=False, key=decoder_key
        )
        self.make_vocabulary(config, embedder_key=embedder_key, logits_key=logits_key)

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """All layers see all earlier tokens."""
        return (LayerKind(),)

    def embed_tokens(self, tokens: Int[Array, "batch length"], positions: Int[Array, "batch length"]) -> Hidden:
        """Returns the token embeddings; positions enter through the biases."""
        return self.token_embedder(tokens)

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Returns the embedded `decoder_input_tokens` as `decoder`. Rows of any length have positions."""
        return {"decoder": self.token_embedder(batch["decoder_input_tokens"])}

    def step_inputs(self, index: Int[Array, ""], cache_length: int, num_positions: int) -> dict[str, ScoreBias]:
        """Returns the position biases of a decoding step."""
        return {"bias": self.decoder.relative_bias.at(index, cache_length, num_positions)}

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

        Packed rows have `decoder_segment_ids`. The optional `decoder_prefix` is 1 for tokens to which every position of
        their segment may attend.
        """
        stacks = {"decoder": (self.config.decoder_layers, self.decoder.capturable)}
        captures = capturing.parse(capture, stacks, edits)["decoder"]
        segments, prefix = batch.get("decoder_segment_ids"), batch.get("decoder_prefix")
        mask = Mask(
            causal=True,
            prefix=None if prefix is None else prefix > 0,
            query_segments=segments,
            key_segments=segments,
        )
        hidden, captured = self.decoder(embedded["decoder"], mask=mask, dropout_key=dropout_key, captures=captures)
        hidden, output = captures.state(capturing.OUTPUT, hidden)
        return Outputs(hidden=hidden, captured=captured | output)
