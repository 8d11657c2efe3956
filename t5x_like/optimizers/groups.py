"""Parameter groups: which parameters a factor or a freeze applies to.

Groups are matched against a parameter's name as it is on disk, where a stack of layers is one leaf
(`model/encoder/layers/attention/query/kernel`): the same group means the same parameters whether a run scans its layers
or unrolls them. What differs from layer to layer is a vector of factors.
"""

import dataclasses
import difflib
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.parameters import LAYERS, Tree

Factor = float | tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    """Parameters whose name and logical axes match, and what is special about them; of several groups the first counts.

    Attributes:
      pattern: a regular expression searched for in the name on disk, such as `relpos` or `^model/encoder/`.
      axis: a logical axis that the parameter must have, such as `vocab`; `layers` means any parameter within a stack.
      learning_rate_factor: multiplies the learning rate; one number, or one for each layer of the stack.
      weight_decay_factor: multiplies the weight decay; one number, or one for each layer of the stack.
      freeze: keeps the parameters as they are: no gradient and no optimizer state.
    """

    pattern: str = ".*"
    axis: str | None = None
    learning_rate_factor: float | Sequence[float] = 1.0
    weight_decay_factor: float | Sequence[float] = 1.0
    freeze: bool = False

    def __post_init__(self):
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise UserError(
                f"the pattern {self.pattern!r} of a parameter group is no regular expression: {error}"
            ) from error
        for field in ("learning_rate_factor", "weight_decay_factor"):
            value = getattr(self, field)
            value = float(value) if np.ndim(value) == 0 else tuple(float(number) for number in value)
            if np.min(value) < 0:
                raise UserError(f"{field}={value} of the parameter group {self.pattern!r} must not be negative")
            object.__setattr__(self, field, value)

    def __str__(self):
        return repr(self.pattern) + (f" with axis {self.axis!r}" if self.axis else "")

    def matches(self, leaf: "Leaf") -> bool:
        """Whether the name and the axes of `leaf` fit this group."""
        has_axis = self.axis is None or self.axis in leaf.all_axes
        return has_axis and re.search(self.pattern, leaf.stored_name) is not None


@dataclasses.dataclass(frozen=True)
class Leaf:
    """What an optimizer knows of one parameter.

    Attributes:
      stored_name: the name on disk, without a layer's index.
      axes: the logical axes of one layer's array.
      layers: how many layers this very array stacks; None where it stacks none.
      index: the layer of an unrolled stack that this array belongs to; None outside one.
      group: the group that claims it.
    """

    stored_name: str
    axes: tuple[str | None, ...]
    layers: int | None = None
    index: int | None = None
    group: ParameterGroup = ParameterGroup()

    @property
    def all_axes(self) -> tuple[str | None, ...]:
        """The logical axes on disk: with `layers` in front within a stack."""
        return self.axes if self.layers is None and self.index is None else (LAYERS, *self.axes)

    def factor(self, field: str) -> float | np.ndarray:
        """A factor of the group for this array: one number, or `[layers]` numbers for an array that stacks layers."""
        value = getattr(self.group, field)
        if self.layers is not None:
            return np.broadcast_to(np.asarray(value, np.float32), (self.layers,))
        return value[self.index] if isinstance(value, tuple) else value


def leaves(params: Tree, groups: Sequence[ParameterGroup]) -> dict[str, Leaf]:
    """The leaves of `params` by name, each with the group that claims it.

    Raises:
      UserError: a group claims no parameter, or has a vector of factors where there is no stack of that many layers.
    """
    claimed = _claim_all(params, groups)
    _check_claims(list(claimed.values()), groups)
    _check_vectors(list(claimed.values()))
    return claimed


def trainable_leaves(params: Tree, groups: Sequence[ParameterGroup]) -> dict[str, Leaf]:
    """`leaves` of what `split` calls trainable.

    Raises:
      UserError: a parameter belongs to a group that freezes; besides, the errors of `leaves`.
    """
    for name, leaf in _claim_all(params, groups).items():
        if leaf.group.freeze:
            raise ValueError(
                f"{name} is frozen by the parameter group {leaf.group}, yet an optimizer was given it: "
                "take frozen parameters out first with optimizers.split(params, groups)"
            )
    return leaves(params, [group for group in groups if not group.freeze])


