"""The base class of decoder-only models: trunk, attention masks, prefill, decoding by position, and FLOPs."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from t5x_like.adapters import model_adapters
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import NO_DROPOUT, Dropout, split_key
from t5x_like.kernels.masks import Mask
from t5x_like.layers import captures as capturing
from t5x_like.layers import stacks
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.cache import KeyValueCache, held_positions, step_mask
from t5x_like.layers.embeddings import position_ids
from t5x_like.layers.layer_kinds import LayerKind, over_layers
from t5x_like.models import checks
from t5x_like.models.base import BaseModel, Batch, ModelConfig
from t5x_like.models.outputs import Outputs

_KEYS, _VALUES = "decoder/layers/attention/key", "decoder/layers/attention/value"


class DecoderConfig(ModelConfig, Protocol):
    """The fields of a decoder's configuration that this module reads.

    Attributes:
      embed_dim: Size of a hidden state.
      mlp_dim: Size within a feed-forward block.
      num_heads: Number of attention heads.
      kv_heads: Number of key and value heads.
      head_dim: Size of the queries, keys and values of a head.
      num_layers: Number of layers.
      max_length: Longest row, in tokens.
      activations: Activations of the feed-forward blocks; with two, their product.
      attention_windows: Attention window of each layer, in positions, repeated over the layers; None: no window.
    """

    embed_dim: int
    mlp_dim: int
    num_heads: int
    head_dim: int
    num_layers: int
    max_length: int
    activations: tuple[str, ...]
    attention_windows: tuple[int | None, ...]

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads."""


@struct.dataclass
class Cache:
    """Keys and values for decoding.

    Attributes:
      self_attention: Keys and values. After `repeat(n)`, each prompt has n neighboring rows.
      first_slot: Index of each prompt's first token, after the padding on the left.
    """

    self_attention: KeyValueCache
    first_slot: Int[Array, " prompts"]

    def repeat(self, n: int) -> "Cache":
        """Returns a cache with every row `n` times, for n continuations per prompt; see `KeyValueCache.repeat`."""
        return self.replace(self_attention=self.self_attention.repeat(n))

    def take(self, rows: Int[Array, " batch"]) -> "Cache":
        """Gathers rows, each from the rows of the same prompt; see `KeyValueCache.take`."""
        return self.replace(self_attention=self.self_attention.take(rows, groups=len(self.first_slot)))


