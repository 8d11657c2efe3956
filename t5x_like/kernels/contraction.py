"""Products of activations with a kernel: `lax.dot_general`, with matrices instead of heads, and faster on CPU."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.axis_rules import HEAD_SIZE

# Checkpoint name of the products with a custom VJP. A rematerialization policy cannot see a `dot_general` inside one,
# so `stacks.REMAT_POLICIES` finds these products by name.
PRODUCT = "contraction"
# Lanes of a TPU's vector registers, which the last dimension of an array fills.
_LANES = 128
# Rows of ones whose product with an array sums over its positions. XLA turns a product with one row into a reduction.
_ROWS_OF_ONES = 8


def contract(
    x: Float[Array, "*batch_and_inputs"],
    kernel: Float[Array, "*inputs_and_outputs"],
    num_inputs: int,
    *,
    result_dtype: DTypeLike | None = None,
    platform: str | None = None,
) -> Float[Array, "*batch_and_outputs"]:
    """Sums over the last `num_inputs` dimensions of `x` and the first `num_inputs` of `kernel`.

    The result equals `jnp.tensordot(x, kernel, axes=num_inputs)`. On CPU the product and its gradients are products
    of matrices, with rows and positions as one dimension, and the gradient of the kernel is computed as xᵀ · dy. JAX
    derives (dyᵀ · x)ᵀ, and XLA on CPU transposes the operands of a product over two dimensions in memory first: the
    activations, which are much larger than the kernel. On CPU the function therefore has a custom VJP and does not
    support forward-mode differentiation. On every other platform, and where a mesh shards positions, it is a plain
    `lax.dot_general`, but on GPUs `widened` if `result_dtype` is.

    Args:
      x: Activations `[*batch, *inputs]`.
      kernel: `[*inputs, *outputs]`, in the dtype of `x`.
      num_inputs: Number of dimensions to sum over.
      result_dtype: Dtype of the result, in which the sum is computed; by default the dtype of `x`.
      platform: Platform that the program is compiled for. The default is the platform of the bound partitioner's
        devices; without a bound partitioner the platform is unknown and the product is a plain `lax.dot_general`.

    Returns:
      `[*batch, *outputs]`, in `result_dtype`.
    """
    # Rows and positions cannot become one dimension where both are sharded.
    if (platform or partitioning.bound_platform()) == "cpu" and partitioning.axis_size("length") == 1:
        return checkpoint_name(_cpu_product(x, kernel, num_inputs, result_dtype), PRODUCT)
    return widened(functools.partial(_plain_product, num_inputs=num_inputs), x, kernel, result_dtype, platform=platform)


def widened(
    product: Callable[..., Array], x: Array, y: Array, result_dtype: DTypeLike | None, *, platform: str | None = None
) -> Array:
    """Computes a product in a wider dtype than its operands', whose gradients are products of the operands' dtype.

    JAX derives products of a float32 gradient and an operand that it converts to float32. On TPUs they take the time of
    products in bfloat16, because by default the hardware rounds to it. On GPUs they take twice the time, in TF32, and
    read and write twice the bytes. There, the gradient is rounded to the dtype of the operands first, as PyTorch's
    autocast does. On other platforms, the function is `product`.

    Args:
      product: `product(x, y, result_dtype=dtype)`, linear in `x` and in `y`.
      x: An array.
      y: An array. If its dtype is not that of `x`, the function is `product`.
      result_dtype: Dtype of the result; None for the dtype of `x`.
      platform: As for `contract`.

    Returns:
      The product. On GPUs, it does not support forward-mode differentiation if its dtype is wider.
    """
    is_wider = result_dtype is not None and jnp.dtype(result_dtype).itemsize > x.dtype.itemsize
    if not is_wider or x.dtype != y.dtype or (platform or partitioning.bound_platform()) != "gpu":
        return product(x, y, result_dtype=result_dtype)

    @jax.custom_vjp
    def wide(x, y):
        return product(x, y, result_dtype=result_dtype)

    def backward(operands, dy):
        _, pull = jax.vjp(functools.partial(product, result_dtype=None), *operands)
        return pull(dy.astype(x.dtype))

    # The product itself, so that policies of rematerialization see it.
    wide.defvjp(lambda x, y: (product(x, y, result_dtype=result_dtype), (x, y)), backward)
    return wide(x, y)


def einsum_in_float32(subscripts: str, x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns `jnp.einsum(subscripts, x, y)` in float32, on GPUs `widened`."""

    def product(x, y, *, result_dtype):
        return jnp.einsum(subscripts, x, y, preferred_element_type=result_dtype)

    return widened(product, x, y, jnp.float32)


