"""Parameter groups: learning-rate factors, weight-decay factors and freezing for parameters selected by regex.

Groups match the name of a parameter on disk, where a stack of layers is one array
(`model/encoder/layers/attention/query/kernel`). A group therefore selects the same parameters in scanned and unrolled
runs. A factor may be a vector with one number per layer, or a function of a layer's distance from the head and of the
step.
"""

import dataclasses
import difflib
import re
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t5x_like import parameters
from t5x_like.axis_rules import JOINED_HEADS
from t5x_like.errors import UserError
from t5x_like.optimizers import depths
from t5x_like.optimizers.depths import Distance
from t5x_like.optimizers.schedules import Step
from t5x_like.parameters import LAYERS, Tree

_FACTORS = ("learning_rate_factor", "weight_decay_factor", "update_factor")


class LayerFactor(Protocol):
    """A factor that depends on the depth of a layer and on the step, such as `finetuning.LayerDecay`."""

    def __call__(self, distance: Distance, step: Step) -> Float[Array, "*layers"]:
        """Returns the factors.

        Args:
          distance: Distance from the head; an array `[layers]` for a stack. See `depths`.
          step: The step of the update.
        """


@runtime_checkable
class CheckedLayerFactor(LayerFactor, Protocol):
    """A factor that is defined for some numbers of layers only."""

    def check(self, num_layers: int) -> None:
        """Checks the number of layers.

        Args:
          num_layers: Number of layers of the tallest stack of the model.

        Raises:
          UserError: The factor is not defined for it.
        """


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    """Parameters selected by name and logical axis, and how the optimizer treats them.

    If several groups match a parameter, the first one applies.

    Attributes:
      pattern: A regular expression that is searched for in the name on disk, such as `relpos` or `^model/encoder/`.
      axis: A logical axis that the parameter must have, such as `vocab`. `layers` selects all parameters of stacks.
      learning_rate_factor: Multiplies the learning rate: one number, one number per layer of the stack, or a
        `LayerFactor`.
      weight_decay_factor: Multiplies the weight decay, in the same forms.
      update_factor: Multiplies the whole update, weight decay included, in the same forms. Where it is 0, parameters
        keep their values. The optimizer's moments follow the gradients all the same, so that the first update after a
        factor of 0 has the size of the others, and the gradients count in the global norm.
      freeze: Whether the parameters are constant, without gradients and optimizer state.
      clip: Whether the limit of the global norm of gradients applies. Gradients without it keep their size, and do not
        count in the norm.
      initial_factor: Multiplies the initial values of a run that starts from random ones; see `mup_groups`.
    """

    pattern: str = ".*"
    axis: str | None = None
    learning_rate_factor: float | Sequence[float] | LayerFactor = 1.0
    weight_decay_factor: float | Sequence[float] | LayerFactor = 1.0
    update_factor: float | Sequence[float] | LayerFactor = 1.0
    freeze: bool = False
    clip: bool = True
    initial_factor: float = 1.0

    def __post_init__(self):
        parameters.check_pattern("ParameterGroup.pattern", self.pattern)
        for field in _FACTORS:
            value = getattr(self, field)
            if callable(value):
                continue
            value = float(value) if np.ndim(value) == 0 else tuple(float(number) for number in value)
            if np.min(value) < 0:
                raise UserError(
                    f"{field}={value} of the parameter group {self.pattern!r} is negative. Give 0 or a positive number."
                )
            object.__setattr__(self, field, value)

    def __str__(self):
        return repr(self.pattern) + (f" with axis {self.axis!r}" if self.axis else "")

    def matches(self, leaf: "Leaf") -> bool:
        """Returns whether the name and the axes of `leaf` match this group."""
        has_axis = self.axis is None or self.axis in leaf.all_axes
        return has_axis and re.search(self.pattern, leaf.stored_name) is not None


