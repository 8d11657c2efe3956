"""Model batches from padded token arrays, without SeqIO: one example a row."""

from collections.abc import Mapping

import numpy as np

from t5x_like.data.features import FeatureSpec


def from_arrays(spec: FeatureSpec, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The features of `spec` for unpacked rows.

    Args:
      spec: an objective's features.
      arrays: task feature name -> int32 `[batch, length]`, 0 for padding at the end.

    Returns:
      Model feature name -> int32 `[batch, length]`.

    Raises:
      ValueError: an array is missing, or has another shape than the one it runs along.
    """
    if missing := [name for name in spec.task_features if name not in arrays]:
        raise ValueError(f"no array for {', '.join(map(repr, missing))}; given are {', '.join(map(repr, arrays))}")
    given = {name: np.asarray(arrays[name], np.int32) for name in spec.task_features}
    for name, array in given.items():
        if array.shape != given[spec.lead(name)].shape:
            raise ValueError(f"{name!r} {array.shape} must have the shape of {spec.lead(name)!r}, which it runs along")
    counts: dict[str, np.ndarray] = {}  # items of each row, [batch, 1], of each track's parts
    for name, array in given.items():
        places = (array != 0) * np.arange(1, array.shape[1] + 1)
        counts[spec.lead(name)] = np.maximum(
            counts.get(spec.lead(name), 0), places.max(axis=1, initial=0, keepdims=True)
        )
    batch = {}
    for feature in spec.features:
        if set(feature.sources) & set(spec.fixed_lengths):
            batch[feature.name] = given[feature.sources[0]]
            continue
        parts = [counts[name] for name in spec.track(feature.source)]
        tokens = _joined([given[name] for name in feature.sources], parts)
        batch[feature.name] = _ROLES[feature.role](tokens, sum(parts), sum(parts) - parts[-1], spec.bos_id)
    return batch


def _joined(arrays: list[np.ndarray], counts: list[np.ndarray]) -> np.ndarray:
    """Rows one after the other without the padding between them, int32 `[batch, sum of lengths]`."""
    if len(arrays) == 1:
        return arrays[0]
    joined = np.concatenate(arrays, axis=1)
    padding = np.concatenate(
        [np.arange(array.shape[1]) >= count for array, count in zip(arrays, counts, strict=True)], axis=1
    )
    order = np.argsort(padding, axis=1, kind="stable")
    return np.take_along_axis(np.where(padding, 0, joined), order, axis=1)


def _places(tokens: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)


def _where(condition: np.ndarray, value: np.ndarray | int = 1) -> np.ndarray:
    return np.where(condition, value, 0).astype(np.int32)


# Of tokens [batch, length], their counts and how many of them come before the last source [batch, 1], and BOS.
_ROLES = {
    "tokens": lambda tokens, count, before, bos: _where(_places(tokens) < count, tokens),
    "shifted": lambda tokens, count, before, bos: _where(
        _places(tokens) < count, np.pad(tokens, ((0, 0), (1, 0)), constant_values=bos)[:, :-1]
    ),
    "next": lambda tokens, count, before, bos: _where(
        _places(tokens) + 1 < count, np.pad(tokens, ((0, 0), (0, 1)))[:, 1:]
    ),
    "weights": lambda tokens, count, before, bos: _where(_places(tokens) < count),
    "next_weights": lambda tokens, count, before, bos: _where(_places(tokens) + 1 < count),
    "last_weights": lambda tokens, count, before, bos: _where((_places(tokens) >= before) & (_places(tokens) < count)),
    "prefix": lambda tokens, count, before, bos: _where(_places(tokens) < np.minimum(before + 1, count)),
    "segment_ids": lambda tokens, count, before, bos: _where(_places(tokens) < count),
    "positions": lambda tokens, count, before, bos: _where(_places(tokens) < count, _places(tokens)),
    "row_positions": lambda tokens, count, before, bos: _where(_places(tokens) < count, tokens),
}
