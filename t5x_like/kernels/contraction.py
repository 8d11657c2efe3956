"""Products of activations with a kernel: `lax.dot_general`, with a faster gradient on CPU."""

import functools
import math
from typing import Any

import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t5x_like import partitioning

# Checkpoint name of the products on CPU. A rematerialization policy cannot see a `dot_general` inside a custom VJP,
# so `stacks.REMAT_POLICIES` finds these products by name.
CPU_PRODUCT = "contraction"


def contract(
    x: Float[Array, "*batch_and_inputs"],
    kernel: Float[Array, "*inputs_and_outputs"],
    num_inputs: int,
    *,
    result_dtype: DTypeLike | None = None,
    platform: str | None = None,
) -> Float[Array, "*batch_and_outputs"]:
    """Sums over the last `num_inputs` dimensions of `x` and the first `num_inputs` of `kernel`.

    The result is that of `jnp.tensordot(x, kernel, axes=num_inputs)`. On CPU the product and its gradients are products
    of matrices, with rows and positions as one dimension, and the gradient of the kernel is computed as xᵀ · dy. JAX
    derives (dyᵀ · x)ᵀ, and XLA on CPU transposes the operands of a product over two dimensions in memory first: the
    activations, which are much larger than the kernel. On CPU the function therefore has a custom VJP and does not
    support forward-mode differentiation. On every other platform, and where a mesh shards positions, it is a plain
    `lax.dot_general`.

    Args:
      x: activations `[*batch, *inputs]`.
      kernel: `[*inputs, *outputs]`, in the dtype of `x`.
      num_inputs: number of dimensions to sum over.
      result_dtype: dtype of the result, in which the sum is computed; by default the dtype of `x`.
      platform: platform that the program is compiled for. The default is the platform of the bound partitioner's
        devices; without a bound partitioner the platform is unknown and the product is a plain `lax.dot_general`.

    Returns:
      `[*batch, *outputs]`, in `result_dtype`.
    """
    # Rows and positions cannot become one dimension where both are sharded.
    if (platform or partitioning.bound_platform()) == "cpu" and partitioning.axis_size("length") == 1:
        return checkpoint_name(_cpu_product(x, kernel, num_inputs, result_dtype), CPU_PRODUCT)
    batch = x.ndim - num_inputs
    dimensions = ((tuple(range(batch, x.ndim)), tuple(range(num_inputs))), ((), ()))
    return lax.dot_general(x, kernel, dimensions, preferred_element_type=result_dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _cpu_product(x: Array, kernel: Array, num_inputs: int, result_dtype: DTypeLike | None) -> Array:
    flat_x, flat_kernel = _matrices(x, kernel, num_inputs)
    y = lax.dot(flat_x, flat_kernel, preferred_element_type=result_dtype)
    return y.reshape(*x.shape[: x.ndim - num_inputs], *kernel.shape[num_inputs:])


def _matrices(x: Array, kernel: Array, num_inputs: int) -> tuple[Array, Array]:
    """Returns `x` as `[batch, inputs]` and the kernel as `[inputs, outputs]`."""
    size = math.prod(kernel.shape[:num_inputs])
    return x.reshape(-1, size), kernel.reshape(size, -1)


def _cpu_forward(x: Array, kernel: Array, num_inputs: int, result_dtype: DTypeLike | None) -> tuple[Array, Any]:
    return _cpu_product(x, kernel, num_inputs, result_dtype), (x, kernel)


def _cpu_backward(num_inputs: int, result_dtype: DTypeLike | None, residuals: Any, dy: Array) -> tuple[Array, Array]:
    x, kernel = residuals
    flat_x, flat_kernel = _matrices(x, kernel, num_inputs)
    flat_dy = dy.reshape(len(flat_x), -1)
    dx = lax.dot_general(flat_dy, flat_kernel, (((1,), (1,)), ((), ())))
    dkernel = lax.dot_general(flat_x, flat_dy, (((0,), (0,)), ((), ())))
    return dx.reshape(x.shape).astype(x.dtype), dkernel.reshape(kernel.shape).astype(kernel.dtype)


_cpu_product.defvjp(_cpu_forward, _cpu_backward)
