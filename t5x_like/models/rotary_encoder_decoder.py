"""Encoder-decoders of two decoders of `rotary_layers`: T5Gemma, and adaptations of Llama, Qwen and other decoders.

The encoder is the first decoder without its causal mask. The decoder is the second one with an attention to the encoder
after each self-attention, or with one attention to both (`merged_attention`). Their configurations stay as they are, so
that a gin file of a decoder describes a stack, and pretrained decoders fit.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jaxtyping import Array, Float, Int

from t5x_like.adapters import model_adapters
from t5x_like.errors import UserError
from t5x_like.kernels.masks import Mask
from t5x_like.layers import embeddings
from t5x_like.layers.attention import MultiHeadAttention, Sizes
from t5x_like.layers.blocks import Hidden, Inputs, TransformerLayer
from t5x_like.layers.captures import Captures
from t5x_like.layers.layer_kinds import LayerKind, over_layers
from t5x_like.layers.merged_attention import MergedAttention
from t5x_like.layers.stacks import NO_CAPTURES
from t5x_like.models import checks
from t5x_like.models.base import BaseConfig, Batch, StackInfo
from t5x_like.models.encoder_decoder import Cache, Encoded, EncoderDecoder
from t5x_like.models.rotary_decoder import RotaryDecoderConfig
from t5x_like.models.rotary_layers import RotaryConfig

# Fields that both stacks have in common.
_COMMON = ("vocab_size", "dropout_rate", "attention_dropout_rate", "remat", "dtype", "scan_layers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryEncoderDecoderConfig(BaseConfig):
    """The two stacks, and what they have in common: a value here holds for both, and None stands for that of both."""

    # Configuration of the decoder that becomes the encoder.
    encoder: RotaryDecoderConfig
    # Configuration of the decoder. Its `tied_embeddings` says whether the logits use its token embeddings.
    decoder: RotaryDecoderConfig
    # Rows of the embedding tables. None: the stacks'.
    vocab_size: int | None = None
    # Whether both stacks have one table of token embeddings.
    shared_embeddings: bool = False
    # Whether layers of the decoder have one attention to both stacks, with one softmax.
    merged_attention: bool = False
    # Dropout rate of the output of each block. None: the stacks'.
    dropout_rate: float | None = None
    # Dropout rate of the attention weights. None: the stacks'.
    attention_dropout_rate: float | None = None
    # What the backward pass recomputes; see `BaseConfig`. None: the stacks'.
    remat: str | None = None
    # Token that is padding in inputs without segment ids; None if inputs must have them.
    padding_id: int | None = None

    def __post_init__(self):
        for stack in ("encoder", "decoder"):
            _check_stack(self, stack)
        for field in _COMMON:
            if getattr(self, field) is None:
                object.__setattr__(self, field, _value_of_both(self, field))
        super().__post_init__()
        if self.padding_id is not None:
            checks.non_negative_integers(self, "padding_id")
        common = {name: getattr(self, name) for name in _COMMON}
        common |= {"tied_embeddings": self.decoder.tied_embeddings, "special_tokens": None, "adapters": ()}
        for stack in ("encoder", "decoder"):
            object.__setattr__(self, stack, dataclasses.replace(getattr(self, stack), **common))
        for field in ("shared_embeddings", "merged_attention"):
            if getattr(self, field) and self.encoder.embed_dim != self.decoder.embed_dim:
                raise UserError(
                    f"{type(self).__name__}.{field}=True: needs stacks of one width, but embed_dim is "
                    f"{self.encoder.embed_dim} in the encoder and {self.decoder.embed_dim} in the decoder. Give stacks "
                    f"of one width, or {field}=False."
                )

    @property
    def embed_dim(self) -> int:
        """Size of a hidden state of the decoder."""
        return self.decoder.embed_dim

    @property
    def encoder_layers(self) -> int:
        """Number of layers of the encoder."""
        return self.encoder.num_layers

    @property
    def decoder_layers(self) -> int:
        """Number of layers of the decoder."""
        return self.decoder.num_layers

    @property
    def max_length(self) -> int:
        """Longest row of the encoder, in tokens."""
        return self.encoder.max_length

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of both stacks; see `ModelConfig.stacks`."""
        return {name: stack.stack(stack.num_layers) for name, stack in self.parts.items()}

    @property
    def parts(self) -> dict[str, RotaryDecoderConfig]:
        """The decoders whose weights the model may start from; see `BaseConfig.parts`."""
        return {"encoder": self.encoder, "decoder": self.decoder}

    @property
    def encoder_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of the layers of the encoder: a window of w positions is w - 1 on each side."""
        return self.encoder.layer_kinds

    def make_decoder_layer(self, key: jax.Array) -> TransformerLayer:
        """Makes a layer of the decoder."""
        options = self.decoder.attention_options

        def cross(key: jax.Array) -> MultiHeadAttention:
            sizes = Sizes(self.decoder.embed_dim, source=self.encoder.embed_dim)
            return MultiHeadAttention(**options() | {"sizes": sizes}, key=key)

        if self.merged_attention:
            return self.decoder.make_layer(key, {"self_attention": lambda key: MergedAttention(**options(), key=key)})
        return self.decoder.make_layer(key, {"self_attention": self.decoder.make_attention, "cross_attention": cross})

    def make(self, key: jax.Array) -> "RotaryEncoderDecoder":
        """Returns a model with newly initialized parameters; see `ModelConfig.make`."""
        return RotaryEncoderDecoder(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step; see `forward_flops`."""
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return 3.0 * forward_flops(self, shapes)


