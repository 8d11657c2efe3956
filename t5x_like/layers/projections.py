"""Linear maps without bias, over one or several dimensions at a time."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.kernels.contraction import contract


class Projection(nnx.Module):
    """Contracts the last dimensions of its input with the first of a kernel.

    Attributes:
      kernel: float32 `[*inputs, *outputs]`.
    """

    def __init__(
        self,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        *,
        axes: tuple[str, ...],
        key: jax.Array,
        variance: float = 1.0,
        distribution: Literal["normal", "truncated_normal"] = "truncated_normal",
        dtype: str = "float32",
    ):
        """Initialises with variance `variance / (number of inputs)`.

        Args:
          inputs, outputs: sizes of the dimensions that go in and come out.
          axes: the kernel's logical axes.
          key: for the initial values.
          variance: see above.
          distribution: of the initial values; the truncated one ends at two standard deviations.
          dtype: to compute in.
        """
        rank = len(inputs)
        initialise = jax.nn.initializers.variance_scaling(
            variance, "fan_in", distribution, in_axis=range(rank), out_axis=range(rank, rank + len(outputs))
        )
        self.kernel = nnx.Param(initialise(key, (*inputs, *outputs), jnp.float32), axes=axes)
        self.contracted = rank
        self.dtype = dtype

    def __call__(self, x: Float[Array, "batch length ..."]) -> Float[Array, "batch length ..."]:
        return contract(x.astype(self.dtype), self.kernel[...].astype(self.dtype), self.contracted)


def shard_activation(x: Float[Array, "batch length ..."], *axes: str) -> Float[Array, "batch length ..."]:
    """Constrains `[batch, length, *axes]`; the single position of a decoding step is not split."""
    return partitioning.shard(x, "batch", "length" if x.shape[1] > 1 else None, *axes)
