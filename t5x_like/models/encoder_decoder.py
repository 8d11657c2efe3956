"""What encoder-decoder families share: the trunk, its masks, and decoding one position at a time."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jaxtyping import Array, Bool, Float, Int

from t5x_like.kernels.dropout import split_key
from t5x_like.kernels.masks import Mask
from t5x_like.layers import captures as capturing
from t5x_like.layers import stacks
from t5x_like.layers.attention import KeyValueCache
from t5x_like.layers.blocks import Hidden
from t5x_like.models.base import Batch, ModelConfig
from t5x_like.models.outputs import Outputs

PADDING_ID = 0
FIRST_SEGMENT = 1


class EncoderDecoderConfig(ModelConfig, Protocol):
    """The fields of an encoder-decoder's configuration that this module reads.

    Attributes:
      embed_dim: size of a hidden state.
      mlp_dim: size within a feed-forward block.
      num_heads: number of attention heads.
      head_dim: size of the queries, keys and values of a head.
      encoder_layers: number of layers of the encoder.
      decoder_layers: number of layers of the decoder.
      activations: activations of the feed-forward blocks; with two, their product.
    """

    embed_dim: int
    mlp_dim: int
    num_heads: int
    head_dim: int
    encoder_layers: int
    decoder_layers: int
    activations: tuple[str, ...]


@struct.dataclass
class Encoded:
    """An encoder's result.

    Attributes:
      hidden: what the decoder attends to.
      valid: False where it may not look.
    """

    hidden: Float[Array, "batch length embed"]
    valid: Bool[Array, "batch length"]


@struct.dataclass
class Cache:
    """What decoding carries from step to step.

    Attributes:
      self_attention: keys and values of the positions decoded so far.
      cross_attention: keys and values of the encoder's positions, computed once.
      encoder_valid: see `Encoded.valid`.
    """

    self_attention: KeyValueCache
    cross_attention: KeyValueCache
    encoder_valid: Bool[Array, "batch length"]


class EncoderDecoder(nnx.Module):
    """An encoder-decoder over what its family defines; its interface is "The model seam" in docs/architecture.md.

    A family sets `config`, `encoder` and `decoder` (a stack whose layers have the blocks `self_attention` and
    `cross_attention`), and defines `embed_encoder`, `embed_decoder`, `embed_step` and `unembed`. The other methods of
    the first part it may replace.
    """

    config: EncoderDecoderConfig
    encoder: Any
    decoder: Any

    # ---- what a family defines, or may replace --------------------------------------------------------------------

    def embed_encoder(self, batch: Batch) -> Hidden:
        """What goes into the encoder."""
        raise NotImplementedError

    def embed_decoder(self, batch: Batch) -> Hidden:
        """What goes into the decoder."""
        raise NotImplementedError

    def embed_step(self, tokens: Int[Array, "batch 1"], index: Int[Array, ""]) -> Float[Array, "batch 1 embed"]:
        """What goes into the decoder at position `index`."""
        raise NotImplementedError

    def run_encoder(self, x: Hidden, **options) -> tuple[Hidden, dict[str, Array]]:
        """The encoder's result; options are `mask`, `dropout_key` and `captures`."""
        return self.encoder(x, **options)

    def run_decoder(self, x: Hidden, **options) -> tuple[Hidden, dict[str, Array]]:
        """The decoder's result; options are those of the encoder, `encoded` and `cross_mask`."""
        return self.decoder(x, **options)

    def step_inputs(self, index: Int[Array, ""], cache_length: int) -> dict[str, Array]:
        """What the self-attention of a decoding step reads beside its mask, in a cache of `cache_length` positions."""
        return {}

    @property
    def encoder_capturable(self) -> tuple[str, ...]:
        """Names of what can be captured of the encoder's layers."""
        return self.encoder.capturable

    # ---- what all of them do --------------------------------------------------------------------------------------

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """The vectors of `encoder_input_tokens` and `decoder_input_tokens`, as `encoder` and `decoder`."""
        return {"encoder": self.embed_encoder(batch), "decoder": self.embed_decoder(batch)}

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
          batch: `encoder_input_tokens`; where rows are packed, `encoder_segment_ids` and `decoder_segment_ids`.
          dropout_key: None for no dropout.
          capture: names of what to hand back beside the result: `encoder/output`, or `STACK/layers/WHAT` with a leading
            dimension `layers`, or `STACK/layers/INDEX/WHAT`. STACK is `encoder` or `decoder`. WHAT is `hidden` (a
            layer's output) or `ATTENTION/query`, `/key`, `/value`, `/scores` (before the softmax, with bias and mask)
            or `/probabilities`, where ATTENTION is `attention` in the encoder, `self_attention` or `cross_attention`
            in the decoder. Layers of which scores or probabilities are captured use the reference attention.
        """
        config = self.config
        captures = capturing.parse(
            capture,
            {
                "encoder": (config.encoder_layers, self.encoder_capturable),
                "decoder": (config.decoder_layers, self.decoder.capturable),
            },
            others=("encoder/output",),
        )
        encoder_key, decoder_key = split_key(dropout_key, 2)
        encoded, of_encoder = self.run_encoder(
            embedded["encoder"],
            mask=_encoder_mask(batch),
            dropout_key=encoder_key,
            captures=captures["encoder"],
        )
        decoder_mask, cross_mask = _decoder_masks(batch)
        hidden, of_decoder = self.run_decoder(
            embedded["decoder"],
            encoded=encoded,
            mask=decoder_mask,
            cross_mask=cross_mask,
            dropout_key=decoder_key,
            captures=captures["decoder"],
        )
        whole = {"encoder/output": encoded} if "encoder/output" in capture else {}
        return Outputs(hidden=hidden, captured=whole | of_encoder | of_decoder)

    def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None, capture: Sequence[str] = ()) -> Outputs:
        """`trunk(embed(batch), batch)`."""
        return self.trunk(self.embed(batch), batch, dropout_key=dropout_key, capture=capture)

    def encode(self, batch: Batch) -> Encoded:
        """Runs the encoder for decoding, which continues the first segment of a packed row."""
        tokens, segments = batch["encoder_input_tokens"], batch.get("encoder_segment_ids")
        hidden, _ = self.run_encoder(self.embed_encoder(batch), mask=_encoder_mask(batch))
        return Encoded(hidden=hidden, valid=tokens != PADDING_ID if segments is None else segments == FIRST_SEGMENT)

    def init_cache(self, batch_size: int, cache_length: int, encoded: Encoded) -> Cache:
        """A cache with room for `cache_length` positions, and the keys and values of the cross-attention in it."""
        config, layers = self.config, self.decoder.layers
        _, cross = stacks.run(
            layers,
            lambda layer, _, index, key: (None, layer.cross_attention.make_cache(encoded.hidden)),
            None,
            num_layers=config.decoder_layers,
        )
        shape = (batch_size, config.num_heads, cache_length, config.head_dim)
        return Cache(
            self_attention=KeyValueCache.empty(
                shape, layers=config.decoder_layers, stacked=stacks.is_scanned(layers), dtype=config.compute_dtype
            ),
            cross_attention=KeyValueCache.from_layers(cross) if not stacks.is_scanned(layers) else cross,
            encoder_valid=encoded.valid,
        )

    def decode_step(
        self, tokens: Int[Array, "batch 1"], cache: Cache, index: Int[Array, ""]
    ) -> tuple[Float[Array, "batch 1 embed"], Cache]:
        """One position of the decoder.

        Args:
          tokens: the decoder's input at `index`.
          cache: holds the positions before.
          index: from 0 on; the same for all rows.

        Returns:
          What `unembed` reads to predict the next token, and the cache with this position in it.
        """
        cache_length = cache.self_attention.length
        mask = Mask(key_valid=jnp.broadcast_to(jnp.arange(cache_length) <= index, (tokens.shape[0], cache_length)))

        def inputs(layer):
            return {
                "self_attention": {"mask": mask, **self.step_inputs(index, cache_length)},
                "cross_attention": {
                    "mask": Mask(key_valid=cache.encoder_valid),
                    "keys_values": cache.cross_attention.at(layer),
                },
            }

        x, self_cache = self.decoder.step(self.embed_step(tokens, index), cache.self_attention, index, inputs)
        return x, cache.replace(self_attention=self_cache)


def forward_flops(config: EncoderDecoderConfig, batch: int, encoder_length: int, decoder_length: int) -> float:
    """Floating-point operations of the matrix products in a forward pass, a multiply-add as two.

    With d = embed_dim, a = num_heads · head_dim, f = mlp_dim, m = number of products in a feed-forward block (2 or
    3), E and D the lengths and V the vocabulary, a row costs two operations for each of

        encoder_layers · E · (4da + mdf + 2Ea)
        + decoder_layers · (D · (6da + mdf + 2Da + 2Ea) + E · 2da)
        + D · dV

    Attention counts in full although half of the decoder's is masked; norms, softmax, biases and lookups do not count.

    Args:
      config: the network's; T5's and BART's have what is read of it.
      batch: rows.
      encoder_length, decoder_length: E and D.
    """
    d, a, f = config.embed_dim, config.num_heads * config.head_dim, config.mlp_dim
    m, e = len(config.activations) + 1, encoder_length
    encoder = config.encoder_layers * e * (4 * d * a + m * d * f + 2 * e * a)
    per_position = 6 * d * a + m * d * f + 2 * decoder_length * a + 2 * e * a
    decoder = config.decoder_layers * (decoder_length * per_position + e * 2 * d * a)
    return 2.0 * batch * (encoder + decoder + decoder_length * d * config.vocab_size)


def _encoder_mask(batch: Batch) -> Mask:
    segments = batch.get("encoder_segment_ids")
    if segments is None:
        return Mask(key_valid=batch["encoder_input_tokens"] != PADDING_ID)
    return Mask(query_segments=segments, key_segments=segments)


def _decoder_masks(batch: Batch) -> tuple[Mask, Mask]:
    """Of the decoder's self-attention and of its attention to the encoder."""
    encoder, decoder = batch.get("encoder_segment_ids"), batch.get("decoder_segment_ids")
    if (encoder is None) != (decoder is None):
        raise ValueError("a batch has encoder_segment_ids and decoder_segment_ids together or neither of them")
    if encoder is None:
        return Mask(causal=True), _encoder_mask(batch)
    return (
        Mask(causal=True, query_segments=decoder, key_segments=decoder),
        Mask(query_segments=decoder, key_segments=encoder),
    )
