"""Where the heads and feed-forward units of a model are: which dimensions of which parameters belong to one of them.

The logical axes of the parameters say it, so that no family is named here. A *block* is an attention or feed-forward
block of a stack, such as `model/encoder/layers/attention`, with its layers stacked.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.parameters import LAYERS

Axes = Mapping[str, tuple[str | None, ...]]
# Block -> indices of the heads or units that are kept, in ascending order.
Kept = Mapping[str, Int[np.ndarray, "layers kept"]]
_BLOCK = re.compile(rf"^(.*/{LAYERS}/[^/]+)/")


@dataclasses.dataclass(frozen=True)
class Structure:
    """A kind of part of a model.

    Attributes:
      noun: Name of several parts, for messages.
      setting: The macro with the share of parts to keep.
      axis: Logical axis whose elements are the parts. Kernels that begin with it read what a part computes.
      others: Other logical axes with elements of the parts, several of which may share an element.
      field: Field of the configuration of the model with the number of parts.
      other_fields: Fields with the sizes of `others`, where the configuration has them.
    """

    noun: str
    setting: str
    axis: str
    others: tuple[str, ...]
    field: str
    other_fields: tuple[str, ...] = ()

    def of_leaf(self, axes: tuple[str | None, ...]) -> int | None:
        """Returns the dimension of a parameter whose elements belong to parts, or None."""
        return next((i for i, axis in enumerate(axes) if axis == self.axis or axis in self.others), None)

    def reads(self, name: str, axes: tuple[str | None, ...]) -> bool:
        """Returns whether a parameter is a kernel that reads what the parts compute."""
        return name.endswith("/kernel") and axes[:2] == (LAYERS, self.axis)


@runtime_checkable
class LayerIndexed(Protocol):
    """A configuration of a model whose layers depend on their indices in a way that has a field of its own."""

    def keep_layers(self, indices: Sequence[int]) -> dict[str, Any]:
        """Returns the fields to change in a model with these layers, beside their number.

        Raises:
          UserError: The family needs another layer.
        """


@runtime_checkable
class HeadIndexed(Protocol):
    """A configuration of a model whose heads depend on their indices, such as BigBird's, which have random blocks."""

    def keep_heads(self, indices: Int[np.ndarray, "layers kept"]) -> dict[str, Any]:
        """Returns the fields to change in a model with these heads of each layer, beside their number."""


HEADS = Structure("heads", "HEADS", "heads", ("kv_heads",), "num_heads", ("num_kv_heads",))
UNITS = Structure("feed-forward units", "UNITS", "mlp", (), "mlp_dim")


def block_of(name: str) -> str | None:
    """Returns the block of a parameter, or None for a parameter outside of layers."""
    found = _BLOCK.match(name)
    return found and found[1]


def check_stacks(setting: str, config: ModelConfig, names: Iterable[str]) -> None:
    """Checks that each layer belongs to a stack of the configuration.

    Other layers may depend on a stack: ERNIE's layers of entities share the hidden units of the layers of tokens.

    Args:
      setting: The setting that removes something, for the message.
      config: The configuration of the model.
      names: Stored names of its parameters.

    Raises:
      UserError: The model has other layers.
    """
    found = {block.split("/")[1] for name in names if (block := block_of(name)) is not None}
    if others := sorted(found - set(config.stacks)):
        raise UserError(
            f"{setting}: {type(config).__name__} has layers outside of its stacks ({', '.join(config.stacks)}), in "
            f"{', '.join(others)}, whose sizes depend on them. A smaller model of this family is not "
            f"supported. Omit {setting}."
        )


def count_parts(structure: Structure, leaves: Mapping[str, Array], axes: Axes) -> dict[str, int]:
    """Returns block -> number of its parts that can be removed; of grouped heads, the number of groups.

    Raises:
      UserError: The model has no such parts, or blocks have different numbers of them.
    """
    found: dict[str, int] = {}
    read = {block_of(name) for name, leaf_axes in axes.items() if structure.reads(name, leaf_axes)} - {None}
    for name, leaf_axes in axes.items():
        block, dimension = block_of(name), structure.of_leaf(leaf_axes)
        if block in read and dimension is not None:
            found[block] = min(leaves[name].shape[dimension], found.get(block, leaves[name].shape[dimension]))
    if len(set(found.values())) != 1:
        numbers = ", ".join(f"{block}: {number}" for block, number in found.items()) or "none"
        raise UserError(
            f"{structure.setting}: the blocks of the model do not have one number of {structure.noun} ({numbers}). "
            f"Omit {structure.setting}."
        )
    return found


