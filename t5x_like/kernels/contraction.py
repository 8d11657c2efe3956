"""Products of activations with a kernel: `lax.dot_general`, with a faster gradient on CPU."""

from typing import Any

import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
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
    platform: str | None = None,
) -> Float[Array, "*batch_and_outputs"]:
    """Sums over the last `num_inputs` dimensions of `x` and the first `num_inputs` of `kernel`.

    The result is that of `jnp.tensordot(x, kernel, axes=num_inputs)`. On CPU the gradient of the kernel is computed as
    xᵀ · dy. JAX derives (dyᵀ · x)ᵀ, for which XLA on CPU first transposes dy, which is much larger than the kernel. The
    backward pass of a gated feed-forward block of T5 then takes four times as long. On CPU the function therefore has a
    custom VJP and does not support forward-mode differentiation. On every other platform it is a plain
    `lax.dot_general`.

    Args:
      x: activations `[*batch, *inputs]`.
      kernel: `[*inputs, *outputs]`, in the dtype of `x`.
      num_inputs: number of dimensions to sum over.
      platform: platform that the program is compiled for. The default is the platform of the bound partitioner's
        devices; without a bound partitioner the platform is unknown and the product is a plain `lax.dot_general`.

    Returns:
      `[*batch, *outputs]`, in the dtype of `x`.
    """
    if (platform or partitioning.bound_platform()) == "cpu":
        return checkpoint_name(_cpu_product(x, kernel, num_inputs), CPU_PRODUCT)
    return _product(x, kernel, num_inputs)


def _product(x: Array, kernel: Array, num_inputs: int) -> Array:
    batch = x.ndim - num_inputs
    return lax.dot_general(x, kernel, ((tuple(range(batch, x.ndim)), tuple(range(num_inputs))), ((), ())))


_cpu_product = jax.custom_vjp(_product, nondiff_argnums=(2,))


def _cpu_forward(x: Array, kernel: Array, num_inputs: int) -> tuple[Array, Any]:
    return _product(x, kernel, num_inputs), (x, kernel)


def _cpu_backward(num_inputs: int, residuals: Any, dy: Array) -> tuple[Array, Array]:
    x, kernel = residuals
    batch_dims = tuple(range(x.ndim - num_inputs))
    output_dims_of_dy = tuple(range(len(batch_dims), dy.ndim))
    output_dims_of_kernel = tuple(range(num_inputs, kernel.ndim))
    dx = lax.dot_general(dy, kernel, ((output_dims_of_dy, output_dims_of_kernel), ((), ())))
    dkernel = lax.dot_general(x, dy, ((batch_dims, batch_dims), ((), ())))
    return dx, dkernel


_cpu_product.defvjp(_cpu_forward, _cpu_backward)
