"""LongT5 (Guo et al. 2022, arXiv:2112.07916): T5 1.1 whose encoder attends to a window and to means of blocks.

A token of the encoder sees `local_radius` tokens on each side. With `global_block_size` (transient global attention,
section 3.1.2) it also sees a global token per block of so many tokens: the norm of the sum of the block's states, made
anew in each layer. The tokens after the last whole block of a text belong to that block; a text without a whole block
has no global tokens. Global tokens have position biases of their own, by the number of blocks between them and the
token. In packed rows, blocks are those of each text.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx, struct
from jaxtyping import Array, Bool, Float, Int

from t5x_like.kernels import local_global_attention
from t5x_like.kernels.contraction import einsum_in_float32
from t5x_like.kernels.local_global_attention import GlobalKeys, Window
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.prefix_keys import positions_in_segments
from t5x_like.kernels.relative_bias import RelativeBias
from t5x_like.kernels.score_bias import ScoreBias
from t5x_like.layers.attention import MultiHeadAttention, Sizes
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.captures import NO_EDITS, LayerEdits
from t5x_like.models import checks, t5
from t5x_like.models.encoder_decoder import forward_flops
from t5x_like.models.t5 import T5, T5Config

# Number of blocks of keys that a block of queries is multiplied with. Texts without more blocks have dense scores.
_WINDOWS = 3


@dataclasses.dataclass(frozen=True)
class LongT5Config(T5Config):
    """Sizes and hyperparameters of LongT5; by default LongT5 base with transient global attention."""

    # Size of a hidden state (d_model).
    embed_dim: int = 768
    # Size within a feed-forward block (d_ff).
    mlp_dim: int = 2048
    # Number of attention heads.
    num_heads: int = 12
    # Number of encoder layers.
    encoder_layers: int = 12
    # Number of decoder layers.
    decoder_layers: int = 12
    # Tokens on each side that a token of the encoder sees.
    local_radius: int = 127
    # Number of tokens of the encoder that a global token summarizes. None: no global tokens (local attention).
    global_block_size: int | None = 16

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "local_radius")
        if self.global_block_size is not None:
            checks.positive_integers(self, "global_block_size")

    def make(self, key: jax.Array) -> "LongT5":
        """Returns a LongT5 with newly initialized parameters; see `ModelConfig.make`."""
        return LongT5(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step; see `encoder_decoder.forward_flops`.

        Those of the sums of blocks do not count.
        """
        length = shapes["encoder_input_tokens"][1]
        blocks = 0 if self.global_block_size is None else length // self.global_block_size
        keys = min(2 * self.local_radius + 1, length) + blocks
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return 3.0 * forward_flops(self, shapes, encoder_keys=keys)


@struct.dataclass
class Blocks:
    """The global tokens of rows, whose slots are as many as whole blocks fit in a row.

    Attributes:
      member: 1 for the slot of a token's block.
      is_visible: Whether a token sees a slot, one of its own text.
      bias: Position biases of the slots.
      near_bias: Position biases of `Window.distances`.
    """

    member: Float[Array, "batch length slots"]
    is_visible: Bool[Array, "batch length slots"]
    bias: Float[Array, "batch heads length slots"]
    near_bias: Float[Array, "heads size keys"]


@struct.dataclass
class BlocksBias:
    """The bias of global tokens, and of the tokens after them. Implements `ScoreBias`.

    Attributes:
      tokens: The bias of the tokens.
      blocks: The bias of the slots of global tokens.
    """

    tokens: RelativeBias
    blocks: Float[Array, "batch heads length slots"]

    def terms(self, q: Array, k: Array, **_) -> None:
        """None: the bias of a slot depends on the block of the query."""
        return None

    def materialize(self, q: Array, k: Array, **options) -> Float[Array, "batch heads q_len slots+length"]:
        """Returns the bias of all pairs of queries and keys; see `ScoreBias.materialize`."""
        tokens = self.tokens.materialize(q, k[:, self.blocks.shape[-1] :], **options)
        tokens = jnp.broadcast_to(tokens, (len(self.blocks), *tokens.shape[1:]))
        return jnp.concatenate([self.blocks, tokens], axis=-1)


def block_slots(segments: Int[Array, "batch length"], size: int) -> Int[Array, "batch length"]:
    """Returns the slot of each token's block: the number of whole blocks before it in the row; -1 for none.

    Args:
      segments: Segment of each token, 0 for padding.
      size: Number of tokens of a block.
    """
    position, index = positions_in_segments(segments, segments.shape[1]), jnp.arange(segments.shape[1])
    is_end = (position % size == size - 1) & (segments != 0)
    earlier = jnp.cumsum(is_end, axis=1) - is_end
    # The end of a token's block, if the block is whole.
    end = index + size - 1 - position % size
    of_end = jnp.take_along_axis(segments, jnp.minimum(end, segments.shape[1] - 1), axis=1)
    is_whole = (end < segments.shape[1]) & (of_end == segments)
    is_member = (segments != 0) & (is_whole | (position >= size))
    return jnp.where(is_member, earlier - ~is_whole, -1)


