"""Adafactor (Shazeer and Stern, 2018, 1804.04235) as T5X runs it, layer by layer."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like import parameters
from t5x_like.optimizers.base import Optimizer, as_schedule
from t5x_like.optimizers.groups import Leaf, ParameterGroup, trainable_leaves
from t5x_like.optimizers.schedules import Schedule
from t5x_like.runtime.recorded import recorded

# Together these two are one dimension of the matrix that T5X stores as `joined_kv`.
_JOINED = ("heads", "kv")


class AdafactorState(NamedTuple):
    """Running means by the name of their parameter; a parameter is a key only of those it has.

    Attributes:
      v_row: of the squared gradient over the columns, with the row dimensions; for factored parameters.
      v_col: of the squared gradient over the rows, with the column dimensions; for factored parameters.
      v: of the squared gradient, for parameters that are not factored.
      m: of the update; empty without momentum.
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
    """Adafactor with T5X's formulas and defaults.

    Every mean (of the parameter scale, of the clip and of the factors) is taken within one layer, also where the layers
    of a stack share one array. A parameter is seen as the matrix that its logical axes make of it: `embed` against all
    others, `heads` and `kv` as one dimension. It is factored where both sides of that matrix have at least
    `min_dim_size_to_factor` entries; vectors and tables of relative positions are not.

    Args:
      learning_rate: the schedule, or a number. Relative to the parameter's scale, so larger than Adam's.
      factored: whether to keep row and column means of a matrix's squared gradient in place of all of them.
      multiply_by_parameter_scale: whether an update is multiplied by the root mean square of the parameter.
      beta1: the momentum; None for none, which saves the memory.
      decay_rate: second moments decay by `1 - t ** -decay_rate`, `t = step - step_offset + 1`.
      step_offset: the step at which second moments start afresh, for fine-tuning.
      clipping_threshold: the largest root mean square of an update before scaling; None for no clipping.
      weight_decay_rate: the share of a parameter taken off at each update, whatever the learning rate; None for none.
      min_dim_size_to_factor: the smallest side of a matrix that is factored.
      epsilon1: added to squared gradients.
      epsilon2: the smallest parameter scale.
      momentum_dtype: the dtype in which momentum is kept.
      groups: parameter groups; the first that matches a parameter counts.

    Returns:
      The optimizer.
    """
    schedule = as_schedule(learning_rate)
    groups = tuple(groups)
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

    def update_layer(dims, rate, decay, gradient, param, old, rate_factor, weight_decay_factor):
        """One layer's update and its new running means."""
        delta, new = _normalise(gradient, old, decay, dims, epsilon1, clipping_threshold)
        scale = rate * rate_factor
        if multiply_by_parameter_scale:
            scale *= jnp.maximum(_root_mean_square(param), epsilon2)
        delta *= scale
        if beta1 is not None:
            delta = beta1 * old["m"] + (1.0 - beta1) * delta
            new["m"] = delta.astype(momentum_dtype)
        if weight_decay_rate is not None:
            delta += weight_decay_rate * weight_decay_factor * param
        return -delta, new

    def update(gradients, state, params, *, step):
        arrays = parameters.named_leaves(params)
        gradient_arrays = parameters.named_leaves(gradients)
        slots = _by_parameter(state)
        rate = schedule(step)
        # Before step_offset nothing is averaged, as at step_offset itself.
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
                leaf.factor("learning_rate_factor"),
                leaf.factor("weight_decay_factor"),
            )
        new_state = {f"{field}/{name}": array for name, kinds in new_slots.items() for field, array in kinds.items()}
        return parameters.rebuild(gradients, updates), parameters.rebuild(state, new_state)

    return Optimizer(init, update, schedule, groups)


def _normalise(
    gradient: Float[Array, "..."], old: dict[str, Array], decay, dims, epsilon: float, clipping_threshold: float | None
) -> tuple[Float[Array, "..."], dict[str, Array]]:
    """The gradient of one layer over the root of its second moment, clipped, and the new second moments."""

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
    """The dimensions that are rows and those that are columns of one layer's array; None where it is not factored.

    The query kernel of T5 small, `("embed", "heads", "kv")` of shape (512, 8, 64), gives `((0,), (1, 2))`: 512 by 512.
    """
    if "relpos_buckets" in axes:
        return None
    sides: list[tuple[int, ...]] = []
    for dim, axis in enumerate(axes):
        if dim and (axes[dim - 1], axis) == _JOINED:
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
    """The running means of each parameter by their kind: `{"model/…/kernel": {"v_row": …, "v_col": …}}`."""
    slots: dict[str, dict[str, Array]] = {}
    for field, kind in state._asdict().items():
        for name, array in parameters.named_leaves(kind).items():
            slots.setdefault(name, {})[field] = array
    return slots


def _slot(leaf: Leaf, shape, dims: Sequence[int], dtype: Any = jnp.float32) -> nnx.Variable:
    """Zeros with the given dimensions of one layer, stacked where the parameter is."""
    stacked = shape[:1] if leaf.layers is not None else ()
    layer_shape = shape[len(stacked) :]
    zeros = jnp.zeros((*stacked, *(layer_shape[dim] for dim in dims)), dtype)
    return nnx.Variable(zeros, axes=tuple(leaf.axes[dim] for dim in dims))
