"""The base class of encoder-decoders: trunk, attention masks, decoding one position at a time, and FLOPs."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from t5x_like.adapters import model_adapters
from t5x_like.errors import UserError
from t5x_like.kernels import head_exchange
from t5x_like.kernels.dropout import split_key
from t5x_like.kernels.masks import Mask
from t5x_like.layers import captures as capturing
from t5x_like.layers import stacks
from t5x_like.layers.blocks import Hidden, Inputs
from t5x_like.layers.cache import KeyValueCache, step_mask
from t5x_like.layers.layer_kinds import LayerKind
from t5x_like.models.base import BaseModel, Batch, ModelConfig
from t5x_like.models.outputs import Outputs

FIRST_SEGMENT = 1


class EncoderDecoderConfig(ModelConfig, Protocol):
    """The fields of an encoder-decoder's configuration that this module reads.

    Attributes:
      encoder_layers: Number of layers of the encoder.
      decoder_layers: Number of layers of the decoder.
    """

    encoder_layers: int
    decoder_layers: int


class UniformConfig(EncoderDecoderConfig, Protocol):
    """The fields of a configuration whose stacks differ in their numbers of layers alone, for `forward_flops`.

    Attributes:
      embed_dim: Size of a hidden state.
      mlp_dim: Size within a feed-forward block.
      num_heads: Number of attention heads.
      head_dim: Size of the queries, keys and values of a head.
      activations: Activations of the feed-forward blocks; with two, their product.
    """

    embed_dim: int
    mlp_dim: int
    num_heads: int
    head_dim: int
    activations: tuple[str, ...]


@struct.dataclass
class Encoded:
    """The result of an encoder.

    Attributes:
      hidden: Hidden states, to which the decoder attends.
      valid: Whether the decoder may attend to a position.
    """

    hidden: Float[Array, "batch length embed"]
    valid: Bool[Array, "batch length"]


@struct.dataclass
class Cache:
    """Keys and values for decoding.

    The self-attention may have n neighboring rows per row of the encoder, whose keys and values they share.

    Attributes:
      self_attention: Keys and values of the positions decoded so far.
      cross_attention: Keys and values of the encoder's positions, computed once.
      encoder_valid: `Encoded.valid`.
    """

    self_attention: KeyValueCache
    cross_attention: KeyValueCache
    encoder_valid: Bool[Array, "inputs length"]

    def repeat(self, n: int) -> "Cache":
        """Returns a cache with every row of the self-attention `n` times; see `KeyValueCache.repeat`."""
        return self.replace(self_attention=self.self_attention.repeat(n))

    def take(self, rows: Int[Array, " batch"]) -> "Cache":
        """Gathers rows of the self-attention, each from the rows of the same input; see `KeyValueCache.take`."""
        return self.replace(self_attention=self.self_attention.take(rows, groups=len(self.encoder_valid)))


class EncoderDecoder(BaseModel):
    """Base class of encoder-decoders. Implements `Model` and `GenerativeEncoderDecoder` of `models/base.py`.

    A family sets `config`, `encoder` and `decoder` and defines `embed_encoder`, `embed_decoder`, `embed_step` and
    `unembed`. It may override the other methods of the first section.

    Attributes:
      config: Configuration of the model.
      encoder: Stack of layers, or what `run_encoder` of the family uses.
      decoder: Stack of layers with the blocks `self_attention` and `cross_attention`.
      cross_attention: Name of the block that attends to the encoder.
      decoder_kinds: The kinds of the layers of the decoder, repeated over the layers.
      padding_id: Token that is padding in inputs without segment ids; None if inputs must have them.
    """

    config: EncoderDecoderConfig
    encoder: Any
    decoder: Any
    cross_attention: str = "cross_attention"
    decoder_kinds: tuple[LayerKind, ...] = (LayerKind(),)
    padding_id: int | None = 0

    # ---- defined or overridden by families -------------------------------------------------------------------------

    def embed_encoder(self, batch: Batch) -> Hidden:
        """Returns the input of the encoder.

        Args:
          batch: `encoder_input_tokens` and optionally `encoder_positions`.
        """
        raise NotImplementedError

    def embed_decoder(self, batch: Batch) -> Hidden:
        """Returns the input of the decoder.

        Args:
          batch: `decoder_input_tokens` and optionally `decoder_positions`.
        """
        raise NotImplementedError

    def embed_step(self, tokens: Int[Array, "batch positions"], index: Int[Array, ""]) -> Hidden:
        """Returns the input of the decoder at the positions from `index`, for decoding."""
        raise NotImplementedError

    def run_encoder(self, x: Hidden, **options) -> tuple[Hidden, dict[str, Array]]:
        """Runs the encoder.

        Args:
          x: Embedded tokens.
          **options: `mask`, `dropout_key` and `captures`.

        Returns:
          The hidden states and the captured arrays.
        """
        return self.encoder(x, **options)

    def run_decoder(self, x: Hidden, **options) -> tuple[Hidden, dict[str, Array]]:
        """Runs the decoder.

        Args:
          x: Embedded tokens.
          **options: Options of `run_encoder`, `encoded` (hidden states of the encoder) and `cross_mask`.

        Returns:
          The hidden states and the captured arrays.
        """
        return self.decoder(x, **options)

    def step_inputs(self, index: Int[Array, ""], cache_length: int, num_positions: int) -> dict[str, Any]:
        """Returns the inputs of the self-attention in a decoding step, apart from its mask.

        Args:
          index: First position of the step.
          cache_length: Number of positions in the cache.
          num_positions: Number of positions of the step.
        """
        return {}

    def stack_inputs(self, batch: Batch, stack: str) -> dict[str, Any]:
        """Returns further options of `run_encoder` or `run_decoder`, such as positions, by default none.

        Args:
          batch: Features by name.
          stack: `encoder` or `decoder`.
        """
        return {}

    def block_inputs(self, own: dict[str, Any], cross: dict[str, Any]) -> Inputs:
        """Returns the inputs of the blocks of a layer of the decoder.

        Args:
          own: Inputs of the self-attention.
          cross: Inputs of the attention to the encoder.
        """
        return {"self_attention": own, "cross_attention": cross}

    @property
    def encoder_capturable(self) -> tuple[str, ...]:
        """Names of the arrays that can be captured in a layer of the encoder."""
        return self.encoder.capturable

    # ---- shared by all families ------------------------------------------------------------------------------------

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Returns the inputs of both stacks as `encoder` and `decoder`; see `Model.embed`."""
        return {"encoder": self.embed_encoder(batch), "decoder": self.embed_decoder(batch)}

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

        `batch` has `encoder_input_tokens`, and for packed rows `encoder_segment_ids` and `decoder_segment_ids`.

        Raises:
          ValueError: The batch has the segment ids of one stack only, or a name in `capture` or `edits` is unknown.
          UserError: The batch has no segment ids, and no token is padding.
        """
        config = self.config
        captures = capturing.parse(
            capture,
            {
                "encoder": (config.encoder_layers, self.encoder_capturable),
                "decoder": (config.decoder_layers, self.decoder.capturable),
            },
            edits,
        )
        encoder_key, decoder_key = split_key(dropout_key, 2)
        encoder_mask = self._encoder_mask(batch)
        encoded, encoder_captures = self.run_encoder(
            embedded["encoder"],
            mask=encoder_mask,
            dropout_key=encoder_key,
            captures=captures["encoder"],
            **self.stack_inputs(batch, "encoder"),
        )
        encoded, encoder_output = captures["encoder"].state(capturing.OUTPUT, encoded)
        decoder_mask, cross_mask = _decoder_masks(batch, encoder_mask)
        hidden, decoder_captures = self.run_decoder(
            embedded["decoder"],
            encoded=encoded,
            mask=decoder_mask,
            cross_mask=cross_mask,
            dropout_key=decoder_key,
            captures=captures["decoder"],
            **self.stack_inputs(batch, "decoder"),
        )
        hidden, decoder_output = captures["decoder"].state(capturing.OUTPUT, hidden)
        captured = encoder_output | decoder_output | encoder_captures | decoder_captures
        return Outputs(hidden=hidden, captured=captured)

    def encode(self, batch: Batch) -> Encoded:
        """Runs the encoder once for all steps of decoding.

        Args:
          batch: `encoder_input_tokens` and optionally `encoder_segment_ids`. Of a packed row, only the first segment is
            decoded.

        Returns:
          The encoder's hidden states, those of a prompt included, and the positions to which the decoder may attend.
        """
        batch = model_adapters.extend(self.config, batch)
        mask, segments = self._encoder_mask(batch), batch.get("encoder_segment_ids")
        hidden, _ = self.run_encoder(self.embed_encoder(batch), mask=mask, **self.stack_inputs(batch, "encoder"))
        return Encoded(hidden=hidden, valid=mask.key_valid if segments is None else segments == FIRST_SEGMENT)

    def _encoder_mask(self, batch: Batch) -> Mask:
        """Returns the mask of the encoder's self-attention.

        Raises:
          UserError: The batch has no segment ids, and no token is padding.
        """
        if (segments := batch.get("encoder_segment_ids")) is not None:
            return Mask(query_segments=segments, key_segments=segments)
        if self.padding_id is None:
            raise UserError(
                f"the batch has no encoder_segment_ids, and no token of {type(self.config).__name__} is padding. Give "
                "encoder_segment_ids and decoder_segment_ids: 1 for tokens, 0 for padding."
            )
        return Mask(key_valid=batch["encoder_input_tokens"] != self.padding_id)

    def init_cache(self, batch_size: int, cache_length: int, encoded: Encoded) -> Cache:
        """Creates a cache with the keys and values of the cross-attention.

        Args:
          batch_size: Number of rows.
          cache_length: Number of decoder positions.
          encoded: Result of `encode`.

        Returns:
          The cache, without keys and values of the self-attention.
        """
        config, layers = self.config, self.decoder.layers
        _, cross = stacks.apply_layers(
            layers,
            lambda layer, _, index, key: (None, getattr(layer, self.cross_attention).make_cache(encoded.hidden)),
            None,
            order=range(config.decoder_layers),
        )
        info = config.stacks["decoder"]
        heads = info.num_kv_heads * head_exchange.kv_head_copies(info.num_kv_heads)
        shape = (batch_size, heads, cache_length, info.head_dim)
        return Cache(
            self_attention=KeyValueCache.empty(
                shape, layers=config.decoder_layers, stacked=stacks.is_scanned(layers), dtype=config.compute_dtype
            ),
            # Without the barrier, XLA moves the change of layout from here into the loop over steps.
            cross_attention=jax.lax.optimization_barrier(
                KeyValueCache.from_layers(cross) if not stacks.is_scanned(layers) else cross.shard()
            ),
            encoder_valid=encoded.valid,
        )

    def decode_step(
        self, tokens: Int[Array, "batch positions"], cache: Cache, index: Int[Array, ""]
    ) -> tuple[Float[Array, "batch positions embed"], Cache]:
        """Runs the decoder on one or several positions; see `GenerativeModel.decode_step`.

        Args:
          tokens: Input tokens of the decoder at positions from `index`.
          cache: Keys and values of all earlier positions.
          index: First position, from 0, the same for all rows.

        Returns:
          The hidden states from which `unembed` predicts the next tokens, and the updated cache.
        """
        cache_length = cache.self_attention.length_of(0)
        positions = jnp.broadcast_to(index + jnp.arange(tokens.shape[1]), tokens.shape)
        slots = jnp.arange(cache_length)

        def inputs(kind):
            visible = slots <= positions[:, :, None]
            if kind.window is not None:
                visible &= slots > positions[:, :, None] - kind.window
            own = {
                "mask": step_mask(visible),
                "positions": positions,
                "rotary": kind.rotary,
                **self.step_inputs(index, cache_length, tokens.shape[1]),
            }
            cross_mask = Mask(key_valid=cache.encoder_valid)
            return lambda layer: self.block_inputs(
                own, {"mask": cross_mask, "keys_values": cache.cross_attention.at(layer)}
            )

        kinds = self.decoder_kinds[: self.decoder.num_layers]
        x, self_cache = self.decoder.step(
            self.embed_step(tokens, index), cache.self_attention, index, *map(inputs, kinds)
        )
        return x, cache.replace(self_attention=self_cache)


def forward_flops(
    config: UniformConfig, shapes: Mapping[str, tuple[int, ...]], *, encoder_keys: int | None = None
) -> float:
    """Returns the floating-point operations of the matrix products in a forward pass.

    A multiply-add counts as two operations. With d = embed_dim, a = num_heads · head_dim, f = mlp_dim, m = number of
    matrix products in a feed-forward block (2, or 3 if it is gated), E and D = encoder and decoder length, P = number
    of predictions and V = vocab_size, a row takes this number of multiply-adds:

        encoder_layers · E · (4da + mdf + 2Ea)
        + decoder_layers · (D · (6da + mdf + 2Da + 2Ea) + E · 2da)
        + P · dV

    Attention counts in full, although the causal mask hides half of the decoder's. Norms, softmax, biases and embedding
    lookups do not count.

    Args:
      config: Configuration of the model.
      shapes: Shapes `(batch, length)` of `encoder_input_tokens` and `decoder_input_tokens` and, if the objective
        computes logits, `(batch, predictions)` of `decoder_target_tokens`.
      encoder_keys: Number of keys that a position of the encoder sees, if they are not all E.
    """
    batch, encoder_length = shapes["encoder_input_tokens"]
    _, decoder_length = shapes["decoder_input_tokens"]
    _, predictions = shapes.get("decoder_target_tokens", (batch, 0))
    d, a, f = config.embed_dim, config.num_heads * config.head_dim, config.mlp_dim
    m, e = len(config.activations) + 1, encoder_length
    keys = e if encoder_keys is None else encoder_keys
    encoder = config.encoder_layers * e * (4 * d * a + m * d * f + 2 * keys * a)
    per_position = 6 * d * a + m * d * f + 2 * decoder_length * a + 2 * e * a
    decoder = config.decoder_layers * (decoder_length * per_position + e * 2 * d * a)
    return 2.0 * batch * (encoder + decoder + predictions * d * config.vocab_size)


def _decoder_masks(batch: Batch, encoder_mask: Mask) -> tuple[Mask, Mask]:
    """Returns the masks of the decoder's self-attention and cross-attention."""
    encoder, decoder = batch.get("encoder_segment_ids"), batch.get("decoder_segment_ids")
    if (encoder is None) != (decoder is None):
        raise ValueError(
            "the batch has segment ids of one stack only. Give encoder_segment_ids and decoder_segment_ids"
        )
    if encoder is None:
        return Mask(causal=True), encoder_mask
    return (
        Mask(causal=True, query_segments=decoder, key_segments=decoder),
        Mask(query_segments=decoder, key_segments=encoder),
    )
