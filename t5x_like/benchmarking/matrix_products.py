"""The matrix products of a training step, and the rate at which a machine computes products of these sizes."""

import collections
import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp

from t5x_like.benchmarking import timing

# Products are measured from the largest share of the FLOPs to the smallest, until they have this share of all FLOPs.
_MEASURED_SHARE = 0.98
# Seconds for each size of product. It is computed at least twice, the first time as a warm-up.
_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Product:
    """Size of a product `[batch, rows, inner] · [batch, inner, columns]`.

    Attributes:
      batch: Number of independent products.
      rows: Rows of the result.
      inner: Size of the contracted dimensions.
      columns: Columns of the result.
      dtype: dtype of the operands.
    """

    batch: int
    rows: int
    inner: int
    columns: int
    dtype: str

    @property
    def flops(self) -> float:
        """FLOPs of the product; a multiply-add counts as two."""
        return 2.0 * self.batch * self.rows * self.inner * self.columns


def count_products(jaxpr: Any) -> "collections.Counter[Product]":
    """Counts the matrix products of floats in a jaxpr. The body of a scan counts once per iteration."""
    found: collections.Counter[Product] = collections.Counter()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general" and jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating):
            found[_product_of(equation)] += 1
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            for product, count in count_products(inner).items():
                found[product] += times * count
    return found


def _product_of(equation: Any) -> Product:
    (left_inner, _), (left_batch, _) = equation.params["dimension_numbers"]
    left, right = (variable.aval for variable in equation.invars)
    batch = math.prod(left.shape[dim] for dim in left_batch)
    inner = math.prod(left.shape[dim] for dim in left_inner)
    return Product(batch, left.size // (batch * inner), inner, right.size // (batch * inner), left.dtype.name)


@dataclasses.dataclass(frozen=True)
class MatrixRate:
    """The rate at which a machine computes the matrix products of a step.

    Attributes:
      flops_per_second: FLOPs of the measured products, each times its number, over their total time.
      by_product: Measured product -> FLOP/s.
    """

    flops_per_second: float
    by_product: Mapping[Product, float]


def measure_rate(products: Mapping[Product, int], device: jax.Device) -> MatrixRate:
    """Measures the matrix rate of a device.

    Each size is computed alone, from operands in row-major order, and its shortest time counts.

    Args:
      products: Product -> how often a step computes it.
      device: A device. On CPU, a product uses all cores.

    Returns:
      The rate.

    Raises:
      ValueError: the program has no matrix products.
    """
    total = sum(product.flops * count for product, count in products.items())
    by_product: dict[Product, float] = {}
    covered = seconds = 0.0
    for product, count in sorted(products.items(), key=lambda each: -each[0].flops * each[1]):
        if covered >= _MEASURED_SHARE * total and by_product:
            break
        shortest = _shortest_time(product, device)
        by_product[product] = product.flops / shortest
        covered, seconds = covered + product.flops * count, seconds + shortest * count
    if not by_product:
        raise ValueError("the step has no matrix product")
    return MatrixRate(covered / seconds, by_product)


def _shortest_time(product: Product, device: jax.Device) -> float:
    keys = jax.random.split(jax.random.key(0))
    shapes = (product.batch, product.rows, product.inner), (product.batch, product.inner, product.columns)
    with jax.default_device(device):
        # Without the leading dimension, a single product is a plain matrix product.
        operands = [
            jax.random.normal(key, shape if product.batch > 1 else shape[1:], product.dtype)
            for key, shape in zip(keys, shapes, strict=True)
        ]
        multiply = jax.jit(jnp.matmul)
        timing.time_call(lambda: multiply(*operands))
        found, deadline = [], time.monotonic() + _SECONDS
        while not found or time.monotonic() < deadline:
            found.append(timing.time_call(lambda: multiply(*operands)))
    return min(found)
