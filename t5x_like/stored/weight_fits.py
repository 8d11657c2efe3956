"""How the tensors of a source of pretrained weights become the parameters of a model."""

import dataclasses
import re
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t5x_like import parameters
from t5x_like.axis_rules import EMBED_VECTOR
from t5x_like.errors import UserError
from t5x_like.stored import layer_choice
from t5x_like.stored.weight_source import MODEL, VOCAB, InitialWeights

# Axes along which parameters of a model may be repeated. Others are numbers of things: tokens, positions, labels.
_TILED = ("embed", "mlp", "heads", "kv_heads", EMBED_VECTOR)
_STACK = re.compile(rf"{MODEL}(?P<stack>.+)/{parameters.LAYERS}/")


@dataclasses.dataclass(frozen=True)
class Fit:
    """How a stored tensor becomes a parameter.

    Attributes:
      stored_name: its name at the source.
      stored_shape: its shape there.
      layers: indices along the first axis; None for all.
      rows: the axis along which the numbers of rows differ: the first rows are restored.
      chosen: indices along this axis; None for the first rows.
      tiles: indices along each axis, or None for an axis that is not repeated; None for a tensor that is not tiled.
    """

    stored_name: str
    stored_shape: tuple[int, ...]
    layers: tuple[int, ...] | None = None
    rows: int | None = None
    chosen: tuple[int, ...] | None = None
    tiles: tuple[tuple[int, ...] | None, ...] | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the stored tensor is the parameter."""
        return self.layers is None and self.rows is None and self.tiles is None

    def apply(self, stored: Float[Array, "..."], fresh: Float[Array, "..."] | None = None) -> Float[Array, "..."]:
        """Returns the parameter.

        Args:
          stored: the stored tensor.
          fresh: the freshly initialized parameter, whose last rows complete a shorter table; not needed without `rows`,
            or with `chosen`.
        """
        if self.layers is not None:
            stored = stored[np.array(self.layers)]
        for axis, indices in enumerate(self.tiles or ()):
            stored = stored if indices is None else jnp.take(stored, np.array(indices), axis=axis)
        if self.rows is None:
            return stored
        if self.chosen is not None:
            return jnp.take(stored, np.array(self.chosen), axis=self.rows)
        here, there = fresh.shape[self.rows], stored.shape[self.rows]
        first = jax.lax.slice_in_dim(stored, 0, min(here, there), axis=self.rows)
        new = jax.lax.slice_in_dim(fresh, min(here, there), here, axis=self.rows)
        return jnp.concatenate([first, new], axis=self.rows)


def fit(
    source: InitialWeights,
    wanted: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    axes: Mapping[str, tuple[str | None, ...]],
    stored: Mapping[str, tuple[int, ...]],
) -> dict[str, Fit]:
    """Determines which parameters a source has, and how they fit.

    Args:
      source: the source.
      wanted: stored name of a parameter here -> its name at the source.
      shapes: stored name of a parameter here -> its shape.
      axes: stored name of a parameter here -> its logical axes.
      stored: name at the source -> shape.

    Returns:
      Stored name of a parameter here -> how it is made. Parameters that the source lacks, or has in a shape that does
      not fit, are missing.

    Raises:
      UserError: `source.layers` does not fit the stacks here and at the source, or with `source.new_tokens`, no table
        over the vocabulary has that many rows fewer.
    """
    chosen = layer_choice.resolve(
        source.layers or {},
        source.path,
        _depths({name: stored[other] for name, other in wanted.items() if other in stored}),
        _depths(shapes),
    )
    found, grown = {}, False
    for name, other in wanted.items():
        if other not in stored:
            continue
        stack = match["stack"] if (match := _STACK.match(name)) else None
        layers = chosen.get(stack) if stack else _of_later_layers(axes[name], shapes[name], chosen.values())
        candidate = Fit(other, stored[other], layers=layers)
        before = stored[other] if candidate.layers is None else (len(candidate.layers), *stored[other][1:])
        if source.tiled and name.startswith(MODEL) and (tiles := _tiles(axes[name], before, shapes[name])):
            found[name] = dataclasses.replace(candidate, tiles=tiles)
            continue
        rows = _differing_rows(source, axes[name], before, shapes[name])
        chosen_rows = None if rows is None else (source.rows or {}).get(axes[name][rows])
        grown |= rows is not None and chosen_rows is None and before[rows] < shapes[name][rows]
        if before == shapes[name] or rows is not None:
            chosen_rows = None if chosen_rows is None else tuple(chosen_rows)
            found[name] = dataclasses.replace(candidate, rows=rows, chosen=chosen_rows)
    if source.new_tokens and not grown:
        raise UserError(
            f"INITIAL_NEW_TOKENS={source.new_tokens}: no table over the vocabulary at {source.path} has "
            f"{source.new_tokens} rows fewer than this model. Increase the vocab_size of the model by the number of "
            "new tokens."
        )
    return found


def from_the_middle(stored: int, needed: int) -> tuple[int, ...]:
    """Returns indices that repeat all entries on both sides of their copy in the middle.

    Source: ModernBERT's code (Warner et al. 2024, arXiv:2412.13663, section 2.2.2, after Phi).

    >>> from_the_middle(3, 8)
    (1, 2, 0, 1, 2, 0, 1, 2)

    Args:
      stored: number of stored entries.
      needed: number of entries of this model.
    """
    offset = (needed - stored) // 2
    return tuple((index - offset) % stored for index in range(needed))


def _tiles(axes, stored: tuple[int, ...], here: tuple[int, ...]) -> tuple[tuple[int, ...] | None, ...] | None:
    """Returns `Fit.tiles`; None if the shapes are equal, or differ in another way."""
    pairs = list(zip(stored, here, strict=False))
    changed = [(pair, axis) for pair, axis in zip(pairs, axes, strict=False) if pair[0] != pair[1]]
    if len(stored) != len(here) or not changed:
        return None
    if any(before > after or axis not in _TILED for (before, after), axis in changed):
        return None
    return tuple(None if before == after else from_the_middle(before, after) for before, after in pairs)


def _of_later_layers(axes, shape: tuple[int, ...], chosen: Iterable[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Returns the rows of a parameter with a row for each layer but the first ones, as ModernBERT's norms."""
    chosen = list(chosen)
    if not chosen or not axes or axes[0] != parameters.LAYERS or len(chosen) > 1:
        return None
    first = len(chosen[0]) - shape[0]
    return tuple(max(layer - first, 0) for layer in chosen[0][first:])


