"""Model features by their role (`features.Role`): of packed rows, and of rows with one example each."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from t5x_like.data.features import Role


class Track(Protocol):
    """The items of many packed examples one after the other, in NumPy or TensorFlow; all arrays are `[items]`.

    Attributes:
      positions: Position of each item in its example.
      left: Number of items of the same example after each item.
      segments: Number of the example of each item in its row, from 1.
      last: Position in its example at which the last joined feature begins, for each item.
    """

    positions: Any
    left: Any
    segments: Any
    last: Any

    def select(self, condition: Any, items: Any, other: int) -> Any:
        """Returns the items where a condition holds, and another value elsewhere."""

    def roll(self, items: Any, shift: int) -> Any:
        """Moves items by a number of positions."""


FLAT: Mapping[Role, Callable[[Any, Track, int], Any]] = {
    "tokens": lambda items, track, bos: items,
    "shifted": lambda items, track, bos: track.select(track.positions > 0, track.roll(items, 1), bos),
    "next": lambda items, track, bos: track.select(track.left > 0, track.roll(items, -1), 0),
    "weights": lambda items, track, bos: track.positions >= 0,
    "next_weights": lambda items, track, bos: track.left > 0,
    "last_weights": lambda items, track, bos: track.positions >= track.last,
    "next_last_weights": lambda items, track, bos: (track.left > 0) & (track.positions + 1 >= track.last),
    "prefix": lambda items, track, bos: track.positions <= track.last,
    "segment_ids": lambda items, track, bos: track.segments,
    "positions": lambda items, track, bos: track.positions,
    "row_positions": lambda items, track, bos: items,
}
"""Role -> function of the items of packed examples, their track and the BOS id. Conditions stand for 0 and 1."""


def make_feature(role: Role, tokens: Any, count: Any, before: Any, bos_id: int) -> Any:
    """Makes a model feature of rows with one example each.

    Args:
      role: How it is made.
      tokens: `[batch, length]`, an array of NumPy or JAX: the items of the source, joined if it has several, with
        padding at the end of rows. For the role `tokens` also `[batch, length, inner]`.
      count: int32 `[batch, 1]`, the number of items of each row that are not padding.
      before: int32 `[batch, 1]`, the number of items of each row before the last of joined sources.
      bos_id: The first token of the role `shifted`.

    Returns:
      An array of the same library, `[batch, length]` or the shape of `tokens`: int32, or float32 if `tokens` is.
    """
    xp = tokens.__array_namespace__()
    at = xp.broadcast_to(xp.arange(tokens.shape[1], dtype=xp.int32), tokens.shape[:2])

    def where(condition: Any, value: Any = None) -> Any:
        value = xp.ones_like(at) if value is None else value
        return xp.where(condition, value, 0).astype(value.dtype if value.dtype == xp.float32 else xp.int32)

    match role:
        case "tokens" | "row_positions":
            real = at < count
            return where(real.reshape(*real.shape, *[1] * (tokens.ndim - 2)), tokens)
        case "shifted":
            return where(at < count, xp.pad(tokens, ((0, 0), (1, 0)), constant_values=bos_id)[:, :-1])
        case "next":
            return where(at + 1 < count, xp.pad(tokens, ((0, 0), (0, 1)))[:, 1:])
        case "weights" | "segment_ids":
            return where(at < count)
        case "next_weights":
            return where(at + 1 < count)
        case "last_weights":
            return where((at >= before) & (at < count))
        case "next_last_weights":
            return where((at + 1 >= before) & (at + 1 < count))
        case "prefix":
            return where(at < xp.minimum(before + 1, count))
        case "positions":
            return where(at < count, at)
    raise ValueError(f"unknown role {role!r}")