def split(params: Tree, groups: Sequence[ParameterGroup]) -> tuple[Tree, Tree]:
    """Splits parameters into those that are trained and those that groups freeze.

    Both trees are laid out like `params`, with None at the places of the other: JAX sees no leaf there, so a gradient
    with respect to the first, and an optimizer state built from it, hold nothing for a frozen parameter.

    Args:
      params: a tree of `nnx.Variable`s (arrays or shapes).
      groups: the parameter groups; the first that matches a parameter decides.

    Returns:
      `(trainable, frozen)`.

    Raises:
      UserError: a group claims no parameter, or all parameters are frozen.
    """
    claimed = leaves(params, groups)
    if claimed and all(leaf.group.freeze for leaf in claimed.values()):
        named = ", ".join(map(str, groups))
        raise UserError(f"the parameter groups {named} freeze every parameter: nothing is left to train")
    trainable = parameters.map_named(lambda name, array: None if claimed[name].group.freeze else array, params)
    frozen = parameters.map_named(lambda name, array: array if claimed[name].group.freeze else None, params)
    return trainable, frozen


def merge(trainable: Tree, frozen: Tree) -> Tree:
    """The inverse of `split`: each leaf from the tree that has it."""

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


def _claim_all(params: Tree, groups: Sequence[ParameterGroup]) -> dict[str, Leaf]:
    axes = parameters.logical_axes(params)
    claimed = {}
    for name, array in parameters.named_leaves(params).items():
        leaf = _leaf(name, array, axes[name])
        group = next((group for group in groups if group.matches(leaf)), leaf.group)
        claimed[name] = dataclasses.replace(leaf, group=group)
    return claimed


def _check_claims(claimed: list[Leaf], groups: Sequence[ParameterGroup]):
    for group in groups:
        if any(leaf.group is group for leaf in claimed):
            continue
        shadowing = sorted({str(leaf.group) for leaf in claimed if group.matches(leaf)})
        if shadowing:
            raise UserError(
                f"the parameter group {group} claims nothing: all it matches goes to the earlier {', '.join(shadowing)}"
            )
        near = _nearest(group.pattern, sorted({leaf.stored_name for leaf in claimed}))
        axes = sorted({axis for leaf in claimed for axis in leaf.all_axes if axis})
        known_axes = f"; the logical axes are {', '.join(axes)}" if group.axis else ""
        raise UserError(
            f"the parameter group {group} matches no parameter; the nearest names are {', '.join(near)}{known_axes} "
            "(names hold no layer's index: give one factor a layer instead)"
        )


def _check_vectors(claimed: list[Leaf]):
    unrolled: dict[str, int] = {}
    for leaf in claimed:
        if leaf.index is not None:
            unrolled[leaf.stored_name] = max(unrolled.get(leaf.stored_name, 0), leaf.index + 1)
    for leaf in claimed:
        for field in ("learning_rate_factor", "weight_decay_factor"):
            value = getattr(leaf.group, field)
            layers = leaf.layers if leaf.layers is not None else unrolled.get(leaf.stored_name)
            if isinstance(value, tuple) and layers != len(value):
                found = "is in no stack of layers" if layers is None else f"is a stack of {layers} layers"
                raise UserError(
                    f"{field} of the parameter group {leaf.group} has {len(value)} numbers, one a layer, but "
                    f"{leaf.stored_name} {found}: narrow the group with its pattern, or with axis={LAYERS!r}"
                )


def _nearest(pattern: str, names: Sequence[str], count: int = 3) -> list[str]:
    def similarity(name):
        whole, *parts = [difflib.SequenceMatcher(None, pattern, text).ratio() for text in (name, *name.split("/"))]
        return max(whole, *parts), whole

    return sorted(names, key=similarity, reverse=True)[:count]
