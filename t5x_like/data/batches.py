"""Model batches from padded token arrays, without SeqIO: one example per row."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.data.roles import make_feature
from t5x_like.errors import UserError


def from_arrays(
    spec: FeatureSpec, arrays: Mapping[str, np.ndarray], *, counts: Mapping[str, ArrayLike] | None = None
) -> dict[str, np.ndarray]:
    """Makes the model features of a spec for unpacked rows.

    Args:
      spec: Features of an objective.
      arrays: Task feature name -> `[batch, length]` or `[batch, length, inner]` of the feature's dtype, with padding at
        the end of rows.
      counts: Task feature name -> number of items in each row that are not padding, `[batch]`. For token ids without
        counts, zeros at the end of a row are padding. Give counts where id 0 can be text, as in GPT-2's vocabulary.

    Returns:
      Model feature name -> `[batch, *choices, length, *inner]`, int32 or the dtype of its source.

    Raises:
      UserError: an array is missing, an array or its counts have an unsuitable shape, or values that the spec declares
        as int32 are not integers.
    """
    if missing := [name for name in spec.task_features if name not in arrays]:
        raise UserError(
            f"arrays {', '.join(map(repr, arrays))}: no array for {', '.join(map(repr, missing))}. Give one array per "
            "task feature that the objective reads."
        )
    given = {name: _as_dtype(name, arrays[name], spec.task_dtype(name)) for name in spec.task_features}
    for name, array in given.items():
        wanted = ["batch", "length", *(str(spec.inner_sizes[name]) for _ in range(name in spec.inner_sizes))]
        if array.ndim != len(wanted) or [str(size) for size in array.shape[2:]] != wanted[2:]:
            raise UserError(f"{name!r}: shape {array.shape} does not suit. Give an array [{', '.join(wanted)}].")
        if array.shape[:2] != given[spec.lead(name)].shape[:2]:
            lead = spec.lead(name)
            raise UserError(
                f"{name!r}: shape {array.shape} differs from the shape {given[lead].shape} of {lead!r}, with which it "
                "is aligned. Give arrays of the same shape."
            )
    for name, length in spec.fixed_lengths.items():
        if given[name].shape[1] != length:
            raise UserError(
                f"{name!r}: {given[name].shape[1]} values per row, but the objective reads {length}. Give an array "
                f"[batch, {length}], or change the objective."
            )
    items = _items(spec, given, counts or {})

    def rows(feature: ModelFeature) -> np.ndarray:
        if set(feature.sources) & set(spec.fixed_lengths):
            return given[feature.sources[0]]
        parts = [items[name] for name in spec.track(feature.source)]
        tokens = _joined([given[name] for name in feature.sources], parts)
        return make_feature(feature.role, tokens, sum(parts), sum(parts) - parts[-1], spec.bos_id)

    return {feature.name: feature.stack(rows, lambda choices: np.stack(choices, axis=1)) for feature in spec.features}


def pad_rows(array: np.ndarray, rows: int) -> np.ndarray:
    """Appends rows of zeros, which have no weight.

    Args:
      array: `[batch, …]`.
      rows: Number of rows to append.
    """
    return np.pad(array, [(0, rows)] + [(0, 0)] * (array.ndim - 1))


def place_rows(array: np.ndarray, present: Sequence[bool]) -> np.ndarray:
    """Returns rows in their places of a batch, with rows of zeros in the other places.

    Args:
      array: `[rows, …]`, the rows of the places that are present, in order.
      present: For each row of the batch, whether it is present.
    """
    placed = np.zeros((len(present), *array.shape[1:]), array.dtype)
    placed[np.asarray(present, bool)] = array
    return placed


def repeat_last_row(array: np.ndarray, times: int) -> np.ndarray:
    """Appends copies of the last row. Text is generated for them as fast as for the row itself.

    Args:
      array: `[batch, …]`.
      times: Number of rows to append.
    """
    return np.pad(array, [(0, times)] + [(0, 0)] * (array.ndim - 1), mode="edge")


def rows_of_process(batch_size: int, process_index: int, process_count: int) -> range:
    """Returns the rows of each batch that a process reads.

    Raises:
      UserError: the batch size is not divisible by the number of processes.
    """
    if batch_size % process_count:
        raise UserError(
            f"BATCH_SIZE={batch_size} is not divisible by the number of processes. Give a multiple of {process_count}."
        )
    rows = batch_size // process_count
    return range(process_index * rows, (process_index + 1) * rows)


def _as_dtype(name: str, array: ArrayLike, dtype: str) -> np.ndarray:
    """Casts an array to a feature's dtype, but never truncates floats to integers."""
    array = np.asarray(array)
    if array.dtype.kind not in "iubf" or (dtype == "int32" and not np.array_equal(array, array.astype(dtype))):
        raise UserError(
            f"{name!r}: {array.dtype} values are not representable in int32, which the objective reads. Give token "
            f"ids, or declare the feature as TaskFeature({name!r}, …, dtype='float32') in the objective's FeatureSpec."
        )
    return array.astype(dtype)


def _items(
    spec: FeatureSpec, given: Mapping[str, np.ndarray], counts: Mapping[str, ArrayLike]
) -> dict[str, np.ndarray]:
    """Returns the number of items per row that are not padding, `[batch, 1]`, for each lead."""
    items: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(map(spec.lead, given)):
        rows, length = given[name].shape[:2]
        if name in counts:
            found = np.asarray(counts[name], np.int64)
            if found.shape != (rows,) or (found < 0).any() or (found > length).any():
                raise UserError(
                    f"counts[{name!r}]={found}: unsuitable shape or values. Give one number of 0 … {length} for each "
                    f"of the {rows} rows."
                )
            items[name] = found[:, np.newaxis]
        elif not spec.is_token_ids(name) and (name not in spec.inner_sizes or spec.task_dtype(name) != "int32"):
            items[name] = np.full((rows, 1), length)
        else:
            nonzero = [
                np.any(array != 0, axis=tuple(range(2, array.ndim)))
                for other, array in given.items()
                if spec.lead(other) == name
            ]
            ends = np.any(nonzero, axis=0) * np.arange(1, length + 1)
            items[name] = ends.max(axis=1, initial=0, keepdims=True)
    return items


def _joined(arrays: list[np.ndarray], counts: list[np.ndarray]) -> np.ndarray:
    """Concatenates rows without the padding between them, int32 `[batch, sum of lengths]`."""
    if len(arrays) == 1:
        return arrays[0]
    joined = np.concatenate(arrays, axis=1)
    padding = np.concatenate(
        [np.arange(array.shape[1]) >= count for array, count in zip(arrays, counts, strict=True)], axis=1
    )
    order = np.argsort(padding, axis=1, kind="stable")
    return np.take_along_axis(np.where(padding, 0, joined), order, axis=1)
