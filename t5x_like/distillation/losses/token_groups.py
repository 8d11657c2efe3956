"""Groups of positions of a row, such as the tokens that cover the same bytes as tokens of another vocabulary."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Groups = Int[Array, "batch positions"]
Positions = Int[Array, "batch pairs"]


class Bounds(NamedTuple):
    """The first and the last position of each group, counted from group 1; any position for a group without tokens."""

    first: Positions
    last: Positions


def bounds(groups: Groups, number: int) -> Bounds:
    """Returns the bounds of groups.

    Args:
      groups: Group of each position, from 1; 0 for none.
      number: Number of groups to return.
    """

    def of_row(groups):
        at, size = jnp.arange(groups.shape[0]), number + 1
        first = jax.ops.segment_min(at, groups, num_segments=size)
        last = jax.ops.segment_max(at, groups, num_segments=size)
        return Bounds(*(jnp.clip(each[1:], 0, groups.shape[0] - 1) for each in (first, last)))

    return jax.vmap(of_row)(groups)


def sum_groups(values: Float[Array, "batch positions"], groups: Groups, number: int) -> Float[Array, "batch groups"]:
    """Sums values over the positions of each group.

    Args:
      values: A value per position.
      groups: Group of each position, from 1; 0 for none.
      number: Number of groups to return.
    """

    def of_row(values, groups):
        return jax.ops.segment_sum(values, groups, num_segments=number + 1)[1:]

    return jax.vmap(of_row)(values, groups)


def count_groups(student: Groups, teacher: Groups) -> tuple[int, Float[Array, "batch groups"]]:
    """Returns the largest possible number of groups of a row, and 1 for each group that exists."""
    number = min(student.shape[1], teacher.shape[1])
    return number, (jnp.arange(1, number + 1) <= jnp.max(student, axis=1, keepdims=True)).astype(jnp.float32)


def at(array: Any, positions: Positions) -> Any:
    """Returns the entries of arrays `[batch, length, …]` at positions, `[batch, pairs, …]`."""

    def of(x):
        return jnp.take_along_axis(x, positions.reshape(*positions.shape, *[1] * (x.ndim - 2)), axis=1)

    return jax.tree.map(of, array)
