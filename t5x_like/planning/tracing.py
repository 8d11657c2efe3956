"""What a model needs whatever the mesh, counted on traces: operations, and bytes kept for the backward pass."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp

from t5x_like import optimizers


@dataclasses.dataclass(frozen=True)
class RowCost:
    """What one row of a batch takes.

    Attributes:
      flops: of matrix products, forward and backward, those done again included.
      residual_bytes: kept for the backward pass, in arrays of which a tensor-parallel mesh splits a dimension.
      unsplit_residual_bytes: the same in arrays that end in `embed`, which it does not split.
    """

    flops: float
    residual_bytes: float
    unsplit_residual_bytes: float


def row_cost(
    config: Any, objective: Any, shapes: Any, row_shapes: Mapping[str, tuple[int, ...]], embed: int
) -> RowCost:
    """Traces the loss on one row and on two: the difference is what a row takes.

    Args:
      config: the model's configuration.
      objective: whose loss it is.
      shapes: of (state, frozen) of a `Program` of the same model.
      row_shapes: model feature -> shape with any number of rows.
      embed: size of the axis `embed`.
    """
    params = optimizers.merge(shapes[0].params, shapes[1])
    rebuilt = jax.eval_shape(config.make, jax.random.key(0))  # with this configuration's remat, not the program's
    params = {**params, "model": jax.tree.unflatten(jax.tree.structure(rebuilt), jax.tree.leaves(params["model"]))}
    one, two = (_of_rows(objective, params, row_shapes, rows, embed) for rows in (1, 2))
    return RowCost(*(after - before for before, after in zip(one, two, strict=True)))


def _of_rows(objective, params, row_shapes, rows, embed) -> tuple[float, float, float]:
    batch = {name: jax.ShapeDtypeStruct((rows, *shape[1:]), jnp.int32) for name, shape in row_shapes.items()}

    def loss(params, batch):
        return sum(objective.terms(params, batch, dropout_key=None).sums.values())

    kept = jax.eval_shape(lambda params, batch: jax.vjp(lambda params: loss(params, batch), params)[1], params, batch)
    sizes = [(leaf.shape, leaf.size * leaf.dtype.itemsize) for leaf in jax.tree.leaves(kept)]
    whole = sum(size for shape, size in sizes if shape and shape[-1] == embed)
    gradient = jax.make_jaxpr(jax.grad(loss))(params, batch)
    return jaxpr_flops(gradient.jaxpr), sum(size for _, size in sizes) - whole, whole


def jaxpr_flops(jaxpr: Any) -> float:
    """Operations of the matrix products in a jaxpr, a multiply-add as two, loops as often as they run."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2.0 * equation.outvars[0].aval.size * math.prod(shape[dim] for dim in contracted)
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            total += times * jaxpr_flops(inner)
    return total
