"""Encodes rows as bytes and decodes them to batches, in plain NumPy.

A row is little-endian and has three parts: the number of examples (uint32); the counts (uint32), which are the number
of items of each example in each track, and for each joined track the number of items before its last feature; and the
values, with the dtypes that the manifest lists, item after item.
"""

import functools
import math
import operator
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Shaped

from t5x_like.data.cached.layout import Layout, value_key
from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.data.roles import FLAT
from t5x_like.errors import RunFailed, UserError

NARROW, NARROW_SIGNED, WIDE, REAL = "<u2", "<i2", "<i4", "<f4"
NARROW_IDS = 2**16
_COUNT = np.dtype("<u4")


def storage_dtype(ids: int, *, signed: bool = False) -> str:
    """Returns the narrowest storage dtype for 0 … ids - 1, or for -ids … ids - 1 if `signed`."""
    if signed:
        return NARROW_SIGNED if 2 * ids <= NARROW_IDS else WIDE
    return NARROW if ids <= NARROW_IDS else WIDE


def batch_dtype(stored: str) -> str:
    """Returns the dtype in a batch of values with a storage dtype."""
    return "float32" if np.dtype(stored).kind == "f" else "int32"


# ---- writing -------------------------------------------------------------------------------------------------------


def encode(stored: Mapping[str, np.ndarray], layout: Layout, dtypes: Sequence[str]) -> list[bytes]:
    """Encodes rows as bytes.

    Args:
      stored: Features of `layout.storage_spec(spec)`, `[rows, length]` or `[rows, length, inner]`.
      layout: Layout of the rows.
      dtypes: Storage dtype of each value.

    Returns:
      One record per row.

    Raises:
      UserError: an id does not fit into the storage dtype, which follows from the size of its vocabulary.
    """
    values = [stored[f"value {index}"] for index in range(len(layout.values))]
    for value, array, dtype in zip(layout.values, values, dtypes, strict=True):
        if np.dtype(dtype).kind == "f" or not array.size:
            continue
        limits = np.iinfo(dtype)
        if array.min() < limits.min or array.max() > limits.max:
            wrong = array.min() if array.min() < limits.min else array.max()
            raise UserError(
                f"{'+'.join(value.sources)!r}: the id {wrong} is not in the vocabulary. Correct the "
                "vocabulary's vocab_size, or the preprocessor that makes the ids."
            )
    segments = [stored[f"segments {index}"] for index in range(len(layout.tracks))]
    last = {index: stored[f"last {index}"] for index in layout.joined}
    values = [array.astype(dtype) for array, dtype in zip(values, dtypes, strict=True)]  # of all rows at once
    return [_encode_row(row, values, segments, last, layout) for row in range(len(values[0]))]


def _encode_row(row, values, segments, last, layout) -> bytes:
    examples = max((int(track[row].max()) for track in segments), default=0)
    counts = [np.bincount(track[row], minlength=examples + 1)[1:] for track in segments]
    before = [
        counts[track] - np.bincount(segments[track][row], ends[row], examples + 1)[1:].astype(np.int64)
        for track, ends in last.items()
    ]
    parts = [np.asarray([examples]).astype(_COUNT), *(array.astype(_COUNT) for array in [*counts, *before])]
    for value, array in zip(layout.values, values, strict=True):
        items = value.length if value.track is None else int(counts[value.track].sum())
        parts.append(array[row, :items])
    return b"".join(part.tobytes() for part in parts)


# ---- reading -------------------------------------------------------------------------------------------------------


