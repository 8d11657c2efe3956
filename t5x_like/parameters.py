"""Names, logical axes and layouts of parameter trees.

A tree is a pytree of `flax.nnx.Variable`s and arrays: `{"model": module, "objective": …}`, its gradient, or an
optimizer state. Only this module defines the names of leaves, their logical axes and the layouts of stacks of layers
(see docs/architecture.md, "Parameters").
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError

Tree = Any
LAYERS = "layers"
# A module with weights in few bits has them in `MODULE/quantization/values`, beside their scales and ranges.
QUANTIZATION, VALUES = "quantization", "values"
_UNROLLED = re.compile(rf"^(?P<stack>(?:.*/)?{LAYERS})/(?P<index>\d+)(?P<rest>/.*)$")


def check_pattern(setting: str, pattern: str) -> None:
    """Checks that a pattern of names is a regular expression.

    Args:
      setting: name of the setting, for the message.
      pattern: the pattern.

    Raises:
      UserError: it is not.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise UserError(f"{setting}={pattern!r} is not a regular expression: {error}. Correct the pattern.") from error


def _is_variable(node) -> bool:
    return isinstance(node, nnx.Variable)


def _name(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: Tree) -> dict[str, Any]:
    """Returns the leaves of a tree by name, such as `model/encoder/layers/0/attention/query/kernel`.

    Args:
      tree: a tree of arrays, shapes or shardings.

    Returns:
      Name -> leaf, in the order of `jax.tree.leaves`.
    """
    paths = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_variable)[0]
    named = {}
    for path, leaf in paths:
        value = leaf.get_value() if _is_variable(leaf) else leaf
        for inner, array in jax.tree_util.tree_flatten_with_path(value)[0]:
            named[_name(path + inner)] = array
    return named


def rebuild(tree: Tree, leaves: Mapping[str, Any]) -> Tree:
    """Replaces the leaves of a tree by name.

    Args:
      tree: a tree with the structure of the result.
      leaves: name -> leaf.

    Returns:
      A tree with the structure of `tree` and the leaves of `leaves`.

    Raises:
      KeyError: a name of `tree` is not in `leaves`.
    """
    return jax.tree.unflatten(jax.tree.structure(tree), [leaves[name] for name in named_leaves(tree)])


def map_named(function: Callable[[str, Any], Any], tree: Tree) -> Tree:
    """Replaces each leaf of a tree by `function(name, leaf)`."""
    return rebuild(tree, {name: function(name, leaf) for name, leaf in named_leaves(tree).items()})


def logical_axes(tree: Tree) -> dict[str, tuple[str | None, ...]]:
    """Returns the logical axes of all leaves.

    Args:
      tree: a tree of arrays or shapes.

    Returns:
      Name -> one logical axis per dimension. The first axis of a stacked leaf is `layers`. A leaf that is not an
      `nnx.Variable`, or that declares no `axes`, has the axes `(None,) * ndim`.

    Raises:
      ValueError: the shape of a leaf does not match its declared axes.
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
                raise ValueError(f"{name} has shape {array.shape} with {ndim} dimensions, but declares axes {declared}")
    return axes


def is_quantized_weight(name: str) -> bool:
    """Returns whether a leaf is a weight in few bits, by its name."""
    return name.endswith(f"/{QUANTIZATION}/{VALUES}")


def count(tree: Tree) -> int:
    """Counts parameters, with quantized weights as in the model without quantization.

    A byte with two 4-bit integers is two parameters. Scales and ranges of a quantization are not counted.

    Args:
      tree: A tree of arrays or shapes.
    """
    total = 0
    for name, leaf in named_leaves(tree).items():
        if is_quantized_weight(name):
            total += math.prod(leaf.shape) * (2 if leaf.dtype == jnp.uint8 else 1)
        elif f"/{QUANTIZATION}/" not in name:
            total += math.prod(leaf.shape)
    return total


def stored_name(name: str) -> tuple[str, int | None]:
    """Returns the name of a leaf on disk, where stacks are always stacked.

    Args:
      name: name of a leaf at run time.

    Returns:
      The stored name, and the index of the layer in an unrolled stack or None.
    """
    match = _UNROLLED.match(name)
    return (match["stack"] + match["rest"], int(match["index"])) if match else (name, None)


def stack(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Stacks the leaves of every unrolled stack: `…/layers/<i>/x` becomes `…/layers/x` of shape `[layers, …]`.

    Args:
      leaves: name -> array or `jax.ShapeDtypeStruct`.

    Returns:
      Stored name -> array or shape. Shapes have no sharding.

    Raises:
      ValueError: a layer of a stack is missing.
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
            raise ValueError(f"{name}: layers {sorted(layers)} are not contiguous")
        ordered = [layers[index] for index in range(len(layers))]
        if isinstance(ordered[0], jax.ShapeDtypeStruct):
            stacked[name] = jax.ShapeDtypeStruct((len(ordered), *ordered[0].shape), ordered[0].dtype)
        else:
            stacked[name] = jnp.stack(ordered)
    return stacked


def unstack(stacked: Mapping[str, Any], like: Tree) -> Tree:
    """Inverts `stack`.

    Args:
      stacked: stored name -> array.
      like: a tree with the structure of the result.

    Returns:
      A tree with the structure of `like` and the values of `stacked`.

    Raises:
      KeyError: a leaf of `like` is not in `stacked`.
    """

    def pick(name, _):
        stored, index = stored_name(name)
        return stacked[stored] if index is None else stacked[stored][index]

    return map_named(pick, like)