class Decoder(BaseModel):
    """Base class of decoder-only models. Implements `Model` and `GenerativeDecoder` of `models/base.py`.

    A family sets `config` and `decoder` and defines `embed_tokens` and `unembed`. It may override the other methods.

    Attributes:
      config: Configuration of the model.
      decoder: Stack of layers with the block `attention`.
      embedding_dropout: Dropout of the input of the first layer.
    """

    config: DecoderConfig
    decoder: stacks.Stack
    embedding_dropout: Dropout = NO_DROPOUT

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of the layers, repeated over the layers."""
        return tuple(map(LayerKind, self.config.attention_windows))

    def layer_inputs(self, kind: LayerKind, attention: dict[str, Any]) -> Any:
        """Returns the inputs of the layers of a kind, or a function from their index to them; see `Stack`.

        Args:
          kind: The kind.
          attention: The inputs of the self-attention.
        """
        return {"attention": attention}

    def step_inputs(self, index: Int[Array, ""], cache_length: int, num_positions: int) -> dict[str, Any]:
        """Returns the inputs of the attention in a decoding step, apart from its mask and positions.

        Args:
          index: First position of the step in the row, padding on the left included.
          cache_length: Number of slots of the layer.
          num_positions: Number of positions of the step.
        """
        return {}

    def embed_tokens(self, tokens: Int[Array, "batch length"], positions: Int[Array, "batch length"]) -> Hidden:
        """Returns the input of the first layer, before dropout.

        Args:
          tokens: Token ids.
          positions: Position of each token in its segment, from 0.
        """
        raise NotImplementedError

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Embeds the input tokens.

        Args:
          batch: `decoder_input_tokens`, and `decoder_positions` unless they are 0, 1, 2 … along each row.

        Returns:
          The embedded tokens as `decoder`.

        Raises:
          UserError: Rows are longer than `max_length`.
        """
        tokens = batch["decoder_input_tokens"]
        checks.row_length(self.config, tokens.shape[1])
        positions = position_ids(*tokens.shape, batch.get("decoder_positions"))
        return {"decoder": self.embed_tokens(tokens, positions)}

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

        Packed rows have `decoder_segment_ids` and `decoder_positions`. The optional `decoder_prefix` is 1 for tokens to
        which every position of their segment may attend.
        """
        sizes = {"decoder": (self.config.num_layers, self.decoder.capturable)}
        captures = capturing.parse(capture, sizes, edits)["decoder"]
        embedding_key, layers_key = split_key(dropout_key, 2)
        segments, prefix = batch.get("decoder_segment_ids"), batch.get("decoder_prefix")

        def inputs(kind):
            mask = Mask(
                causal=True,
                window=kind.window,
                query_segments=segments,
                key_segments=segments,
                prefix=None if prefix is None else prefix > 0,
            )
            positions = batch.get("decoder_positions")
            return self.layer_inputs(kind, {"mask": mask, "positions": positions, "rotary": kind.rotary})

        hidden, captured = self.decoder(
            self.embedding_dropout(embedded["decoder"], embedding_key),
            *map(inputs, self.layer_kinds),
            dropout_key=layers_key,
            captures=captures,
        )
        hidden, output = captures.state(capturing.OUTPUT, hidden)
        return Outputs(hidden=hidden, captured=captured | output)

    def prefill(
        self, batch: Batch, cache_length: int, num_positions: int = 1
    ) -> tuple[Float[Array, "batch 1 embed"], Cache]:
        """Runs the decoder on whole prompts; see `GenerativeDecoder.prefill`.

        Args:
          batch: Prompts padded on the left, so that the next token of every row has the same slot
            (`decoding.start.left_pad`).
          cache_length: Number of positions of prompts and continuations, without a prompt of the adapters. The cache of
            a layer with a shorter window is as long as the window and the further positions of a step.
          num_positions: Largest number of positions of a step.

        Returns:
          The hidden states of the last tokens, and the cache with the keys and values of the prompts.
        """
        first_slot = jnp.sum(batch["decoder_segment_ids"] == 0, axis=1)
        batch = model_adapters.extend(self.config, batch, padding=first_slot)
        outputs = self.trunk(self.embed(batch), batch, capture=(_KEYS, _VALUES))
        captured = outputs.captured
        cache_length += model_adapters.count_tokens(self.config)
        windows = [kind.window for kind in over_layers(self.layer_kinds, self.decoder.num_layers)]
        lengths = [min(window + num_positions - 1 if window else cache_length, cache_length) for window in windows]
        cache = Cache(
            self_attention=KeyValueCache.from_prompts(
                captured[_KEYS],
                captured[_VALUES],
                lengths=lengths,
                stacked=stacks.is_scanned(self.decoder.layers),
            ),
            first_slot=first_slot,
        )
        return outputs.hidden[:, -1:], cache

    def decode_step(
        self, tokens: Int[Array, "batch positions"], cache: Cache, index: Int[Array, ""]
    ) -> tuple[Float[Array, "batch positions embed"], Cache]:
        """Runs the decoder on one or several positions; see `GenerativeModel.decode_step`.

        Args:
          tokens: Input tokens at slots from `index`.
          cache: Keys and values of all earlier slots.
          index: Slot, the same for all rows, without those of a prompt of the adapters, which come before the row. The
            position in a row is the slot minus the row's first slot.

        Returns:
          The hidden states from which `unembed` predicts the next tokens, and the updated cache.
        """
        index += model_adapters.count_tokens(self.config)
        first_slot = jnp.repeat(cache.first_slot, len(tokens) // len(cache.first_slot))[:, None]
        slots = index + jnp.arange(tokens.shape[1])
        positions = slots - first_slot

        def inputs(layer, kind):
            length = cache.self_attention.length_of(layer)
            held = held_positions(length, slots[-1])
            visible = (held >= first_slot)[:, None] & (held <= slots[:, None])
            if kind.window is not None:
                visible &= held > slots[:, None] - kind.window
            attention = {
                "mask": step_mask(visible),
                "positions": positions,
                "key_positions": held - first_slot,
                "rotary": kind.rotary,
                **self.step_inputs(index, length, tokens.shape[1]),
            }
            return self.layer_inputs(kind, attention)

        x, self_attention = self.decoder.step(
            self.embed_tokens(tokens, positions),
            cache.self_attention,
            index,
            *(inputs(layer, kind) for layer, kind in enumerate(self.layer_kinds[: self.decoder.num_layers])),
        )
        return x, cache.replace(self_attention=self_attention)


def check_attention_windows(config: DecoderConfig) -> None:
    """Checks the attention windows, and converts the list that gin passes to a tuple.

    Raises:
      UserError: There is no window, or one is neither None nor a positive integer.
    """
    object.__setattr__(config, "attention_windows", tuple(config.attention_windows))
    windows, name = config.attention_windows, type(config).__name__
    for window in windows:
        if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 1):
            raise UserError(
                f"{name}.attention_windows={windows}: {window!r} is not a positive integer. Give a number of "
                "positions, or None for no window."
            )
    if not windows:
        raise UserError(f"{name}.attention_windows=(): empty. Give (None,) for no windows.")


def forward_flops(config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Returns the floating-point operations of the matrix products in a forward pass.

    A multiply-add counts as two operations. With d = embed_dim, a = num_heads · head_dim, k = kv_heads · head_dim,
    f = mlp_dim, m = number of matrix products in a feed-forward block (2, or 3 if it is gated), L = length,
    W = attention window of a layer (at most L, and L without a window), P = number of predictions and V = vocab_size, a
    row takes this number of multiply-adds:

        Σ over layers of L · (2da + 2dk + mdf + 2Wa)
        + P · dV

    Attention counts the whole window, although the causal mask hides a part of it. Norms, softmax, biases, rotary
    embeddings and embedding lookups do not count.

    Args:
      config: Configuration of the model.
      shapes: Shape `(batch, length)` of `decoder_input_tokens` and, if the objective computes logits,
        `(batch, predictions)` of `decoder_target_tokens`.
    """
    batch, length = shapes["decoder_input_tokens"]
    _, predictions = shapes.get("decoder_target_tokens", (batch, 0))
    d, f, m = config.embed_dim, config.mlp_dim, len(config.activations) + 1
    a, k = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
    windows = [min(window or length, length) for window in over_layers(config.attention_windows, config.num_layers)]
    layers = config.num_layers * (2 * d * a + 2 * d * k + m * d * f) + 2 * a * sum(windows)
    return 2.0 * batch * (length * layers + predictions * d * config.vocab_size)