class TransientGlobalAttention(MultiHeadAttention):
    """Self-attention to a window and to the global tokens of blocks.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      global_norm: Norm of the sums of blocks.
    """

    def __init__(self, config: LongT5Config, *, key: jax.Array):
        super().__init__(Sizes(config.embed_dim), **t5.attention_settings(config), key=key)
        self.global_norm = t5.make_norm(config)
        self.radius = config.local_radius

    def attend(
        self,
        x: Float[Array, "batch length embed"],
        *,
        mask: Mask,
        bias: ScoreBias,
        blocks: Blocks,
        segments: Int[Array, "batch length"],
        dropout_key: jax.Array | None = None,
        capture: frozenset[str] = frozenset(),
        edits: LayerEdits = NO_EDITS,
        **options,
    ) -> tuple[Float[Array, "batch length heads kv"], dict[str, Array]]:
        """Computes self-attention; see `MultiHeadAttention.attend`.

        Captured keys, values, scores and probabilities are those of tokens, without global ones; edits get both. A row
        that is longer than its windows is divided into blocks, unless arrays are captured or edited, or the attention
        has a prefix.

        Args:
          x: Activations.
          mask: The window and the segments.
          bias: Position biases of the slots and of the tokens.
          blocks: The global tokens.
          segments: Segment of each token, 0 for padding.
          dropout_key: Random key of dropout; None disables dropout.
          capture: See `MultiHeadAttention.attend`.
          edits: See `MultiHeadAttention.attend`.
          **options: See `MultiHeadAttention.attend`.
        """
        length, window = x.shape[1], Window(self.radius, segments)
        sums = einsum_in_float32("bls,ble->bse", blocks.member.astype(x.dtype), x)
        of_blocks = self.keys_values(self.global_norm(sums.astype(x.dtype)), dropout_key=dropout_key)
        of_tokens = self.keys_values(x, dropout_key=dropout_key)
        if length > _WINDOWS * window.size and not capture and not edits.edits and self.adapter is None:
            output = local_global_attention.attention(
                self.query(x, dropout_key=dropout_key),
                *of_tokens,
                blocks.near_bias[None, :, None],
                window=window,
                globals_=GlobalKeys(*of_blocks, blocks.is_visible, blocks.bias),
                scale=self.scale,
                dropout=self.dropout,
                dropout_key=dropout_key,
            )
            return output, {}
        keys_values = tuple(jnp.concatenate(pair, axis=1) for pair in zip(of_blocks, of_tokens, strict=True))
        visible = jnp.broadcast_to(mask.materialize(length, length)[:, 0], (len(x), length, length))
        output, captured = super().attend(
            x,
            mask=Mask(dense=jnp.concatenate([blocks.is_visible, visible], axis=-1)),
            bias=bias,
            keys_values=keys_values,
            positions=positions_in_segments(segments, length),  # of the distance to a prefix
            dropout_key=dropout_key,
            capture=capture,
            edits=edits,
            **options,
        )
        own = keys_values[0].shape[1] - length
        for name in captured.keys() & {"key", "value"}:
            captured[name] = captured[name][:, own:]
        for name in captured.keys() & {"scores", "probabilities"}:
            prefix, keys = jnp.split(captured[name], [captured[name].shape[-1] - own - length], axis=-1)
            captured[name] = jnp.concatenate([prefix, keys[..., own:]], axis=-1)
        return output, captured


class EncoderStack(t5.Stack):
    """The layers of the encoder, the position biases of its tokens and of its global tokens, and a norm.

    Attributes:
      global_relative_bias: Position biases of global tokens by the number of blocks; only if there are such.
    """

    def make_layer(self, config: LongT5Config, attentions: tuple[str, ...], key: jax.Array) -> TransformerLayer:
        """Makes a layer of the stack."""
        if config.global_block_size is None:
            return super().make_layer(config, attentions, key)
        return t5.make_layer(
            config, attentions, key, lambda config, name, key: TransientGlobalAttention(config, key=key)
        )

    def make_bias(self, config: LongT5Config, *, bidirectional: bool, key: jax.Array) -> None:
        """Creates the tables of the position biases, which the layers share."""
        super().make_bias(config, bidirectional=bidirectional, key=key)
        if config.global_block_size is not None:
            self.global_relative_bias = t5.relative_bias(
                config, bidirectional=bidirectional, key=jax.random.fold_in(key, 1)
            )
        self.radius, self.block_size = config.local_radius, config.global_block_size

    def self_attention_inputs(self, x: Hidden, mask: Mask, *, bidirectional: bool) -> dict[str, Any]:
        """Returns the inputs of the self-attention of all layers; see `t5.Stack.self_attention_inputs`."""
        inputs = super().self_attention_inputs(
            x, dataclasses.replace(mask, window=self.radius + 1), bidirectional=bidirectional
        )
        if self.block_size is None:
            return inputs
        length = x.shape[1]
        segments = mask.key_valid.astype(jnp.int32) if mask.query_segments is None else mask.query_segments
        slots = block_slots(segments, self.block_size)
        number = np.arange(max(length // self.block_size, 1))
        member = (slots[..., None] == number).astype(jnp.float32)
        # Slots of a text have a token of its segment.
        segment_of_slot = jnp.max(jnp.where(member > 0, segments[..., None], 0), axis=1)
        # A product instead of a gather, as in `RelativePositionBias.of_distances`.
        of_slots = self.global_relative_bias.of_distances(number[None, :] - number[:, None])
        bias = jnp.einsum("bls,hst->bhlt", member, of_slots, precision=jax.lax.Precision.HIGHEST)
        blocks = Blocks(
            member=member,
            is_visible=(segments[..., None] == segment_of_slot[:, None]) & (segments != 0)[..., None],
            bias=bias,
            near_bias=self.relative_bias.of_distances(Window(self.radius, segments).distances),
        )
        tokens = RelativeBias(self.relative_bias.of_distances(np.arange(1 - length, length)))
        bias = self.relative_bias.after_prefix(BlocksBias(tokens, bias))
        return inputs | {"bias": bias, "blocks": blocks, "segments": segments}


class LongT5(T5):
    """LongT5; see `T5`."""

    def _make_encoder(self, config: LongT5Config, key: jax.Array) -> nnx.Module:
        return EncoderStack(config, config.encoder_layers, attentions=("attention",), bidirectional=True, key=key)
