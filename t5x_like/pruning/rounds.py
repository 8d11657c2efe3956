"""Which heads and units a round of pruning removes."""

import math
from collections.abc import Collection

import numpy as np
from jaxtyping import Bool

from t5x_like.errors import UserError
from t5x_like.pruning.importance import Importance
from t5x_like.pruning.structures import Structure

# A product such as 0.29 · 100 may be less than the integer that it stands for.
_ROUNDING = 1e-9

# Block -> whether each part of each layer is left.
Left = dict[str, Bool[np.ndarray, "layers parts"]]


def targets(structure: Structure, share: float, parts: int) -> int:
    """Returns how many parts of each layer are kept.

    Raises:
      UserError: The share is not between 0 and 1, or keeps no part of a layer.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise UserError(f"{structure.setting}={share}: not above 0 and at most 1. Give the share that is kept.")
    if (kept := int(share * parts + _ROUNDING)) < 1:
        raise UserError(
            f"{structure.setting}={share}: keeps none of the {parts} {structure.noun} of a layer. Give at least "
            f"{math.ceil(1000 / parts) / 1000}."
        )
    return kept


def per_layer(left: Left, importance: Importance, *, count: int, least: int, tied: Collection[str]) -> Left:
    """Removes the least important parts of each layer.

    Args:
      left: The parts that are left.
      importance: Their importance.
      count: Number of parts to remove from each layer.
      least: Number of parts to keep in each layer.
      tied: Blocks whose layers lose the same parts: those with the smallest sums of importance over the layers.
    """
    found = {}
    for block, mask in left.items():
        scores = np.where(mask, importance[block], -1.0)
        if block in tied:
            scores = np.broadcast_to(scores.sum(0), scores.shape)
            scores = np.where(mask, scores, -np.inf)
        kept = max(least, int(mask[0].sum()) - count)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :kept]
        found[block] = np.zeros_like(mask)
        np.put_along_axis(found[block], best, True, 1)
    return found


def over_all(left: Left, importance: Importance, *, count: int, structure: Structure) -> Left:
    """Removes the least important parts of all layers and blocks, as Michel et al. (2019, section 4.1) do.

    Raises:
      UserError: A layer has no part left.
    """
    order = sorted(
        (float(importance[block][layer, part]), block, layer, part)
        for block, mask in left.items()
        for layer, part in zip(*np.nonzero(mask), strict=True)
    )
    found = {block: mask.copy() for block, mask in left.items()}
    for _, block, layer, part in order[:count]:
        found[block][layer, part] = False
    for block, mask in found.items():
        if empty := np.flatnonzero(~mask.any(1)).tolist():
            raise UserError(
                f"{structure.setting}: layer {empty[0]} of {block} has no {structure.noun} left. Keep a larger share, "
                "or remove the same number from each layer with PER_LAYER=True."
            )
    return found
