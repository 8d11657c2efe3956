"""A transformer's layer: blocks one after the other, each with a residual connection and a norm."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.layers.attention import KeyValueCache
from t5x_like.layers.captures import Captures
from t5x_like.layers.projections import shard_activation

Hidden = Float[Array, "batch length embed"]
# What the blocks of a layer read beside their input, by the block's name; a block with None there is left out.
Inputs = Mapping[str, Mapping[str, Any] | None]


class Block(Protocol):
    """What a layer is made of: attention or a feed-forward block.

    Attributes:
      CAPTURABLE: names of what a call can hand back beside its output.
    """

    CAPTURABLE: Sequence[str]

    def __call__(
        self, x: Hidden, *, dropout_key: jax.Array | None, capture: frozenset[str], **inputs
    ) -> tuple[Hidden, dict[str, Array]]:
        """The output, and what was captured by name."""


class TransformerLayer(nnx.Module):
    """Named blocks, each with a residual connection around it and a norm.

    The norm stands in front of the block (`pre`: x + block(norm(x)), as in GPT-2, T5 and Llama) or after the sum
    (`post`: norm(x + block(x)), as in Vaswani et al. 2017, GPT-1, BERT and BART).

    Attributes:
      NAME, NAME_norm: a block and its norm, for each block.
    """

    def __init__(
        self,
        blocks: Mapping[str, Block],
        make_norm: Callable[[], nnx.Module],
        *,
        norm_position: Literal["pre", "post"],
        dropout: Dropout,
    ):
        """Args:
        blocks: by name, in order; self-attention comes first.
        make_norm: makes the norm of a block.
        norm_position: see above.
        dropout: of each block's output before it is added.
        """
        if norm_position not in ("pre", "post"):
            raise UserError(f"norm_position={norm_position!r} must be 'pre' or 'post'")
        for name, block in blocks.items():
            setattr(self, name, block)
            setattr(self, f"{name}_norm", make_norm())
        self.names, self.norm_position, self.dropout = tuple(blocks), norm_position, dropout

    @property
    def capturable(self) -> tuple[str, ...]:
        """Names of what can be captured: `hidden` (the layer's output) and what the blocks offer."""
        return ("hidden", *(f"{name}/{what}" for name in self.names for what in getattr(self, name).CAPTURABLE))

    def __call__(
        self, x: Hidden, inputs: Inputs, *, dropout_key: jax.Array | None = None, captures: Captures
    ) -> tuple[Hidden, dict[str, Array]]:
        """The layer's output, and what was captured."""
        keys = split_key(dropout_key, 2 * len(self.names))
        parts = {}
        for name, block_key, key in zip(self.names, keys[::2], keys[1::2], strict=True):
            if inputs.get(name, {}) is None:
                continue

            def block(x, name=name, block_key=block_key):
                options = {"dropout_key": block_key, "capture": captures.within(name)}
                return getattr(self, name)(x, **options, **inputs.get(name, {}))

            x, parts[name] = self._residual(name, block, x, key)
        x = shard_activation(x, "embed")
        return x, captures.collect(hidden=x, **parts)

    def step(
        self, x: Float[Array, "batch 1 embed"], cache: KeyValueCache, layer: int | Int[Array, ""], index, inputs: Inputs
    ) -> tuple[Float[Array, "batch 1 embed"], KeyValueCache]:
        """One new position; the earlier ones' keys and values are in `cache`, which it returns with this one in it.

        Args:
          x: of the new position.
          cache: of the self-attention.
          layer: which layer of the cache this is.
          index: where in the cache the new position goes.
          inputs: what the blocks read; the self-attention's mask says which entries of the cache there are.
        """
        first, *others = self.names
        x, cache = self._residual(
            first, lambda x: getattr(self, first).step(x, cache, layer, index, **inputs[first]), x
        )
        for name in others:
            x, _ = self._residual(name, lambda x, name=name: getattr(self, name)(x, **inputs.get(name, {})), x)
        return x, cache

    def _residual(self, name, block, x, key=None):
        """The sum of `x` and a block's dropped output, with the norm where it belongs, and what else the block gave."""
        norm = getattr(self, f"{name}_norm")
        update, other = block(norm(x) if self.norm_position == "pre" else x)
        x = x + self.dropout(update, key)
        return (norm(x) if self.norm_position == "post" else x), other
