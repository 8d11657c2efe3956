"""Linear maps, over one or several dimensions at a time."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.kernels.contraction import contract
from t5x_like.layers.initializers import Initializer


class Projection(nnx.Module):
    """Contracts the last dimensions of its input with the first of a kernel.

    Attributes:
      kernel: float32 `[*inputs, *outputs]`.
      bias: float32 `[*outputs]`, initially 0, where there is one.
    """

    def __init__(
        self,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        *,
        axes: tuple[str, ...],
        key: jax.Array,
        init: Initializer,
        bias: bool = False,
        dtype: str = "float32",
    ):
        """Args:
        inputs, outputs: sizes of the dimensions that go in and come out.
        axes: the kernel's logical axes.
        key: for the initial values.
        init: of the kernel.
        bias: whether a bias is added.
        dtype: to compute in.
        """
        self.contracted = len(inputs)
        self.kernel = nnx.Param(init(key, (*inputs, *outputs), self.contracted), axes=axes)
        if bias:
            self.bias = nnx.Param(jnp.zeros(outputs, jnp.float32), axes=axes[self.contracted :])
        self.has_bias = bias
        self.dtype = dtype

    def __call__(self, x: Float[Array, "batch length ..."]) -> Float[Array, "batch length ..."]:
        y = contract(x.astype(self.dtype), self.kernel[...].astype(self.dtype), self.contracted)
        return y + self.bias[...].astype(self.dtype) if self.has_bias else y


def shard_activation(x: Float[Array, "batch length ..."], *axes: str) -> Float[Array, "batch length ..."]:
    """Constrains `[batch, length, *axes]`; the single position of a decoding step is not split."""
    return partitioning.shard(x, "batch", "length" if x.shape[1] > 1 else None, *axes)
