"""Adapters (Houlsby et al. 2019, arXiv:1902.00751): small feed-forward blocks after the blocks of a layer."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.errors import UserError
from t5x_like.kernels.contraction import contract
from t5x_like.layers import initializers
from t5x_like.layers.mlp import ACTIVATIONS
from t5x_like.layers.projections import Projection
from t5x_like.recorded import recorded


class Bottleneck(nnx.Module):
    """Adds up(activation(down(y))) to the output y of a projection.

    Args:
      width: Size of y.
      size: Size of the bottleneck.
      activation: Name of the activation; see `layers.mlp`.
      axis: Logical axis of y.
      init: Initializer of the kernels.
      key: Random key for the initial values.

    Attributes:
      down: float32 `[width, size]`.
      down_bias: float32 `[size]`, initially 0.
      up: float32 `[size, width]`.
      up_bias: float32 `[width]`, initially 0.
    """

    def __init__(
        self, width: int, size: int, activation: str, *, axis: str, init: initializers.Initializer, key: jax.Array
    ):
        down_key, up_key = jax.random.split(key)
        self.down = nnx.Param(init(down_key, (width, size), 1), axes=(axis, None))
        self.down_bias = nnx.Param(jnp.zeros((size,), jnp.float32), axes=(None,))
        self.up = nnx.Param(init(up_key, (size, width), 1), axes=(None, axis))
        self.up_bias = nnx.Param(jnp.zeros((width,), jnp.float32), axes=(None,))
        self.activation = activation

    def __call__(
        self, x: Float[Array, "batch length ..."], projection: Projection, *, dropout_key: jax.Array | None = None
    ) -> Float[Array, "batch length width"]:
        """Returns the output of the projection with the block; see `base.ProjectionAdapter`."""
        del dropout_key
        y = projection.product(x)
        return y + self.update(y)

    def update(self, y: Float[Array, "batch length width"]) -> Float[Array, "batch length width"]:
        """Returns up(activation(down(y)))."""
        down, down_bias, up, up_bias = (
            each[...].astype(y.dtype) for each in (self.down, self.down_bias, self.up, self.up_bias)
        )
        low = ACTIVATIONS[self.activation](contract(y, down, 1) + down_bias)
        return contract(low, up, 1) + up_bias

    def merged(self, module: Any) -> dict[str, Float[Array, "..."]]:
        """Raises an error: the block is not linear."""
        raise UserError(
            "Bottleneck: its blocks are not linear, so they cannot be merged into the kernels. Use the run "
            "itself: `eval`, `infer` and `open_model` read its adapters."
        )


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class BottleneckAdapter:
    """Blocks after some projections. Freeze all other parameters: `adapters/houlsby.gin` does so.

    A comment above each field documents it.
    """

    target = Projection
    # Regular expression of the names of the projections. The default matches the last projections of attention and
    # feed-forward blocks, as in the paper.
    pattern: str = r"(attention/out|mlp/wo)$"
    # Size of the bottleneck.
    size: int = 64
    # Activation of the block.
    activation: str = "gelu"
    # Standard deviation of the initial kernels, which are drawn from a truncated normal distribution.
    initializer_range: float = 1e-3

    def __post_init__(self):
        if self.size < 1:
            raise UserError(f"{type(self).__name__}.size={self.size}: not positive. Give the size of the bottleneck.")
        if self.activation not in ACTIVATIONS:
            known = ", ".join(sorted(ACTIVATIONS))
            raise UserError(f"{type(self).__name__}.activation={self.activation!r}: not one of {known}. Give one.")

    def make(self, projection: Projection, key: jax.Array, name: str) -> Bottleneck:
        """Makes the block of a projection; see `base.Adapter`."""
        if len(projection.axes) - projection.num_inputs != 1:
            raise UserError(
                f"BottleneckAdapter.pattern={self.pattern!r} matches {name}, whose output has several dimensions. "
                "Choose projections to hidden states, such as (attention/out|mlp/wo)$."
            )
        width, axis = projection.kernel.shape[-1], projection.axes[-1]
        init = initializers.truncated_normal(self.initializer_range)
        return Bottleneck(width, self.size, self.activation, axis=axis, init=init, key=key)
