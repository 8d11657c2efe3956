"""Adapts any optax optimizer to stacks of layers, logical axes and parameter groups."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float
from optax.contrib import MuonDimensionNumbers

from t5x_like import parameters
from t5x_like.axis_rules import JOINED_HEADS
from t5x_like.errors import UserError
from t5x_like.optimizers.base import Optimizer, as_schedule, check_rates
from t5x_like.optimizers.groups import Leaf, ParameterGroup, is_vector, trainable_leaves
from t5x_like.optimizers.schedules import Schedule, Step
from t5x_like.recorded import recorded


@recorded
def from_optax(
    transform: optax.GradientTransformation,
    *,
    learning_rate: float | Schedule,
    weight_decay: float = 0.0,
    decay_vectors: bool = False,
    groups: Sequence[ParameterGroup] = (),
) -> Optimizer:
    """Creates an optimizer that applies an optax optimizer to each parameter of each layer separately.

    Norms, ratios and matrix functions are therefore computed per layer, whether layers are stacked or unrolled, and
    both layouts give the same result. A transform that couples parameters, such as `optax.clip_by_global_norm`, acts on
    one parameter at a time. Clip with `max_grad_norm` of the training loop instead.

    The transform gets a dictionary with one parameter, `{name: array}`, where the name has no layer index
    (`model/encoder/layers/attention/query/kernel`) and adjacent `heads` and `kv` dimensions are one dimension, so that
    attention kernels are matrices. Transforms with extra arguments also get `step`, which is the same for all layers.

    The update is `learning_rate * (transform's update - weight_decay * param)`.

    Example:
      >>> from_optax(optax.lion(1.0, b1=0.95, b2=0.98, weight_decay=0.0), learning_rate=3e-5, weight_decay=0.1)

    Args:
      transform: An optax optimizer created with a learning rate of 1.
      learning_rate: The schedule, or a number.
      weight_decay: Decoupled weight decay, in addition to the transform's; multiplied by the learning rate.
      decay_vectors: Whether `weight_decay` also applies to vectors (scales of norms, biases).
      groups: Parameter groups; the first one that matches a parameter applies.

    Returns:
      The optimizer. Its state has one entry per array of the transform's state and parameter.

    Raises:
      UserError: `weight_decay` is negative, or it is 0 and a group scales it.
    """
    check_rates("from_optax", weight_decay=weight_decay)
    schedule, groups = as_schedule(learning_rate), tuple(groups)
    transform = optax.with_extra_args_support(transform)
    if not weight_decay and (group := next((group for group in groups if group.weight_decay_factor != 1.0), None)):
        raise UserError(
            f"weight_decay_factor={group.weight_decay_factor} of the parameter group {group} cannot scale the weight "
            "decay of an optax optimizer. Set weight_decay of from_optax, and the optax optimizer's to 0."
        )

    def init(params):
        arrays = parameters.named_leaves(params)
        state: dict[str, dict[str, nnx.Variable]] = {}
        for name, leaf in trainable_leaves(params, groups).items():
            view = _View(transform, leaf, arrays[name])
            for slot, variable in view.init(arrays[name]).items():
                state.setdefault(slot, {})[name] = variable
        return state

    def update(gradients, state, params, *, step):
        arrays, gradient_arrays = parameters.named_leaves(params), parameters.named_leaves(gradients)
        state_arrays = parameters.named_leaves(state)
        rate = schedule(step)
        updates, new_state = {}, {}
        for name, leaf in trainable_leaves(params, groups).items():
            view = _View(transform, leaf, arrays[name])
            slots = {slot: state_arrays[f"{slot}/{name}"] for slot in view.slots}
            param = arrays[name].astype(jnp.float32)
            direction, slots = view.update(gradient_arrays[name].astype(jnp.float32), slots, param, step)
            if weight_decay and (decay_vectors or not is_vector(leaf)):
                direction -= weight_decay * leaf.broadcast_factor("weight_decay_factor", step) * param
            factor = leaf.broadcast_factor("learning_rate_factor", step) * leaf.broadcast_factor("update_factor", step)
            updates[name] = rate * factor * direction
            new_state |= {f"{slot}/{name}": array for slot, array in slots.items()}
        return parameters.rebuild(gradients, updates), parameters.rebuild(state, new_state)

    return Optimizer(init, update, schedule, groups)


class _View:
    """A parameter in the shape that the transform gets, and its state in the shapes that a checkpoint stores.

    The transform's state is stored as one array per slot. A slot is a path in the state without the parameter's name,
    such as `0/mu`. Arrays of the parameter's shape keep its dimensions and logical axes.

    Args:
      transform: The optax transform.
      leaf: The parameter.
      array: Its array or shape.
    """

    def __init__(self, transform: optax.GradientTransformationExtraArgs, leaf: Leaf, array: Any):
        self._transform, self._leaf = transform, leaf
        self._shape = array.shape if leaf.layers is None else array.shape[1:]
        self._matrix_shape = _join_heads(leaf.axes, self._shape)
        shapes = jax.eval_shape(
            lambda: transform.init({leaf.stored_name: jnp.zeros(self._matrix_shape, jnp.float32)}),
        )
        paths, self._structure = jax.tree_util.tree_flatten_with_path(shapes)
        self.slots = [_slot(path, leaf.stored_name) for path, _ in paths]
        self._slot_shapes = [shape.shape for _, shape in paths]

    def init(self, array: Float[Array, "..."]) -> dict[str, nnx.Variable]:
        def one(array):
            param = array.reshape(self._matrix_shape).astype(jnp.float32)
            return self._stored(self._transform.init({self._leaf.stored_name: param}))

        arrays = jax.vmap(one)(array) if self._leaf.layers is not None else one(array)
        return {
            slot: nnx.Variable(arrays[slot], axes=self._axes(shape))
            for slot, shape in zip(self.slots, self._slot_shapes, strict=True)
        }

    def update(
        self, gradient: Float[Array, "..."], slots: Mapping[str, Array], param: Float[Array, "..."], step: Step
    ) -> tuple[Float[Array, "..."], dict[str, Array]]:
        def one(gradient, slots, param):
            name = self._leaf.stored_name
            ordered = [slots[slot].reshape(shape) for slot, shape in zip(self.slots, self._slot_shapes, strict=True)]
            updates, state = self._transform.update(
                {name: gradient.reshape(self._matrix_shape)},
                jax.tree.unflatten(self._structure, ordered),
                {name: param.reshape(self._matrix_shape)},
                step=step,
            )
            return updates[name].reshape(self._shape), self._stored(state)

        return (jax.vmap(one) if self._leaf.layers is not None else one)(gradient, dict(slots), param)

    def _stored(self, state: Any) -> dict[str, Array]:
        return {
            slot: array.reshape(self._shape) if array.shape == self._matrix_shape else array
            for slot, array in zip(self.slots, jax.tree.leaves(state), strict=True)
        }

    def _axes(self, slot_shape: tuple[int, ...]) -> tuple[str | None, ...]:
        """Returns the logical axes of a slot: the parameter's, or of a square one, the axis whose size it has."""
        if slot_shape == self._matrix_shape:
            return self._leaf.axes
        if len(slot_shape) == 2 and slot_shape[0] == slot_shape[1] and slot_shape[0] in self._matrix_shape:
            sizes = _join_heads(self._leaf.axes, self._shape)
            firsts = [axis for i, axis in enumerate(self._leaf.axes) if not _is_joined(self._leaf.axes, i)]
            return (firsts[sizes.index(slot_shape[0])], None)
        return (None,) * len(slot_shape)