def _check_stack(config: RotaryEncoderDecoderConfig, name: str) -> None:
    """Checks that a stack is a decoder of `rotary_layers` without parameters beside its layers."""
    stack = getattr(config, name)
    kind = type(stack)
    if not isinstance(stack, RotaryDecoderConfig) or kind.make is not RotaryDecoderConfig.make:
        raise UserError(
            f"{type(config).__name__}.{name}={kind.__name__}: not a decoder of Llama's layer, with rotary positions. "
            "Give the configuration of one, such as @llama.LlamaConfig()."
        )


def _value_of_both(config: RotaryEncoderDecoderConfig, field: str) -> Any:
    """Returns the value of a field in both stacks.

    Raises:
      UserError: They differ.
    """
    encoder, decoder = getattr(config.encoder, field), getattr(config.decoder, field)
    if encoder != decoder:
        raise UserError(
            f"{type(config).__name__}: {field} is {encoder!r} in the encoder and {decoder!r} in the decoder, but both "
            f"have one value. Give {type(config).__name__}.{field}."
        )
    return decoder


def forward_flops(config: RotaryEncoderDecoderConfig, shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Returns the floating-point operations of the matrix products in a forward pass.

    A multiply-add counts as two operations. With the sizes of a stack as in `decoder.forward_flops`, lengths E and D,
    and e the width of the encoder, the attention of a layer of the decoder to the encoder takes D · 2da (unless it is
    merged) + E · 2ek + 2 · D · E · a multiply-adds.

    Args:
      config: Configuration of the model.
      shapes: Shapes `(batch, length)` of `encoder_input_tokens` and `decoder_input_tokens` and, if the objective
        computes logits, `(batch, predictions)` of `decoder_target_tokens`.
    """
    batch, encoder_length = shapes["encoder_input_tokens"]
    _, length = shapes["decoder_input_tokens"]
    _, predictions = shapes.get("decoder_target_tokens", (batch, 0))
    d, e, info = config.decoder.embed_dim, config.encoder.embed_dim, config.stacks["decoder"]
    a, k = info.num_heads * info.head_dim, info.num_kv_heads * info.head_dim
    cross = 0 if config.merged_attention else length * 2 * d * a
    cross += encoder_length * 2 * e * k + 2 * length * encoder_length * a
    reaches = [
        kind.window + (kind.window_after or kind.window) - 1 if kind.window else None for kind in config.encoder_kinds
    ]
    encoder = _stack_multiply_adds(config.encoder, encoder_length, reaches)
    decoder = _stack_multiply_adds(config.decoder, length, config.decoder.attention_windows)
    return 2.0 * batch * (encoder + decoder + info.num_layers * cross + predictions * d * config.vocab_size)


def _stack_multiply_adds(config: RotaryConfig, length: int, reaches: Sequence[int | None]) -> int:
    """Returns the multiply-adds of the layers of a row, whose queries see so many keys per layer; None: all."""
    d, f, m = config.embed_dim, config.mlp_dim, len(config.activations) + 1
    a, k = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
    keys = sum(min(reach or length, length) for reach in over_layers(reaches, config.num_layers))
    return length * (config.num_layers * (2 * d * a + 2 * d * k + m * d * f) + 2 * a * keys)


class RotaryEncoderDecoder(EncoderDecoder):
    """An encoder-decoder. Implements `Model` and `GenerativeEncoderDecoder` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      token_embedder: Table `[vocab_size embed_dim]` of the encoder, or of both stacks.
      decoder_embedder: Table of the decoder, unless it is shared.
      encoder: Layers of the encoder.
      decoder: Layers of the decoder.
      logits: Kernel of the logits, unless they are tied to the table of the decoder.
    """

    def __init__(self, config: RotaryEncoderDecoderConfig, *, key: jax.Array):
        tokens_key, decoder_tokens_key, encoder_key, decoder_key, logits_key = jax.random.split(key, 5)
        self.config = config

        def embedder(stack: RotaryConfig, key: jax.Array) -> embeddings.Embedder:
            options = {"init": stack.initializer, "dtype": config.compute_dtype, "key": key}
            return embeddings.Embedder(config.vocab_size, stack.embed_dim, **options)

        self.token_embedder = embedder(config.encoder, tokens_key)
        if not config.shared_embeddings:
            self.decoder_embedder = embedder(config.decoder, decoder_tokens_key)
        self.encoder = config.encoder.make_stack(encoder_key)
        self.decoder = config.decoder.make_stack(decoder_key, config.make_decoder_layer)
        if not config.decoder.tied_embeddings:
            sizes, init = (config.decoder.embed_dim, config.vocab_size), config.decoder.initializer
            self.logits = embeddings.Unembedding(*sizes, init=init, key=logits_key)

    @property
    def decoder_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of the layers of the decoder, repeated over the layers."""
        return self.config.decoder.layer_kinds

    @property
    def cross_attention(self) -> str:
        """Name of the block that attends to the encoder."""
        return "self_attention" if self.config.merged_attention else "cross_attention"

    @property
    def padding_id(self) -> int | None:
        """Token that is padding in inputs without segment ids; None if inputs must have them."""
        return self.config.padding_id

    @property
    def _decoder_table(self) -> embeddings.Embedder:
        return self.token_embedder if self.config.shared_embeddings else self.decoder_embedder

    def embed_encoder(self, batch: Batch) -> Hidden:
        """Returns the embedded `encoder_input_tokens`.

        Raises:
          UserError: Rows are longer than `max_length`.
        """
        return self.embed_stack(self.config.encoder, self.token_embedder, batch["encoder_input_tokens"])

    def embed_decoder(self, batch: Batch) -> Hidden:
        """Returns the embedded `decoder_input_tokens`; see `embed_encoder`."""
        return self.embed_stack(self.config.decoder, self._decoder_table, batch["decoder_input_tokens"])

    def embed_step(self, tokens: Int[Array, "batch positions"], index: Int[Array, ""]) -> Hidden:
        """Returns the embedded tokens; positions enter through the rotations."""
        return self.embed_stack(self.config.decoder, self._decoder_table, tokens)

    def embed_stack(
        self, stack: RotaryConfig, table: embeddings.Embedder, tokens: Int[Array, "batch length"]
    ) -> Hidden:
        """Returns the input of a stack.

        Args:
          stack: Its configuration.
          table: Its token embeddings.
          tokens: Token ids.
        """
        checks.row_length(stack, tokens.shape[1])
        return stack.scale_embeddings(table(tokens))

    def stack_inputs(self, batch: Batch, stack: str) -> dict[str, Any]:
        """Returns the positions of a stack."""
        return {"positions": batch.get(f"{stack}_positions")}

    def run_encoder(
        self,
        x: Hidden,
        *,
        mask: Mask,
        positions: Int[Array, "batch length"] | None,
        dropout_key: jax.Array | None = None,
        captures: Captures = NO_CAPTURES,
    ) -> tuple[Hidden, dict[str, Array]]:
        """Runs the encoder; see `EncoderDecoder.run_encoder`."""

        def inputs(kind: LayerKind) -> Inputs:
            visible = dataclasses.replace(mask, **kind.reach)
            return {"attention": {"mask": visible, "positions": positions, "rotary": kind.rotary}}

        kinds = map(inputs, self.config.encoder_kinds)
        return self.encoder(x, *kinds, dropout_key=dropout_key, captures=captures)

    def run_decoder(
        self,
        x: Hidden,
        *,
        encoded: Hidden,
        mask: Mask,
        cross_mask: Mask,
        positions: Int[Array, "batch length"] | None,
        dropout_key: jax.Array | None = None,
        captures: Captures = NO_CAPTURES,
    ) -> tuple[Hidden, dict[str, Array]]:
        """Runs the decoder; see `EncoderDecoder.run_decoder`."""

        def inputs(kind: LayerKind) -> Inputs:
            visible = dataclasses.replace(mask, **kind.reach)
            own = {"mask": visible, "positions": positions, "rotary": kind.rotary}
            return self.block_inputs(own, {"mask": cross_mask, "source": encoded})

        return self.decoder(x, *map(inputs, self.decoder_kinds), dropout_key=dropout_key, captures=captures)

    def init_cache(self, batch_size: int, cache_length: int, encoded: Encoded) -> Cache:
        """Creates a cache with the keys and values of the cross-attention; see `EncoderDecoder.init_cache`.

        Raises:
          UserError: `cache_length` is larger than `max_length` of the decoder.
        """
        checks.row_length(self.config.decoder, cache_length + model_adapters.count_positions(self.config))
        return super().init_cache(batch_size, cache_length, encoded)

    def block_inputs(self, own: dict[str, Any], cross: dict[str, Any]) -> Inputs:
        """Returns the inputs of the blocks of a layer of the decoder; see `EncoderDecoder.block_inputs`."""
        if self.config.merged_attention:
            return {"self_attention": {**own, "cross": cross}}
        return super().block_inputs(own, cross)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32."""
        decoder = self.config.decoder
        return decoder.limit_logits((self._decoder_table.attend if decoder.tied_embeddings else self.logits)(hidden))