class Decoder:
    """Decodes records to batches of an objective, whose rows equal the rows of a SeqIO source.

    Args:
      layout: Layout of the records.
      dtypes: Storage dtype of each value.
      spec: Features that the objective reads, of the same layout.
    """

    def __init__(self, layout: Layout, dtypes: Sequence[str], spec: FeatureSpec):
        self._layout, self._dtypes, self._spec = layout, [np.dtype(dtype) for dtype in dtypes], spec
        self._lengths = [layout.track_length(index) for index in range(len(layout.tracks))]
        self._values = {(value.sources, value.within): index for index, value in enumerate(layout.values)}

    def __call__(self, records: Sequence[bytes]) -> dict[str, Shaped[np.ndarray, "rows ..."]]:
        """Decodes records to model features.

        Args:
          records: Encoded rows.

        Returns:
          Model feature -> `[rows, length]`, `[rows, choices, length]` or `[rows, length, inner]`.

        Raises:
          RunFailed: a record does not have the layout.
        """
        examples, counts, flat = self._parse(records)
        tracks = [_Track(examples, counts[index], length) for index, length in enumerate(self._lengths)]
        for offset, index in enumerate(self._layout.joined):
            tracks[index].before = counts[len(tracks) + offset]

        def rows(feature: ModelFeature) -> np.ndarray:
            index = self._values[value_key(feature)]
            value = self._layout.values[index]
            if value.track is None:
                return flat[index].reshape(len(records), value.length)
            track = tracks[value.track]
            return track.dense(FLAT[feature.role](flat[index], track, self._spec.bos_id))

        return {
            feature.name: feature.stack(rows, lambda choices: np.stack(choices, axis=1))
            for feature in self._spec.features
        }

    def _parse(self, records: Sequence[bytes]):
        """Returns the examples per row `[rows]`, the counts `[tracks, examples]`, and each value of all rows, flat."""
        kinds, tracks = len(self._layout.tracks) + len(self._layout.joined), len(self._layout.tracks)
        # The initial empty arrays make concatenation work without records: a process may have no row of the last batch.
        examples, counts = [], [np.zeros((kinds, 0), _COUNT)]
        parts = [[np.zeros(0, dtype)] for dtype in self._dtypes]
        try:
            for record in records:
                number = int.from_bytes(record[: _COUNT.itemsize], "little")
                examples.append(number)
                counts.append(np.frombuffer(record, _COUNT, number * kinds, _COUNT.itemsize).reshape(kinds, number))
                offset = _COUNT.itemsize * (1 + number * kinds)
                totals = counts[-1][:tracks].sum(axis=1).tolist()
                for value, dtype, found in zip(self._layout.values, self._dtypes, parts, strict=True):
                    items = (value.length if value.track is None else totals[value.track]) * math.prod(
                        value.inner_shape
                    )
                    found.append(np.frombuffer(record, dtype, items, offset))
                    offset += items * dtype.itemsize
                if offset != len(record) or any(map(operator.gt, totals, self._lengths)):
                    raise ValueError(f"it has {len(record)} bytes, but its counts require {offset}")
        except ValueError as error:
            raise RunFailed(
                f"a cached row does not have the layout of the manifest: {error}. Copy or write the cache again."
            ) from error
        return (
            np.asarray(examples, np.int32),
            np.concatenate(counts, axis=1).astype(np.int32),
            [
                np.concatenate(found).astype(batch_dtype(dtype)).reshape(-1, *value.inner_shape)
                for found, dtype, value in zip(parts, self._dtypes, self._layout.values, strict=True)
            ],
        )


class _Track:
    """The concatenated items of the examples of many rows, and their arrangement in rows, like the converter's `Track`.

    Args:
      examples: Number of examples per row, `[rows]`.
      counts: Number of items of each example, `[examples]`.
      length: Length of a row.

    Attributes:
      counts: Number of items of each example, int32 `[examples]`.
      before: Number of items of each example before the last joined feature, `[examples]`.
    """

    def __init__(self, examples: np.ndarray, counts: np.ndarray, length: int):
        self.counts, self.before, self._examples, self._length = counts, np.zeros_like(counts), examples, length
        self._starts = _exclusive(counts)

    @functools.cached_property
    def positions(self) -> np.ndarray:
        """Position of each item in its example, flat."""
        return np.arange(self.counts.sum(), dtype=np.int32) - np.repeat(self._starts, self.counts)

    @functools.cached_property
    def left(self) -> np.ndarray:
        """Number of items of the same example after each item, flat."""
        return np.repeat(self.counts, self.counts) - self.positions - 1

    @functools.cached_property
    def segments(self) -> np.ndarray:
        """Number of the example of each item in its row, starting at 1, flat."""
        number = np.arange(1, len(self.counts) + 1, dtype=np.int32)
        return np.repeat(number - np.repeat(_exclusive(self._examples), self._examples), self.counts)

    @functools.cached_property
    def _is_real(self) -> np.ndarray:
        """Which positions of the rows contain an item, bool `[rows, length]`."""
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        row_ends = ends[np.cumsum(self._examples)]
        row_lengths = np.diff(row_ends, prepend=0)
        return np.arange(self._length) < row_lengths[:, np.newaxis]

    @functools.cached_property
    def last(self) -> np.ndarray:
        """Position in its example at which the last joined feature begins, for each item, flat."""
        return np.repeat(self.before, self.counts)

    def select(self, condition: np.ndarray, items: np.ndarray, other: int) -> np.ndarray:
        """Returns the items where a condition holds, and another value elsewhere."""
        return np.where(condition, items, np.int32(other))

    def roll(self, items: np.ndarray, shift: int) -> np.ndarray:
        """Moves items by a number of positions."""
        return np.roll(items, shift)

    def dense(self, flat: np.ndarray) -> Shaped[np.ndarray, "rows length ..."]:
        """Arranges flat values in rows, with 0 after the last example."""
        shape = (*self._is_real.shape, *flat.shape[1:])
        rows = np.zeros(shape, np.float32 if flat.dtype == np.float32 else np.int32)
        rows[self._is_real] = flat
        return rows


def _exclusive(counts: np.ndarray) -> np.ndarray:
    """Returns the exclusive cumulative sum, int32."""
    return (np.cumsum(counts) - counts).astype(np.int32)