def tied_blocks(structure: Structure, axes: Axes) -> set[str]:
    """Returns the blocks whose layers must keep the same parts, because a table outside of the layers has them too.

    T5's relative biases of a stack belong to the heads of its self-attention.
    """
    stacks = {
        name.split("/")[1] for name, leaf_axes in axes.items() if block_of(name) is None and structure.axis in leaf_axes
    }
    return {
        block
        for name, leaf_axes in axes.items()
        if structure.reads(name, leaf_axes)
        and (block := block_of(name)).split("/")[1] in stacks
        and not block.rsplit("/", 1)[1].startswith("cross")
    }


def select(leaf: Array, dimension: int, kept: Int[np.ndarray, "layers kept"], parts: int) -> Array:
    """Returns a stacked parameter with the kept parts alone.

    Args:
      leaf: The parameter `[layers, …]`.
      dimension: Its dimension of parts, which may have several elements per part.
      kept: The parts of each layer.
      parts: Number of parts.
    """
    each = leaf.shape[dimension] // parts
    indices = (kept[:, :, None] * each + np.arange(each)).reshape(len(kept), -1)
    indices = np.expand_dims(indices, [i for i in range(leaf.ndim) if i not in (0, dimension)])
    return np.take_along_axis(np.asarray(leaf), indices, dimension)


def cut(structure: Structure, leaves: Mapping[str, Array], axes: Axes, kept: Kept) -> dict[str, Array]:
    """Returns parameters without the parts that are not kept.

    Args:
      structure: What is removed.
      leaves: Stored name -> parameter.
      axes: Their logical axes.
      kept: The same number of parts in each block.
    """
    parts = count_parts(structure, leaves, axes)
    tied = {block.split("/")[1]: kept[block][:1] for block in tied_blocks(structure, axes)}
    found = {}
    for name, leaf in leaves.items():
        block, dimension = block_of(name), structure.of_leaf(axes[name])
        if dimension is not None and block in kept:
            leaf = select(leaf, dimension, kept[block], parts[block])
        elif dimension is not None and block is None and (stack := name.split("/")[1]) in tied:
            leaf = np.take(np.asarray(leaf), tied[stack][0], dimension)
        found[name] = leaf
    return found


def zero(
    structure: Structure, leaves: Mapping[str, Array], axes: Axes, left: Mapping[str, Bool[np.ndarray, "layers parts"]]
) -> dict[str, Array]:
    """Returns parameters of the same shapes, with zeros in all parameters of a part that is not left.

    The gradients of these zeros are 0: the part has no output, and reads no gradient. So they stay 0 in training.
    """
    found = dict(leaves)
    for name, leaf in leaves.items():
        block, dimension = block_of(name), structure.of_leaf(axes[name])
        if block in left and dimension is not None:
            mask = np.repeat(left[block], leaf.shape[dimension] // left[block].shape[1], axis=1)
            mask = np.expand_dims(mask, [i for i in range(leaf.ndim) if i not in (0, dimension)])
            found[name] = np.where(mask, np.asarray(leaf), 0)
    return found


def smaller(structure: Structure, config: ModelConfig, kept: Kept, parts: int) -> ModelConfig:
    """Returns the configuration of a model with fewer parts.

    Args:
      structure: The parts.
      config: The configuration.
      kept: The same number of parts in each block.
      parts: Number of parts of `config`.

    Raises:
      UserError: The configuration does not have the number of parts as a field.
    """
    if config.parts:
        changed = {name: smaller(structure, part, kept, parts) for name, part in config.parts.items()}
        return dataclasses.replace(config, **changed)
    changes: dict[str, Any] = {}
    number = next(iter(kept.values())).shape[1]
    for field in (structure.field, *structure.other_fields):
        value = getattr(config, field, None)
        if value is not None:
            changes[field] = value * number // parts
    if structure.field not in changes:
        raise UserError(
            f"{structure.setting}: {type(config).__name__} has no field {structure.field}. Omit "
            f"{structure.setting}, or keep the sizes with PER_LAYER=False."
        )
    if structure is HEADS and isinstance(config, HeadIndexed):
        (of_block,) = kept.values()
        changes |= config.keep_heads(of_block)
    return dataclasses.replace(config, **changes)


def per_part(
    structure: Structure, products: Mapping[str, Float[np.ndarray, "layers elements"]], parts: Mapping[str, int]
) -> dict[str, Float[np.ndarray, "layers parts"]]:
    """Returns the sums of numbers over the parameters of a block and the elements of each part."""
    found: dict[str, np.ndarray] = {}
    for name, product in products.items():
        block = block_of(name)
        found[block] = found.get(block, 0) + product.reshape(len(product), parts[block], -1).sum(-1)
    return found