def _depths(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Returns stack -> number of layers."""
    return {match["stack"]: shape[0] for name, shape in shapes.items() if (match := _STACK.match(name))}


def _differing_rows(source: InitialWeights, axes, stored: tuple[int, ...], here: tuple[int, ...]) -> int | None:
    """Returns the only axis along which the shapes differ, if the source says that its rows may."""
    if len(stored) != len(here):
        return None
    differing = [axis for axis, sizes in enumerate(zip(stored, here, strict=True)) if sizes[0] != sizes[1]]
    if len(differing) != 1:
        return None
    (axis,) = differing
    if (chosen := (source.rows or {}).get(axes[axis])) is not None:
        if len(chosen) != here[axis] or not all(0 <= row < stored[axis] for row in chosen):
            raise UserError(
                f"InitialWeights.rows={dict(source.rows)}: the table over {axes[axis]!r} has {here[axis]} rows, and "
                f"{source.path} has {stored[axis]}. Give {here[axis]} rows from 0 to {stored[axis] - 1}."
            )
        return axis
    is_longer = axes[axis] in source.truncated and stored[axis] > here[axis]
    is_shorter = axes[axis] == VOCAB and source.new_tokens and stored[axis] == here[axis] - source.new_tokens
    return axis if is_longer or is_shorter else None
