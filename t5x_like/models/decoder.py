"""What decoder-only families share: the trunk, its masks, filling a cache from prompts, and one position at a time."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import NO_DROPOUT, Dropout, split_key
from t5x_like.kernels.masks import Mask
from t5x_like.layers import captures as capturing
from t5x_like.layers import stacks
from t5x_like.layers.attention import KeyValueCache
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.embeddings import position_ids
from t5x_like.models import checks
from t5x_like.models.base import Batch, ModelConfig
from t5x_like.models.outputs import Outputs

_KEYS, _VALUES = "decoder/layers/attention/key", "decoder/layers/attention/value"


class DecoderConfig(ModelConfig, Protocol):
    """The fields of a decoder's configuration that this module reads.

    Attributes:
      embed_dim: size of a hidden state.
      mlp_dim: size within a feed-forward block.
      num_heads: number of attention heads.
      kv_heads: number of key and value heads.
      head_dim: size of the queries, keys and values of a head.
      num_layers: number of layers.
      max_length: longest row, in tokens.
      activations: activations of the feed-forward blocks; with two, their product.
      attention_windows: attention window of each layer, in positions, repeated over the layers; None: no window.
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
    """What decoding carries from step to step.

    Attributes:
      self_attention: keys and values, a slot for each position of the row.
      first_slot: the slot of each row's first token; those before it are empty.
    """

    self_attention: KeyValueCache
    first_slot: Int[Array, "batch"]


class Decoder(nnx.Module):
    """A decoder-only network over what its family defines; its interface is "The model seam" in docs/architecture.md.

    A family sets `config` (with `num_layers`, `kv_heads`, `head_dim`, `max_length` and `attention_windows`) and
    `decoder`, a stack whose layers have the block `attention`, and defines `embed_tokens` and `unembed`.

    Attributes:
      embedding_dropout: of what goes into the first layer.
    """

    config: DecoderConfig
    decoder: stacks.Stack
    embedding_dropout: Dropout = NO_DROPOUT

    def embed_tokens(self, tokens: Int[Array, "batch length"], positions: Int[Array, "batch length"]) -> Hidden:
        """What goes into the first layer, before dropout."""
        raise NotImplementedError

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """The vectors of `decoder_input_tokens`, as `decoder`; positions count along the row where none are given."""
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
    ) -> Outputs:
        """Everything between embeddings and logits.

        Args:
          embedded: as `embed` returns.
          batch: `decoder_segment_ids` and `decoder_positions` where rows are packed; `decoder_prefix` where there are
            tokens that every position of their segment may see.
          dropout_key: None for no dropout.
          capture: names of what to hand back beside the result: `decoder/layers/WHAT` with a leading dimension
            `layers`, or `decoder/layers/INDEX/WHAT`. WHAT is `hidden` (a layer's output) or `attention/query`, `/key`,
            `/value`, `/scores` (before the softmax, with the mask) or `/probabilities`. Layers of which scores or
            probabilities are captured use the reference attention.
        """
        captures = capturing.parse(capture, {"decoder": (self.config.num_layers, self.decoder.capturable)})
        embedding_key, layers_key = split_key(dropout_key, 2)
        segments, prefix = batch.get("decoder_segment_ids"), batch.get("decoder_prefix")

        def inputs(window):
            mask = Mask(
                causal=True,
                window=window,
                query_segments=segments,
                key_segments=segments,
                prefix=None if prefix is None else prefix > 0,
            )
            return {"attention": {"mask": mask, "positions": batch.get("decoder_positions")}}

        hidden, captured = self.decoder(
            self.embedding_dropout(embedded["decoder"], embedding_key),
            *map(inputs, self.config.attention_windows),
            dropout_key=layers_key,
            captures=captures["decoder"],
        )
        return Outputs(hidden=hidden, captured=captured)

    def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None, capture: Sequence[str] = ()) -> Outputs:
        """`trunk(embed(batch), batch)`."""
        return self.trunk(self.embed(batch), batch, dropout_key=dropout_key, capture=capture)

    def prefill(self, batch: Batch, cache_length: int) -> Cache:
        """Reads prompts in one pass.

        Args:
          batch: rows whose padding is in front, so that the next token of all of them has the same slot: as
            `decoding.prompts.left_pad` makes them.
          cache_length: slots of the cache, those of the prompts included.
        """
        captured = self(batch, capture=(_KEYS, _VALUES)).captured
        scanned = stacks.is_scanned(self.decoder.layers)

        def cached(x):
            x = jnp.swapaxes(x, 2, 3)  # [layers, batch, heads, length, kv]
            x = jnp.pad(x, ((0, 0),) * 3 + ((0, cache_length - x.shape[3]), (0, 0)))
            return x if scanned else tuple(x)

        return Cache(
            self_attention=KeyValueCache(key=cached(captured[_KEYS]), value=cached(captured[_VALUES])),
            first_slot=jnp.sum(batch["decoder_segment_ids"] == 0, axis=1),
        )

    def decode_step(
        self, tokens: Int[Array, "batch 1"], cache: Cache, index: Int[Array, ""]
    ) -> tuple[Float[Array, "batch 1 embed"], Cache]:
        """One position.

        Args:
          tokens: the input at slot `index`.
          cache: holds the slots before.
          index: the same for all rows; a row's position is what lies between its first slot and this one.

        Returns:
          What `unembed` reads to predict the next token, and the cache with this position in it.
        """
        slots = jnp.arange(cache.self_attention.length)
        present = (slots >= cache.first_slot[:, None]) & (slots <= index)
        positions = (index - cache.first_slot)[:, None]

        def inputs(window):
            near = present if window is None else present & (slots > index - window)
            return {"attention": {"mask": Mask(key_valid=near), "positions": positions}}

        x, self_attention = self.decoder.step(
            self.embed_tokens(tokens, positions),
            cache.self_attention,
            index,
            *map(inputs, self.config.attention_windows),
        )
        return x, cache.replace(self_attention=self_attention)


