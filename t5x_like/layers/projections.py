"""Linear maps over one or several dimensions."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.axis_rules import EMBED_VECTOR, LENGTH, RESIDUAL_LENGTH
from t5x_like.kernels.contraction import project
from t5x_like.layers.initializers import Initializer


class Projection(nnx.Module):
    """Contracts the last dimensions of its input with the first dimensions of a kernel.

    Args:
      inputs: Sizes of the input dimensions.
      outputs: Sizes of the output dimensions.
      axes: Logical axes of the kernel.
      key: Random key for the initial values.
      init: Initializer of the kernel.
      bias: Whether a bias is added.
      dtype: Dtype of the computation.
      has_dropout_key: Whether calls get the dropout key of their block. An adapter without a key cannot draw.

    Attributes:
      kernel: float32 `[*inputs, *outputs]`.
      bias: float32 `[*outputs]`, initially 0; only if the projection has a bias.
      adapter: None, or a module that changes the output; see `adapters.base`.
      quantization: None, or a module that computes `product`; see `adapters.quantization`.
      num_inputs: Number of input dimensions, which are the first dimensions of the kernel.
      axes: Logical axes of the kernel, without `layers`.
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
        has_dropout_key: bool = True,
    ):
        self.num_inputs, self.axes = len(inputs), axes
        self.kernel = nnx.Param(init(key, (*inputs, *outputs), self.num_inputs), axes=axes)
        if bias:
            bias_axes = axes[self.num_inputs :]
            bias_axes = (EMBED_VECTOR,) if bias_axes == ("embed",) else bias_axes
            self.bias = nnx.Param(jnp.zeros(outputs, jnp.float32), axes=bias_axes)
        self.has_bias = bias
        self.dtype, self.has_dropout_key = dtype, has_dropout_key
        self.adapter: nnx.Module | None = None
        self.quantization: nnx.Module | None = None

    def __call__(
        self, x: Float[Array, "batch length ..."], *, copies: int = 1, dropout_key: jax.Array | None = None
    ) -> Float[Array, "batch length ..."]:
        """Applies the projection.

        Args:
          x: `[*batch, *inputs]`.
          copies: How often each element of the first output dimension is repeated, one after another.
          dropout_key: Random key of the block, for the adapter; None disables its dropout.

        Returns:
          `[*batch, *outputs]` in `dtype`, with a first output dimension that is `copies` times as large.
        """
        if self.adapter is not None:
            y = self.adapter(x, self, dropout_key=dropout_key)
            return jnp.repeat(y, copies, axis=x.ndim - self.num_inputs) if copies > 1 else y
        return self.product(x, copies=copies)

    def product(
        self, x: Float[Array, "batch length ..."], *, copies: int = 1, kernel: Float[Array, "..."] | None = None
    ) -> Float[Array, "batch length ..."]:
        """Returns what the projection alone computes, without its adapter; see `__call__`.

        Args:
          x: See `__call__`.
          copies: See `__call__`.
          kernel: Replaces the kernel of the projection.
        """
        if self.quantization is not None:
            return self.quantization.product(x, self, copies=copies, kernel=kernel)
        bias = self.bias[...] if self.has_bias else None
        return self.linear(x, self.kernel[...] if kernel is None else kernel, bias, copies=copies)

    @property
    def dense_kernel(self) -> Float[Array, "..."]:
        """The kernel, or the kernel that its quantization stands for, `[*inputs, *outputs]`."""
        return self.kernel[...] if self.quantization is None else self.quantization.weight(self)

    def linear(
        self,
        x: Float[Array, "batch length ..."],
        kernel: Float[Array, "..."],
        bias: Float[Array, "..."] | None,
        *,
        copies: int = 1,
    ) -> Float[Array, "batch length ..."]:
        """Returns the product with a given kernel and bias in `dtype`; see `__call__`."""
        kernel = kernel.astype(self.dtype)
        bias = None if bias is None else bias.astype(self.dtype)
        if copies > 1:
            kernel = jnp.repeat(kernel, copies, axis=self.num_inputs)
            bias = None if bias is None else jnp.repeat(bias, copies, axis=0)
        return project(x.astype(self.dtype), kernel, bias, self.num_inputs, self.axes)


def shard_activation(x: Float[Array, "batch length ..."], *axes: str) -> Float[Array, "batch length ..."]:
    """Constrains the sharding of `[batch, length, *axes]`.

    Args:
      x: Activations. A length that is not divisible by its shards, such as in a decoding step, is not sharded.
      *axes: Logical axes of the dimensions after `length`.

    Returns:
      `x` with the sharding constraint.
    """
    return partitioning.shard(x, "batch", LENGTH, *axes)


def shard_residual(x: Float[Array, "batch length embed"]) -> Float[Array, "batch length embed"]:
    """Constrains the sharding of the residual stream between blocks.

    With rules that split it more finely than other activations, such as `fsdp_tp_residual`, each device computes norms,
    dropout and sums of its own positions alone, not of all devices of `tensor` (Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.2.2).

    Args:
      x: Hidden states. Where the residual rule does not divide their length, they are sharded like other activations.
    """
    return partitioning.shard(x, "batch", RESIDUAL_LENGTH if _splits_residual(x) else LENGTH, "embed")


def gather_residual(x: Float[Array, "batch length embed"]) -> Float[Array, "batch length embed"]:
    """Gathers the positions of hidden states that the residual stream splits, so that a block can read all of them."""
    return shard_activation(x, "embed") if _splits_residual(x) else x


def scatter_residual(x: Float[Array, "batch length embed"]) -> Float[Array, "batch length embed"]:
    """Splits the output of a block like the residual stream: a sum over devices becomes a reduce-scatter."""
    return shard_residual(x) if _splits_residual(x) else x


def _splits_residual(x: Array) -> bool:
    return partitioning.axis_size(RESIDUAL_LENGTH, x.shape[1]) > partitioning.axis_size(LENGTH, x.shape[1])