def project(
    x: Float[Array, "*batch_and_inputs"],
    kernel: Float[Array, "*inputs_and_outputs"],
    bias: Float[Array, "*outputs"] | None,
    num_inputs: int,
    axes: Sequence[str],
) -> Float[Array, "*batch_and_outputs"]:
    """Computes `contract(x, kernel, num_inputs) + bias`, with kernels as matrices where heads do not fill lanes.

    On TPUs, an array whose last dimension is a head of 64 fills half of the lanes. A product that returns one, the
    gradient of a kernel, takes up to twice as long, and a gathered kernel is copied before its product. Both passes
    therefore join heads and their features to one dimension. The forward pass with a bias does not, because XLA then
    copies the result instead of adding the bias and saving the sum in one fusion with the product. On several devices
    the gradient is also reduced as a matrix. The gradient of the bias is a product with ones, because a sum over
    positions reads its operand at a lower rate. This is done on TPUs, and on several devices of any platform. On a
    single CPU or GPU, without a bound partitioner, and where a mesh shards the second of several inputs or outputs, the
    product equals `contract`'s. On GPUs, gradients of biases are sums: XLA would merge the products with ones of all
    layers, and copy the gradients of all activations into one array for it.
    With kernels as matrices, it has a custom VJP and does not support forward-mode differentiation.

    Args:
      x: Activations `[*batch, *inputs]`.
      kernel: `[*inputs, *outputs]`, in the dtype of `x`.
      bias: `[*outputs]`, in the dtype of `x`; None for no bias.
      num_inputs: Number of dimensions to sum over.
      axes: Logical axes of the kernel.

    Returns:
      `[*batch, *outputs]`.
    """
    fills_lanes = HEAD_SIZE not in axes or kernel.shape[axes.index(HEAD_SIZE)] % _LANES == 0
    sharding = None if fills_lanes else _matrix_sharding(kernel, num_inputs, axes)
    if sharding is None:
        y = contract(x, kernel, num_inputs)
        return y if bias is None else y + bias
    return checkpoint_name(_projection(x, kernel, bias, num_inputs, sharding), PRODUCT)


def _matrix_sharding(kernel: Array, num_inputs: int, axes: Sequence[str]) -> NamedSharding | None:
    """Returns the sharding of a kernel as a matrix, or None where `project` uses `contract`."""
    partitioner = partitioning.bound_partitioner()
    if partitioner is None or (partitioner.mesh.size == 1 and partitioner.platform != "tpu"):
        return None
    spec = partitioner.spec(axes, kernel.shape, "kernel")
    (inputs, *other_inputs), (outputs, *other_outputs) = spec[:num_inputs], spec[num_inputs:]
    if any(other_inputs) or any(other_outputs):
        return None  # only the first of several dimensions may be sharded, or the matrix's shards would be interleaved
    return NamedSharding(partitioner.mesh, PartitionSpec(inputs, outputs))


def _plain_product(x: Array, kernel: Array, num_inputs: int, result_dtype: DTypeLike | None) -> Array:
    batch = x.ndim - num_inputs
    dimensions = ((tuple(range(batch, x.ndim)), tuple(range(num_inputs))), ((), ()))
    return lax.dot_general(x, kernel, dimensions, preferred_element_type=result_dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _projection(x: Array, kernel: Array, bias: Array | None, num_inputs: int, sharding: NamedSharding) -> Array:
    if bias is not None:
        return _plain_product(x, kernel, num_inputs, None) + bias
    batch = x.shape[: x.ndim - num_inputs]
    flat_x = x.reshape(*batch, -1)
    y = lax.dot_general(flat_x, kernel.reshape(flat_x.shape[-1], -1), (((len(batch),), (0,)), ((), ())))
    return y.reshape(*batch, *kernel.shape[num_inputs:])


def _projection_forward(x, kernel, bias, num_inputs, sharding):
    return _projection(x, kernel, bias, num_inputs, sharding), (x, kernel, bias)


def _projection_backward(num_inputs, sharding, residuals, dy):
    x, kernel, bias = residuals
    batch = x.shape[: x.ndim - num_inputs]
    rows = tuple(range(len(batch)))
    flat_x, flat_dy = x.reshape(*batch, -1), dy.reshape(*batch, -1)
    # Only the backward pass constrains matrices: kernels may have other shards in a forward pass, as in decoding.
    matrix = _constrain(kernel.reshape(flat_x.shape[-1], -1), sharding)
    dx = lax.dot_general(flat_dy, matrix, (((len(batch),), (1,)), ((), ()))).reshape(x.shape)
    dmatrix = lax.dot_general(flat_x, flat_dy, ((rows, rows), ((), ())))
    dkernel = _constrain(dmatrix, sharding).reshape(kernel.shape)
    return (
        dx.astype(x.dtype),
        dkernel.astype(kernel.dtype),
        None if bias is None else _sum_rows(flat_dy, bias, sharding),
    )


def _constrain(matrix: Array, sharding: NamedSharding) -> Array:
    # Where each device computes its own rows (`kernels/row_sums.py`), the mesh has a single device, and the program
    # that it is part of has others.
    return matrix if sharding.mesh.size == 1 else lax.with_sharding_constraint(matrix, sharding)


def _sum_rows(x: Array, like: Array, sharding: NamedSharding) -> Array:
    """Sums over all but the last dimension, and returns the shape and dtype of another array."""
    rows = tuple(range(x.ndim - 1))
    if sharding.mesh.devices.flat[0].platform == "gpu":
        return jnp.sum(x, rows, dtype=jnp.float32).reshape(like.shape).astype(like.dtype)
    ones = jnp.ones((*x.shape[:-1], _ROWS_OF_ONES), x.dtype)
    sums = lax.dot_general(ones, x, ((rows, rows), ((), ())), precision=lax.Precision.HIGHEST)
    return sums[0].reshape(like.shape).astype(like.dtype)


_projection.defvjp(_projection_forward, _projection_backward)


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
