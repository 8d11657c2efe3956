"""A transformer layer: a sequence of blocks, each with a residual connection and a norm."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.layers.cache import KeyValueCache
from t5x_like.layers.captures import Captures
from t5x_like.layers.projections import gather_residual, scatter_residual, shard_residual

Hidden = Float[Array, "batch length embed"]
# Block name -> keyword arguments of the block. A block whose value is None is skipped.
Inputs = Mapping[str, Mapping[str, Any] | None]
NormPosition = Literal["pre", "post", "output", "both", "none"]


class Block(Protocol):
    """An attention or feed-forward block.

    Attributes:
      CAPTURABLE: Names of the arrays that a call can return in addition to its output.
    """

    CAPTURABLE: Sequence[str]

    def __call__(
        self, x: Hidden, *, dropout_key: jax.Array | None, capture: frozenset[str], **inputs
    ) -> tuple[Hidden, dict[str, Array]]:
        """Applies the block.

        Args:
          x: Input activations.
          dropout_key: Random key for dropout; None disables dropout.
          capture: Names from `CAPTURABLE`.
          **inputs: Further inputs of the block, such as a mask, and `edits` of `CAPTURABLE` arrays, if there are any.

        Returns:
          The output, and the captured arrays by name.
        """


class TransformerLayer(nnx.Module):
    """Named blocks, each with a residual connection and its norms.

    The position of the norm of a block decides what it computes:

    * `"pre"`: x + block(norm(x)), as in GPT-2, T5 and Llama;
    * `"post"`: norm(x + block(x)), as in Vaswani et al. 2017, GPT-1, BERT and BART;
    * `"output"`: x + norm(block(x)), as in OLMo 2;
    * `"both"`: x + output_norm(block(norm(x))), as in Gemma 2;
    * `"none"`: x + block(x), for a block that normalizes its own input.

    A block and its norm are the attributes `NAME` and `NAME_norm`, and with `"both"`, `NAME_output_norm`.

    Args:
      blocks: Block name -> block, in order. Self-attention comes first.
      make_norm: Returns the norm of a block.
      norm_position: Position of the norms, or of the norm of each block.
      dropout: Dropout of each block's output before the residual sum, or of the output of each block by name.

    Attributes:
      adapter: None, or a module that changes the residual sum of the last block, and whose `select` returns the output
        of the layer from its input and output; see `adapters.base`.

    Raises:
      UserError: `norm_position` is unknown.
    """

    def __init__(
        self,
        blocks: Mapping[str, Block],
        make_norm: Callable[[], nnx.Module],
        *,
        norm_position: NormPosition | Mapping[str, NormPosition],
        dropout: Dropout | Mapping[str, Dropout],
    ):
        positions = dict.fromkeys(blocks, norm_position) if isinstance(norm_position, str) else dict(norm_position)
        for name, block in blocks.items():
            if positions[name] not in get_args(NormPosition):
                known = ", ".join(map(repr, get_args(NormPosition)))
                raise UserError(f"norm_position={positions[name]!r} is unknown. Give one of {known}.")
            setattr(self, name, block)
            if positions[name] != "none":
                setattr(self, f"{name}_norm", make_norm())
            if positions[name] == "both":
                setattr(self, f"{name}_output_norm", make_norm())
        self.names, self.norm_positions = tuple(blocks), positions
        self.dropout = dict.fromkeys(blocks, dropout) if isinstance(dropout, Dropout) else dict(dropout)
        self.adapter: nnx.Module | None = None

    @property
    def last_norm(self) -> nnx.Module:
        """The norm of the last block."""
        return getattr(self, f"{self.names[-1]}_norm")

    @property
    def capturable(self) -> tuple[str, ...]:
        """Names that can be captured: `hidden` for the layer's output, and `BLOCK/NAME` for arrays of its blocks."""
        return ("hidden", *(f"{name}/{what}" for name in self.names for what in getattr(self, name).CAPTURABLE))

    def __call__(
        self,
        x: Hidden,
        inputs: Inputs,
        *,
        dropout_key: jax.Array | None = None,
        captures: Captures,
        average: Callable[[int, Hidden], Hidden] | None = None,
    ) -> tuple[Hidden, dict[str, Array]]:
        """Applies all blocks.

        Args:
          x: Input activations.
          inputs: Block name -> keyword arguments of the block; a block with None is skipped.
          dropout_key: Random key for dropout; None disables dropout.
          captures: What to capture and to edit.
          average: Returns the input of the next block, from the number of a block and its residual sum; None: the sum.

        Returns:
          The output, and the captured arrays by name.
        """
        keys = split_key(dropout_key, 2 * len(self.names))
        before, captured = x, {}
        for number, (name, block_key, key) in enumerate(zip(self.names, keys[::2], keys[1::2], strict=True)):
            if inputs.get(name, {}) is None:
                continue

            def block(x, name=name, block_key=block_key):
                options = {"dropout_key": block_key, **captures.within(name)}
                return getattr(self, name)(x, **options, **inputs.get(name, {}))

            x, captured[name] = self.residual(name, block, x, key)
            x = x if average is None else average(number, x)
        x = self.select(before, x, dropout_key)
        x = captures.edits("hidden", shard_residual(x))
        return x, captures.collect(hidden=x, **captured)

    def step(
        self, x: Float[Array, "batch 1 embed"], cache: KeyValueCache, layer: int | Int[Array, ""], index, inputs: Inputs
    ) -> tuple[Float[Array, "batch 1 embed"], KeyValueCache]:
        """Applies all blocks to one new position.

        Args:
          x: Activations of the new position.
          cache: Keys and values of the self-attention at earlier positions.
          layer: Index of this layer in the cache.
          index: Index of the new position in the cache.
          inputs: Block name -> keyword arguments of the block. The mask of the self-attention selects the valid cache
            positions.

        Returns:
          The output and the updated cache.
        """
        first, *others = self.names
        x, cache = self.residual(first, lambda x: getattr(self, first).step(x, cache, layer, index, **inputs[first]), x)
        for name in others:
            x, _ = self.residual(name, lambda x, name=name: getattr(self, name)(x, **inputs.get(name, {})), x)
        return x, cache

    def select(self, before: Hidden, after: Hidden, dropout_key: jax.Array | None) -> Hidden:
        """Returns the output of the layer, or what its adapter selects from the input and the output.

        Args:
          before: Input of the layer.
          after: Output of its last block.
          dropout_key: Random key for dropout; None disables dropout.
        """
        return after if self.adapter is None else self.adapter.select(before, after, dropout_key)

    def residual(
        self, name: str, block: Callable[[Hidden], tuple[Hidden, Any]], x: Hidden, key: jax.Array | None = None
    ) -> tuple[Hidden, Any]:
        """Applies a block with dropout, residual and norms.

        Args:
          name: Name of the block, whose norms are applied.
          block: Computes the update of `x`, and another output.
          x: Input activations.
          key: Random key of the dropout of the update; None disables it.

        Returns:
          The output, and the other output of the block.
        """
        position, norm = self.norm_positions[name], getattr(self, f"{name}_norm", None)
        update, other = block(gather_residual(norm(x) if position in ("pre", "both") else x))
        update = scatter_residual(update)
        if position in ("output", "both"):
            update = (norm if position == "output" else getattr(self, f"{name}_output_norm"))(update)
        x = x + self.dropout[name](update, key)
        if self.adapter is not None and name == self.names[-1]:
            x = self.adapter(x, norm if position == "post" else None)
        return (norm(x) if position == "post" else x), other
