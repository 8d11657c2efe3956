"""FLOPs and residual bytes of a model per row of a batch, from abstract traces."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax

from t5x_like import optimizers, parameters
from t5x_like.kernels import chunks
from t5x_like.models import build
from t5x_like.objectives import passes
from t5x_like.objectives.base import Objective
from t5x_like.objectives.variables import Frozen, assemble
from t5x_like.training.flops import flops_of


@dataclasses.dataclass(frozen=True)
class RowCost:
    """Cost of one row of a batch.

    Attributes:
      flops: FLOPs of matrix products in the forward and backward pass, including recomputation.
      residual_bytes: Bytes saved for the backward pass, in arrays that tensor parallelism shards.
      unsplit_residual_bytes: Bytes saved for the backward pass, in arrays with a last dimension `embed`, which tensor
        parallelism does not shard unless its rules split the residual stream.
    """

    flops: float
    residual_bytes: float
    unsplit_residual_bytes: float


def row_cost(
    config: Any, objective: Objective, shapes: Any, row_shapes: Mapping[str, tuple[int, ...]], embed: int
) -> RowCost:
    """Computes the cost of a row as the difference between traces of the loss on two numbers of rows, such as 1 and 2.

    The traces use the kernels of the bound partitioner's devices. On GPUs, whose chunks of logits are larger, more rows
    are traced, so that the loss has several chunks, whose logits are not saved.

    Args:
      config: Configuration of the model.
      objective: The objective.
      shapes: Shapes of (state, frozen) of a `Program` of the same model.
      row_shapes: Model feature -> shape with any number of rows.
      embed: Size of the axis `embed`.

    Returns:
      The cost of one row.
    """
    state, frozen = shapes
    params = optimizers.merge(state.params, frozen.params)
    rebuilt = build.shapes(config)  # with this configuration's remat, not the program's
    params = {**params, "model": jax.tree.unflatten(jax.tree.structure(rebuilt), jax.tree.leaves(params["model"]))}
    trained = parameters.named_leaves(state.params).keys()
    own = parameters.map_named(lambda name, leaf: leaf if name in trained else None, params)
    others = parameters.map_named(lambda name, leaf: None if name in trained else leaf, params)
    fixed = Frozen(others, frozen.teachers)
    first = 1
    if (positions := chunks.min_positions()) > chunks.MIN_POSITIONS:
        first += math.ceil(positions / min(shape[1] for shape in row_shapes.values() if len(shape) > 1))
    fewer, more = (_cost_of_rows(objective, own, fixed, row_shapes, rows, embed) for rows in (first, first + 1))
    return RowCost(*(after - before for before, after in zip(fewer, more, strict=True)))


def _cost_of_rows(objective, params, frozen, row_shapes, rows, embed) -> tuple[float, float, float]:
    dtypes = objective.features.dtypes
    batch = {name: jax.ShapeDtypeStruct((rows, *shape[1:]), dtypes[name]) for name, shape in row_shapes.items()}

    factors = dict.fromkeys(objective.coefficients, 1.0)

    def loss(params, frozen, batch):
        return passes.loss(passes.forward_at_evaluation(objective, assemble(params, frozen), batch), factors)[0]

    residuals = jax.eval_shape(
        lambda params, *others: jax.vjp(lambda params: loss(params, *others), params)[1], params, frozen, batch
    )
    sizes = [(leaf.shape, leaf.size * leaf.dtype.itemsize) for leaf in jax.tree.leaves(residuals)]
    unsplit = sum(size for shape, size in sizes if shape and shape[-1] == embed)
    gradient = jax.make_jaxpr(jax.grad(loss))(params, frozen, batch)
    return flops_of(gradient, len(gradient.out_avals)), sum(size for _, size in sizes) - unsplit, unsplit