def matrices(params: Mapping[str, Array]) -> dict[str, bool]:
    """Masks vectors, for the `mask` argument of optax optimizers.

    Args:
      params: Parameters by name, as `from_optax` presents them.

    Returns:
      Name -> whether the parameter has at least two dimensions.
    """
    return {name: array.ndim >= 2 for name, array in params.items()}


def hidden_matrices(
    params: Mapping[str, Array], *, without: str = r"embed|logits|relative_bias"
) -> dict[str, MuonDimensionNumbers | None]:
    """Selects the parameters that Muon updates, for `muon_weight_dimension_numbers` of `optax.contrib.muon`.

    Muon is meant for the matrices of hidden layers. Embeddings, logits and vectors are left to Adam (Jordan et al.,
    2024, kellerjordan.github.io/posts/muon).

    Args:
      params: Parameters by name, as `from_optax` presents them.
      without: Regular expression; matrices whose names match it are left to Adam.

    Returns:
      Name -> the dimensions of the matrix, or None for Adam.
    """

    def is_hidden(name, array):
        # Muon also calls this function on trees whose other parameters are replaced by optax's MaskedNode.
        return getattr(array, "ndim", None) == 2 and not re.search(without, name)

    return {name: MuonDimensionNumbers(0, 1) if is_hidden(name, array) else None for name, array in params.items()}


def _join_heads(axes: Sequence[str | None], shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of one layer's array with adjacent `heads` and `kv` as one dimension."""
    joined: list[int] = []
    for dim, size in enumerate(shape):
        if _is_joined(axes, dim):
            joined[-1] *= size
        else:
            joined.append(size)
    return tuple(joined)


def _is_joined(axes: Sequence[str | None], dim: int) -> bool:
    """Returns whether a dimension is one with the dimension before it."""
    return dim > 0 and (axes[dim - 1], axes[dim]) in JOINED_HEADS


def _slot(path: tuple[Any, ...], name: str) -> str:
    """Returns the path of an array of the state without the parameter's name."""
    keys = [key for key in path if getattr(key, "key", None) != name]
    return jax.tree_util.keystr(tuple(keys), simple=True, separator="/")