def check_attention_windows(config: DecoderConfig) -> None:
    """Refuses windows that no layers can take turns with; turns the list that gin hands over into a tuple.

    Raises:
      UserError: a window is no whole number of at least 1, or their number does not divide `num_layers`.
    """
    object.__setattr__(config, "attention_windows", tuple(config.attention_windows))
    windows, name = config.attention_windows, type(config).__name__
    for window in windows:
        if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 1):
            raise UserError(
                f"{name}.attention_windows={windows}: {window!r} must be a whole number of positions, at least 1, or "
                "None for no window"
            )
    if not windows or config.num_layers % len(windows):
        raise UserError(
            f"{name}.attention_windows={windows} are taken in turns, so their number must divide "
            f"num_layers={config.num_layers}"
        )


def forward_flops(config: DecoderConfig, batch: int, length: int) -> float:
    """Floating-point operations of the matrix products in a forward pass, a multiply-add as two.

    With d = embed_dim, a = num_heads · head_dim, k = kv_heads · head_dim, f = mlp_dim, m = number of products in a
    feed-forward block (2 or 3), L the length, W the window of a layer's attention (L without one, or where it is
    longer) and V the vocabulary, a row costs two operations for each of

        Σ over layers of L · (2da + 2dk + mdf + 2Wa)
        + L · dV

    Attention counts the whole window although causality hides a part of it; norms, softmax, biases, rotations and
    lookups do not count.

    Args:
      config: the network.
      batch: rows.
      length: L.
    """
    d, f, m = config.embed_dim, config.mlp_dim, len(config.activations) + 1
    a, k = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
    windows = [min(window or length, length) for window in config.attention_windows]
    layers = config.num_layers * (2 * d * a + 2 * d * k + m * d * f + 2 * a * sum(windows) / len(windows))
    return 2.0 * batch * length * (layers + d * config.vocab_size)
