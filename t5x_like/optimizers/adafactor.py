"""Adafactor (Shazeer and Stern, 2018, arXiv:1804.04235) as in T5X, applied per layer."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like import parameters
from t5x_like.axis_rules import JOINED_HEADS
from t5x_like.errors import UserError
from t5x_like.optimizers.base import Optimizer, as_schedule
from t5x_like.optimizers.groups import Leaf, ParameterGroup, trainable_leaves
from t5x_like.optimizers.schedules import Schedule
from t5x_like.recorded import recorded


class AdafactorState(NamedTuple):
    """Running means by parameter name. Each parameter has either `v_row` and `v_col`, or `v`.

    Attributes:
      v_row: Mean squared gradient over columns, with the row dimensions, of factored parameters.
      v_col: Mean squared gradient over rows, with the column dimensions, of factored parameters.
      v: Squared gradient of parameters that are not factored.
      m: Momentum; empty without momentum.
    """

    v_row: dict[str, nnx.Variable]
    v_col: dict[str, nnx.Variable]
    v: dict[str, nnx.Variable]
    m: dict[str, nnx.Variable]


@recorded
def adafactor(
    *,
    learning_rate: float | Schedule,
    factored: bool = True,
    multiply_by_parameter_scale: bool = True,
    beta1: float | None = None,
    decay_rate: float = 0.8,
    step_offset: int = 0,
    clipping_threshold: float | None = 1.0,
    weight_decay_rate: float | None = None,
    min_dim_size_to_factor: int = 128,
    epsilon1: float = 1e-30,
    epsilon2: float = 1e-3,
    momentum_dtype: Any = jnp.float32,
    groups: Sequence[ParameterGroup] = (),
) -> Optimizer:
    """Creates Adafactor with the formulas and defaults of T5X.

    All means (parameter scale, update clipping, factors) are computed per layer, also if the layers of a stack share
    one array. A parameter is treated as a matrix according to its logical axes: `embed` against all other axes, with
    `heads` and `kv` as one dimension. It is factored if both sides of that matrix have at least
    `min_dim_size_to_factor` entries. Vectors and tables of relative position biases are not factored.

    Args:
      learning_rate: The schedule, or a number. It is relative to the parameter's scale, so larger than Adam's.
      factored: Whether to store row and column means of a matrix's squared gradient instead of all entries.
      multiply_by_parameter_scale: Whether updates are multiplied by the root mean square of the parameter.
      beta1: Decay rate of the momentum, or None for no momentum.
      decay_rate: The decay of second moments is `1 - t ** -decay_rate` with `t = step - step_offset + 1`.
      step_offset: The step at which second moments start, for fine-tuning.
      clipping_threshold: Maximum root mean square of an update before scaling, or None for no clipping.
      weight_decay_rate: Fraction of a parameter that each update subtracts, independent of the learning rate, or None.
      min_dim_size_to_factor: Minimum size of both sides of a factored matrix.
      epsilon1: Added to squared gradients.
      epsilon2: Minimum parameter scale.
      momentum_dtype: Dtype of the stored momentum.
      groups: Parameter groups; the first one that matches a parameter applies.

    Returns:
      The optimizer.

    Raises:
      UserError: A group multiplies initial values, such as muP's, while updates are relative to the parameter's scale.
    """
    schedule = as_schedule(learning_rate)
    groups = tuple(groups)
    if multiply_by_parameter_scale and (group := next((each for each in groups if each.initial_factor != 1.0), None)):
        raise UserError(
            f"initial_factor={group.initial_factor} of the parameter group {group} would also multiply the updates of "
            "Adafactor, which are relative to the parameter's scale. Give an optimizer of Adam's family, such as "
            "optimizers/adamw.gin, after the recipe, or remove the groups (optimizers/mup.gin)."
        )
    momentum_dtype = jnp.dtype(momentum_dtype)

    def factored_dims(leaf, shape):
        layer_shape = shape if leaf.layers is None else shape[1:]
        return _factored_dims(leaf.axes, layer_shape, min_dim_size_to_factor) if factored else None

    def init(params):
        state = AdafactorState({}, {}, {}, {})
        arrays = parameters.named_leaves(params)
        for name, leaf in trainable_leaves(params, groups).items():
            shape, every = arrays[name].shape, range(len(leaf.axes))
            dims = factored_dims(leaf, shape)
            if dims is None:
                state.v[name] = _slot(leaf, shape, every)
            else:
                state.v_row[name] = _slot(leaf, shape, dims[0])
                state.v_col[name] = _slot(leaf, shape, dims[1])
            if beta1 is not None:
                state.m[name] = _slot(leaf, shape, every, momentum_dtype)
        return state

    def update_layer(dims, rate, decay, gradient, param, old, rate_factor, decay_factor, update_factor):
        """Computes the update of one layer and its new running means."""
        delta, new = _normalize(gradient, old, decay, dims, epsilon1, clipping_threshold)
        scale = rate * rate_factor
        if multiply_by_parameter_scale:
            scale *= jnp.maximum(_root_mean_square(param), epsilon2)
        delta *= scale
        if beta1 is not None:
            delta = beta1 * old["m"] + (1.0 - beta1) * delta
            new["m"] = delta.astype(momentum_dtype)
        if weight_decay_rate is not None:
            delta += weight_decay_rate * decay_factor * param
        return -update_factor * delta, new

    def update(gradients, state, params, *, step):
        arrays = parameters.named_leaves(params)
        gradient_arrays = parameters.named_leaves(gradients)
        slots = _by_parameter(state)
        rate = schedule(step)
        # Steps before step_offset use the decay of step_offset, which is 0.
        decay = 1.0 - jnp.maximum(step - step_offset + 1, 1).astype(jnp.float32) ** -decay_rate
        updates, new_slots = {}, {}
        for name, leaf in trainable_leaves(params, groups).items():
            function = functools.partial(update_layer, factored_dims(leaf, arrays[name].shape), rate, decay)
            if leaf.layers is not None:
                function = jax.vmap(function)
            updates[name], new_slots[name] = function(
                gradient_arrays[name].astype(jnp.float32),
                arrays[name].astype(jnp.float32),
                slots[name],
                leaf.factor("learning_rate_factor", step),
                leaf.factor("weight_decay_factor", step),
                leaf.factor("update_factor", step),
            )
        new_state = {f"{field}/{name}": array for name, kinds in new_slots.items() for field, array in kinds.items()}
        return parameters.rebuild(gradients, updates), parameters.rebuild(state, new_state)

    return Optimizer(init, update, schedule, groups)


def _normalize(
    gradient: Float[Array, "..."], old: dict[str, Array], decay, dims, epsilon: float, clipping_threshold: float | None
) -> tuple[Float[Array, "..."], dict[str, Array]]:
    """Divides the gradient of one layer by the root of its second moment and clips it; returns the new moments too."""

    def running(field, square):
        return decay * old[field] + (1.0 - decay) * square

    square = gradient * gradient + epsilon
    if dims is None:
        new = {"v": running("v", square)}
        scaled = gradient * new["v"] ** -0.5
    else:
        rows, columns = dims
        new = {
            "v_row": running("v_row", jnp.mean(square, axis=columns)),
            "v_col": running("v_col", jnp.mean(square, axis=rows)),
        }
        row_factor = (new["v_row"] / jnp.mean(new["v_row"])) ** -0.5
        scaled = gradient * jnp.expand_dims(row_factor, columns) * jnp.expand_dims(new["v_col"] ** -0.5, rows)
    if clipping_threshold is not None:
        scaled /= jnp.maximum(1.0, _root_mean_square(scaled) / clipping_threshold)
    return scaled, new


def _root_mean_square(array: Float[Array, "..."]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.mean(array * array))


def _factored_dims(axes, shape, smallest: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the row and the column dimensions of one layer's array, or None if it is not factored.

    The query kernel of T5 small, `("embed", "heads", "kv")` with shape (512, 8, 64), gives `((0,), (1, 2))`: 512 x 512.
    """
    if "relpos_buckets" in axes:
        return None
    sides: list[tuple[int, ...]] = []
    for dim, axis in enumerate(axes):
        if dim and (axes[dim - 1], axis) in JOINED_HEADS:  # T5X stores them as one dimension, `joined_kv`
            sides[-1] += (dim,)
        else:
            sides.append((dim,))
    embed = [side for side in sides if axes[side[0]] == "embed"]
    if len(sides) == 2:
        rows = embed[0] if embed else sides[0]
    elif len(sides) > 2 and len(embed) == 1:
        rows = embed[0]
    else:
        return None
    columns = tuple(dim for dim in range(len(axes)) if dim not in rows)
    if min(math.prod(shape[dim] for dim in side) for side in (rows, columns)) < smallest:
        return None
    return rows, columns


def _by_parameter(state: AdafactorState) -> dict[str, dict[str, Array]]:
    """Groups the running means by parameter: `{"model/…/kernel": {"v_row": …, "v_col": …}}`."""
    slots: dict[str, dict[str, Array]] = {}
    for field, kind in state._asdict().items():
        for name, array in parameters.named_leaves(kind).items():
            slots.setdefault(name, {})[field] = array
    return slots


def _slot(leaf: Leaf, shape, dims: Sequence[int], dtype: Any = jnp.float32) -> nnx.Variable:
    """Creates zeros with the given dimensions of one layer, stacked if the parameter is stacked."""
    stacked = shape[:1] if leaf.layers is not None else ()
    layer_shape = shape[len(stacked) :]
    zeros = jnp.zeros((*stacked, *(layer_shape[dim] for dim in dims)), dtype)
    return nnx.Variable(zeros, axes=tuple(leaf.axes[dim] for dim in dims))