@dataclasses.dataclass(frozen=True)
class Leaf:
    """The properties of one parameter that an optimizer uses.

    Attributes:
      stored_name: The name on disk, without layer index.
      axes: The logical axes of one layer's array.
      layers: Number of layers that the array stacks, or None.
      index: Layer index of an array in an unrolled stack, or None.
      distance: Distance from the head, an array `[layers]` if the array stacks layers; None if the tree has no stack.
      group: The parameter group that applies.
    """

    stored_name: str
    axes: tuple[str | None, ...]
    layers: int | None = None
    index: int | None = None
    distance: Distance | None = None
    group: ParameterGroup = ParameterGroup()

    @property
    def all_axes(self) -> tuple[str | None, ...]:
        """The logical axes on disk, where stacks have the leading axis `layers`."""
        return self.axes if self.layers is None and self.index is None else (LAYERS, *self.axes)

    def factor(self, field: str, step: Step) -> float | Float[Array | np.ndarray, "*layers"]:
        """Returns a factor of the group: a number, or an array `[layers]` if the parameter stacks layers.

        Args:
          field: `learning_rate_factor`, `weight_decay_factor` or `update_factor`.
          step: The step of the update.

        Raises:
          UserError: The factor depends on the distance from the head, which is unknown.
        """
        value = getattr(self.group, field)
        if callable(value):
            if self.distance is None:
                raise UserError(
                    f"{field}={value} of the parameter group {self.group} depends on the number of layers, but the "
                    f"trainable parameters beside {self.stored_name} contain no stack of layers. Freeze "
                    f"{self.stored_name} as well, or give a number as its factor in a group of its own."
                )
            return value(self.distance, step)
        if self.layers is not None:
            return np.broadcast_to(np.asarray(value, np.float32), (self.layers,))
        return value[self.index] if isinstance(value, tuple) else value

    def broadcast_factor(self, field: str, step: Step) -> float | Float[Array | np.ndarray, "..."]:
        """Returns `factor(field, step)` in a shape that broadcasts against the whole array."""
        factor = self.factor(field, step)
        return factor if self.layers is None else factor.reshape((-1,) + (1,) * len(self.axes))


def is_vector(leaf: Leaf) -> bool:
    """Returns whether one layer's array is a vector, where `heads` and `kv` count as one dimension."""
    return len(leaf.axes) < 2 or leaf.axes in JOINED_HEADS


def leaves(params: Tree, groups: Sequence[ParameterGroup]) -> dict[str, Leaf]:
    """Assigns a group to each parameter.

    Args:
      params: Parameters (arrays or shapes).
      groups: The parameter groups.

    Returns:
      Parameter name -> `Leaf`.

    Raises:
      UserError: A group applies to no parameter, or the length of a vector of factors is not the number of layers.
    """
    assigned = _assign_groups(params, groups)
    _check_all_apply(list(assigned.values()), groups)
    _check_vectors(list(assigned.values()))
    return assigned


def trainable_leaves(params: Tree, groups: Sequence[ParameterGroup]) -> dict[str, Leaf]:
    """Assigns a group to each parameter that is not frozen; see `leaves`.

    Raises:
      ValueError: A parameter is frozen.
      UserError: See `leaves`.
    """
    for name, leaf in _assign_groups(params, groups).items():
        if leaf.group.freeze:
            raise ValueError(
                f"{name} is frozen by the parameter group {leaf.group}, but was passed to an optimizer. Remove frozen "
                "parameters first with optimizers.split(params, groups)"
            )
    return leaves(params, [group for group in groups if not group.freeze])


def split(params: Tree, groups: Sequence[ParameterGroup]) -> tuple[Tree, Tree]:
    """Splits parameters into trainable and frozen ones.

    Both trees have the structure of `params`, with None in place of the parameters of the other tree. JAX does not
    treat None as a leaf, so gradients and optimizer states of the first tree contain no frozen parameters.

    Args:
      params: A tree of `nnx.Variable`s (arrays or shapes).
      groups: The parameter groups; the first one that matches a parameter applies.

    Returns:
      `(trainable, frozen)`.

    Raises:
      UserError: A group applies to no parameter, a factor is not defined for the number of layers, all parameters are
        frozen, or integers are not.
    """
    assigned = leaves(params, groups)
    _check_num_layers(list(assigned.values()), groups)
    if assigned and all(leaf.group.freeze for leaf in assigned.values()):
        named = ", ".join(map(str, groups))
        raise UserError(f"the parameter groups {named} freeze every parameter. Leave at least one parameter trainable.")
    for name, array in parameters.named_leaves(params).items():
        if not assigned[name].group.freeze and not jnp.issubdtype(array.dtype, jnp.inexact):
            raise UserError(
                f"{assigned[name].stored_name} is {array.dtype}: stored integers cannot be trained. Freeze them, as "
                "compression/int8_lora.gin does, or train rounded weights with compression/int8.gin."
            )
    trainable = parameters.map_named(lambda name, array: None if assigned[name].group.freeze else array, params)
    frozen = parameters.map_named(lambda name, array: array if assigned[name].group.freeze else None, params)
    return trainable, frozen


def scale_initial(params: Tree, groups: Sequence[ParameterGroup]) -> Tree:
    """Returns random initial parameters times the `initial_factor` of their groups."""
    if all(group.initial_factor == 1.0 for group in groups):
        return params
    assigned = leaves(params, groups)
    return parameters.map_named(lambda name, array: array * assigned[name].group.initial_factor, params)


