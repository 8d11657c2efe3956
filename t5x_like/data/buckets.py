"""Lengths of batches: the longest row, rounded up to one of a few lengths, so that few programs are compiled."""

from collections.abc import Mapping

import numpy as np

from t5x_like.axis_rules import INPUT_TOKENS_SUFFIX, LENGTH, NO_AXES, Axes, batch_axes

# The shortest length of a batch. Shorter rows would save little and compile another program.
SHORTEST = 16
_SEGMENT_IDS_SUFFIX = "_segment_ids"


def bucket(length: int, longest: int, shards: int = 1) -> int:
    """Returns the length of a batch: 16, 32, 64, …, or the longest length.

    Args:
      length: Length of the longest row of the batch.
      longest: Length of the longest row that the settings allow.
      shards: Number of shards of a row, which divides all lengths but `longest`.
    """
    found = -(-SHORTEST // shards) * shards
    while found < length:
        found *= 2
    return min(found, longest)


def row_length(features: Mapping[str, np.ndarray]) -> int:
    """Returns the length of a row without the padding at its end, by its segment ids; without these, its full length.

    Args:
      features: Model features of a row, `[length]` or `[choices, length]`.
    """
    ends = [array.any(axis=tuple(range(array.ndim - 1))) for array in _of(features, _SEGMENT_IDS_SUFFIX)]
    if not ends:
        return full_length(features)
    return max(int(np.max(np.arange(1, len(real) + 1) * real, initial=1)) for real in ends)


def row_lengths(features: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns `row_length` of each row of a batch.

    Args:
      features: Model features, `[rows, length]` or `[rows, choices, length]`.

    Returns:
      int `[rows]`.
    """
    found = []
    for array in _of(features, _SEGMENT_IDS_SUFFIX):
        real = array.astype(bool).any(axis=tuple(range(1, array.ndim - 1)))
        found.append((np.arange(1, real.shape[1] + 1) * real).max(axis=1))
    if not found:
        return np.full(len(next(iter(features.values()))), full_length(features))
    return np.maximum(np.max(found, axis=0), 1)


def full_length(features: Mapping[str, np.ndarray]) -> int:
    """Returns the length of the longest model input with its padding."""
    return max(array.shape[-1] for array in _of(features, INPUT_TOKENS_SUFFIX))


def trim(features: Mapping[str, np.ndarray], length: int, axes: Axes = NO_AXES) -> dict[str, np.ndarray]:
    """Cuts the features that are as long as a model input (`*_input_tokens`), as `Partitioner.batch_specs` finds them.

    Args:
      features: Model features `[rows, …]`.
      length: The length to cut to.
      axes: Model feature -> logical axes; see `axis_rules.batch_axes`.
    """
    lengths = {array.shape[-1] for array in _of(features, INPUT_TOKENS_SUFFIX)}

    def cut(name: str, array: np.ndarray) -> np.ndarray:
        found = batch_axes(name, array.ndim, axes)
        at = found.index(LENGTH) if LENGTH in found else None
        return array[(slice(None),) * at + (slice(length),)] if at and array.shape[at] in lengths else array

    return {name: cut(name, array) for name, array in features.items()}


def _of(features: Mapping[str, np.ndarray], suffix: str) -> list[np.ndarray]:
    return [array for name, array in features.items() if name.endswith(suffix)]
