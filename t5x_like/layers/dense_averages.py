"""Depth-weighted averages: each block reads a learned average of all earlier outputs (DenseFormer).

Source: Pagliardini et al. 2024, arXiv:2402.02622, section 3, after each block as in the released code of GPT-BERT.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.layers import stacks
from t5x_like.layers.blocks import Hidden, Inputs, TransformerLayer

BLOCKS = 2  # of a layer: attention and feed-forward


class DenselyAveragedStack(stacks.Stack):
    """A stack whose blocks read averages of the first input and of the residual sums of all blocks before.

    The residual sum of block i, from 0, is replaced by the sum over k ≤ i + 1 of w_ik times state k: state 0 is the
    input of the stack, and state k + 1 the residual sum of block k.

    Args:
      *args: See `Stack`, also for the keyword arguments.

    Attributes:
      averages: float32 `[weights]`: the weights of block 0, of block 1, …, initially 1 for the last state of each.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        numbers = range(2, BLOCKS * self.num_layers + 2)
        ends = np.cumsum(numbers)
        self.parts = tuple(zip((ends - numbers).tolist(), ends.tolist(), strict=True))
        initial = np.zeros(ends[-1], np.float32)
        initial[ends - 1] = 1.0
        self.averages = nnx.Param(jnp.asarray(initial), axes=(None,))

    def first_carry(self, x: Hidden, order: Sequence[int]) -> tuple[Hidden, Any]:
        """Returns the input of the first layer, and the states: a tuple, or for a scan an array with room for all.

        Raises:
          UserError: The layers are not the first ones in their order, for which alone there are weights.
        """
        if list(order) != list(range(len(order))):
            raise UserError(
                f"layers {list(order)}: only layers from the first on can be applied, since the weights of averages "
                "are those of earlier layers. Give an objective that applies all layers once."
            )
        if not stacks.is_scanned(self.layers):
            return x, (x,)
        states = jnp.zeros((BLOCKS * len(order) + 1, *x.shape), x.dtype)
        return x, states.at[0].set(x)

    def apply_layer(
        self,
        layer: TransformerLayer,
        carry: tuple[Hidden, Any],
        index: int | Int[Array, ""],
        inputs: Inputs,
        **options: Any,
    ) -> tuple[tuple[Hidden, Any], dict[str, Array]]:
        """Applies a layer and averages after each of its blocks; see `Stack.apply_layer`."""
        x, states = carry

        def average(block: int, x: Hidden) -> Hidden:
            nonlocal states
            number = BLOCKS * index + block
            if isinstance(states, tuple):
                states = (*states, x)
                start, end = self.parts[number]
                weighted = zip(self.averages[...][start:end], states, strict=True)
                return sum(weight * state.astype(jnp.float32) for weight, state in weighted).astype(x.dtype)
            states = jax.lax.dynamic_update_index_in_dim(states, x, number + 1, 0)
            weights = jax.lax.dynamic_index_in_dim(self._matrix(len(states)), number, keepdims=False)
            return jnp.tensordot(weights, states.astype(jnp.float32), 1, precision="highest").astype(x.dtype)

        x, captured = layer(x, inputs, average=average, **options)
        return (x, states), captured

    def last_hidden(self, carry: tuple[Hidden, Any]) -> Hidden:
        """Returns the last average."""
        return carry[0]

    def _matrix(self, states: int) -> Float[Array, "blocks states"]:
        """Returns the weights of each block, followed by zeros."""
        rows = [self.averages[...][start:end] for start, end in self.parts[: states - 1]]
        return jnp.stack([jnp.pad(row, (0, states - len(row))) for row in rows])
