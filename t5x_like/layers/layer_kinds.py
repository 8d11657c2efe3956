"""Kinds of layers: what differs between the layers of a stack although their parameters have the same shapes."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from t5x_like.layers.rotary import Rotary


@dataclasses.dataclass(frozen=True)
class LayerKind:
    """What the self-attention of a layer sees, and how it rotates queries and keys.

    The kinds of a stack are a pattern that repeats over its layers; the last repetition may be incomplete. They are
    known when a program is compiled: a scan runs over groups of as many layers as the pattern has.

    Attributes:
      window: Masks keys at a distance of `window` positions or more from the query; None for no limit. A decoder sees
        `window` keys, its own included, and an encoder `window - 1` keys on either side.
      rotary: Rotation of queries and keys; None for no rotation.
      window_after: Replaces `window` for the keys after the query, in an encoder; None for `window`.
    """

    window: int | None = None
    rotary: Rotary | None = None
    window_after: int | None = None

    @property
    def reach(self) -> dict[str, int | None]:
        """The windows as arguments of `Mask`."""
        return {"window": self.window, "window_after": self.window_after}


def shortest(values: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the shortest pattern of given elements, one per layer, whose last repetition may be incomplete."""
    patterns = (values[:each] for each in range(1, len(values) + 1))
    return tuple(next(each for each in patterns if over_layers(each, len(values)) == list(values)))


def over_layers(pattern: Sequence[Any], num_layers: int) -> list[Any]:
    """Returns the element of a pattern for each layer."""
    return [pattern[index % len(pattern)] for index in range(num_layers)]