def count_trained(params: Tree, groups: Sequence[ParameterGroup], step: int) -> int:
    """Counts the elements of the parameters that an update changes: not frozen, and with an update factor above 0.

    Args:
      params: Parameters (arrays or shapes).
      groups: The parameter groups.
      step: The step of the update.
    """
    trainable, _ = split(params, groups)
    assigned = trainable_leaves(trainable, groups)
    share = {name: np.mean(np.asarray(leaf.factor("update_factor", step)) > 0) for name, leaf in assigned.items()}
    return round(sum(share[name] * array.size for name, array in parameters.named_leaves(trainable).items()))


def merge(trainable: Tree, frozen: Tree) -> Tree:
    """Merges the two trees that `split` returns."""

    def either(ours, theirs):
        return theirs if ours is None else ours

    return jax.tree.map(either, trainable, frozen, is_leaf=lambda leaf: leaf is None)


def _leaf(name: str, array: Any, axes: tuple[str | None, ...]) -> Leaf:
    stored_name, index = parameters.stored_name(name)
    if index is not None:
        return Leaf(stored_name, axes, index=index)
    if axes and axes[0] == LAYERS:
        return Leaf(name, axes[1:], layers=array.shape[0])
    return Leaf(name, axes)


def _assign_groups(params: Tree, groups: Sequence[ParameterGroup]) -> dict[str, Leaf]:
    axes = parameters.logical_axes(params)
    distances = depths.distances(depths.stacked_layers(params))
    assigned = {}
    for name, array in parameters.named_leaves(params).items():
        leaf = _leaf(name, array, axes[name])
        group = next((group for group in groups if group.matches(leaf)), leaf.group)
        distance = distances[leaf.stored_name]
        if leaf.index is not None:
            distance = int(distance[leaf.index])
        assigned[name] = dataclasses.replace(leaf, group=group, distance=distance)
    return assigned


def _check_all_apply(assigned: list[Leaf], groups: Sequence[ParameterGroup]):
    if not assigned:  # a run that only calibrates ranges, which no optimizer updates
        return
    for group in groups:
        if any(leaf.group is group for leaf in assigned):
            continue
        shadowing = sorted({str(leaf.group) for leaf in assigned if group.matches(leaf)})
        if shadowing:
            raise UserError(
                f"the parameter group {group} applies to no parameter: all its matches belong to the earlier group "
                f"{', '.join(shadowing)}. Move it to the front or remove it."
            )
        near = _nearest(group.pattern, sorted({leaf.stored_name for leaf in assigned}))
        axes = sorted({axis for leaf in assigned for axis in leaf.all_axes if axis})
        known_axes = f"; the logical axes are {', '.join(axes)}" if group.axis else ""
        raise UserError(
            f"the parameter group {group} matches no parameter; the nearest names are {', '.join(near)}{known_axes} "
            "(names have no layer index; give a vector with one factor per layer instead)"
        )


def _check_vectors(assigned: list[Leaf]):
    unrolled: dict[str, int] = {}
    for leaf in assigned:
        if leaf.index is not None:
            unrolled[leaf.stored_name] = max(unrolled.get(leaf.stored_name, 0), leaf.index + 1)
    for leaf in assigned:
        for field in _FACTORS:
            value = getattr(leaf.group, field)
            layers = leaf.layers if leaf.layers is not None else unrolled.get(leaf.stored_name)
            if isinstance(value, tuple) and layers != len(value):
                found = "is not in a stack of layers" if layers is None else f"is a stack of {layers} layers"
                raise UserError(
                    f"{field} of the parameter group {leaf.group} has {len(value)} numbers, one per layer, but "
                    f"{leaf.stored_name} {found}. Restrict the group by its pattern, or by axis={LAYERS!r}."
                )


def _check_num_layers(assigned: list[Leaf], groups: Sequence[ParameterGroup]):
    stacked = [leaf.distance for leaf in assigned if leaf.layers is not None or leaf.index is not None]
    num_layers = max((int(np.max(distance)) - depths.LAST_LAYER + 1 for distance in stacked), default=0)
    for factor in (getattr(group, field) for group in groups for field in _FACTORS):
        if num_layers > 0 and isinstance(factor, CheckedLayerFactor):
            factor.check(num_layers)


def _nearest(pattern: str, names: Sequence[str], count: int = 3) -> list[str]:
    def similarity(name):
        whole, *parts = [difflib.SequenceMatcher(None, pattern, text).ratio() for text in (name, *name.split("/"))]
        return max(whole, *parts), whole

    return sorted(names, key=similarity, reverse=True)[:count]
