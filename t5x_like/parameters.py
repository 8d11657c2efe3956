"""Names, logical axes and layouts of parameter trees.

A tree is any pytree of `flax.nnx.Variable`s and plain arrays: `{"model": module, "objective": …}`, a gradient of it, or
an optimizer state built from it. This module alone knows how a leaf is called, which logical axes it has and how a
stack of layers is laid out (see docs/architecture.md, "Parameters").
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

Tree = Any
LAYERS = "layers"
_UNROLLED = re.compile(rf"^(?P<stack>(?:.*/)?{LAYERS})/(?P<index>\d+)(?P<rest>/.*)$")


def _is_variable(node) -> bool:
    return isinstance(node, nnx.Variable)


def _name(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: Tree) -> dict[str, Any]:
    """The leaves of `tree` by name, such as `model/encoder/layers/0/attention/query/kernel`.

    The order is that of `jax.tree.leaves`. Works on arrays, shapes and shardings alike.
    """
    paths = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_variable)[0]
    named = {}
    for path, leaf in paths:
        value = leaf.get_value() if _is_variable(leaf) else leaf
        for inner, array in jax.tree_util.tree_flatten_with_path(value)[0]:
            named[_name(path + inner)] = array
    return named


def rebuild(tree: Tree, leaves: Mapping[str, Any]) -> Tree:
    """A tree like `tree` with the leaves of `leaves`, by name.

    Raises:
      KeyError: a name of `tree` is missing in `leaves`.
    """
    return jax.tree.unflatten(jax.tree.structure(tree), [leaves[name] for name in named_leaves(tree)])


def map_named(function, tree: Tree) -> Tree:
    """`tree` with each leaf replaced by `function(name, leaf)`."""
    return rebuild(tree, {name: function(name, leaf) for name, leaf in named_leaves(tree).items()})


def logical_axes(tree: Tree) -> dict[str, tuple[str | None, ...]]:
    """The logical axes of every leaf by name; a stacked leaf has `layers` in front.

    A leaf that is no `nnx.Variable`, or one without `axes`, has none: `(None,) * ndim`.
    """
    axes = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_variable)[0]:
        if not _is_variable(leaf):
            axes[_name(path)] = (None,) * jnp.ndim(leaf)
            continue
        declared = leaf.get_metadata().get("axes")
        for inner, array in jax.tree_util.tree_flatten_with_path(leaf.get_value())[0]:
            name, ndim = _name(path + inner), len(array.shape)
            if declared is None:
                axes[name] = (None,) * ndim
            elif ndim == len(declared):
                axes[name] = tuple(declared)
            elif ndim == len(declared) + 1:
                axes[name] = (LAYERS, *declared)
            else:
                raise ValueError(f"{name} has {ndim} dimensions, shape {array.shape}, but declares axes {declared}")
    return axes


def count(tree: Tree) -> int:
    """The number of scalars in `tree` (arrays or shapes)."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def stored_name(name: str) -> tuple[str, int | None]:
    """The name that a leaf has on disk, where a stack is one leaf, and the index of its layer in an unrolled stack."""
    match = _UNROLLED.match(name)
    return (match["stack"] + match["rest"], int(match["index"])) if match else (name, None)


def stack(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Named leaves with every unrolled stack turned into one leaf: `…/layers/<i>/x` → `…/layers/x`, `[layers, …]`.

    Accepts arrays and `jax.ShapeDtypeStruct`s (for which the result is a shape too, without sharding).
    """
    groups: dict[str, dict[int, Any]] = {}
    stacked: dict[str, Any] = {}
    for name, leaf in leaves.items():
        stored, index = stored_name(name)
        if index is None:
            stacked[name] = leaf
        else:
            groups.setdefault(stored, {})[index] = leaf
    for name, layers in groups.items():
        if sorted(layers) != list(range(len(layers))):
            raise ValueError(f"{name}: layers {sorted(layers)} have gaps")
        ordered = [layers[index] for index in range(len(layers))]
        if isinstance(ordered[0], jax.ShapeDtypeStruct):
            stacked[name] = jax.ShapeDtypeStruct((len(ordered), *ordered[0].shape), ordered[0].dtype)
        else:
            stacked[name] = jnp.stack(ordered)
    return stacked


def unstack(stacked: Mapping[str, Any], like: Tree) -> Tree:
    """The inverse of `stack`: a tree laid out like `like` from stacked leaves.

    Raises:
      KeyError: a leaf of `like` has no counterpart in `stacked`.
    """

    def pick(name, _):
        stored, index = stored_name(name)
        return stacked[stored] if index is None else stacked[stored][index]

    return map_named(pick, like)
