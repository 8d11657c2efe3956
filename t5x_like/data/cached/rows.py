"""A row as bytes, and many of them as a batch. Plain numpy.

A row is little-endian: how many examples it has (uint32), the items of each example in each track, and in each joined
track those before its last feature (uint32), then the values one after the other, as the manifest says how wide.
"""

import functools
import operator
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Shaped

from t5x_like.data.cached.layout import Layout, value_key
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import RunFailed, UserError

NARROW, WIDE, REAL = "<u2", "<i4", "<f4"
NARROW_IDS = 2**16
_COUNT = np.dtype("<u4")


def storage_dtype(ids: int) -> str:
    """The narrowest number that holds 0 … ids - 1."""
    return NARROW if ids <= NARROW_IDS else WIDE


def batch_dtype(stored: str) -> str:
    """The type that values of a stored one have in a batch."""
    return "float32" if np.dtype(stored).kind == "f" else "int32"


# ---- writing -------------------------------------------------------------------------------------------------------


def encode(stored: Mapping[str, np.ndarray], layout: Layout, dtypes: Sequence[str]) -> list[bytes]:
    """Rows as bytes.

    Args:
      stored: the features of `layout.storage_spec(spec)`, `[rows, length]`.
      layout: what a row holds.
      dtypes: of each value.

    Returns:
      One record a row.

    Raises:
      UserError: an id does not fit the width that its vocabulary promised.
    """
    values = [stored[f"value {index}"] for index in range(len(layout.values))]
    for value, array, dtype in zip(layout.values, values, dtypes, strict=True):
        if np.dtype(dtype).kind != "f" and array.size and (array.min() < 0 or array.max() > np.iinfo(dtype).max):
            raise UserError(
                f"{'+'.join(value.sources)!r} holds the id {array.max() if array.min() >= 0 else array.min()}, which "
                "its vocabulary does not have: its vocab_size is too small, or a preprocessor makes wrong ids"
            )
    segments = [stored[f"segments {index}"] for index in range(len(layout.tracks))]
    last = {index: stored[f"last {index}"] for index in layout.joined}
    return [_encode_row(row, values, segments, last, layout, dtypes) for row in range(len(values[0]))]


def _encode_row(row, values, segments, last, layout, dtypes) -> bytes:
    examples = max((int(track[row].max()) for track in segments), default=0)
    counts = [np.bincount(track[row], minlength=examples + 1)[1:] for track in segments]
    before = [
        counts[track] - np.bincount(segments[track][row], ends[row], examples + 1)[1:].astype(np.int64)
        for track, ends in last.items()
    ]
    parts = [np.asarray([examples]).astype(_COUNT), *(array.astype(_COUNT) for array in [*counts, *before])]
    for value, array, dtype in zip(layout.values, values, dtypes, strict=True):
        items = value.length if value.track is None else int(counts[value.track].sum())
        parts.append(array[row, :items].astype(dtype))
    return b"".join(part.tobytes() for part in parts)


# ---- reading -------------------------------------------------------------------------------------------------------


class Decoder:
    """Turns records into the batch of an objective, whose rows are what the live feed would give."""

    def __init__(self, layout: Layout, dtypes: Sequence[str], spec: FeatureSpec):
        """Args:
        layout: of the records.
        dtypes: of each value in them.
        spec: what the objective reads; of the same layout.
        """
        self._layout, self._dtypes, self._spec = layout, [np.dtype(dtype) for dtype in dtypes], spec
        self._room = [layout.track_length(index) for index in range(len(layout.tracks))]
        self._values = {(value.sources, value.within): index for index, value in enumerate(layout.values)}

    def __call__(self, records: Sequence[bytes]) -> dict[str, Shaped[np.ndarray, "rows length"]]:
        """The model features of these rows.

        Raises:
          UserError: a record is not of this layout.
        """
        examples, counts, flat = self._parse(records)
        tracks = [_Track(examples, counts[index], room) for index, room in enumerate(self._room)]
        for place, index in enumerate(self._layout.joined):
            tracks[index].before = counts[len(tracks) + place]
        batch = {}
        for feature in self._spec.features:
            index = self._values[value_key(feature)]
            value = self._layout.values[index]
            if value.track is None:
                batch[feature.name] = flat[index].reshape(len(records), value.length)
            else:
                track = tracks[value.track]
                batch[feature.name] = track.dense(_ROLES[feature.role](flat[index], track, self._spec.bos_id))
        return batch

    def _parse(self, records: Sequence[bytes]):
        """Examples of each row `[rows]`, counts `[tracks, examples]`, and each value of all rows, flat."""
        kinds, tracks = len(self._layout.tracks) + len(self._layout.joined), len(self._layout.tracks)
        # Each begins with nothing: a process may have no row of the last batch.
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
                    items = value.length if value.track is None else totals[value.track]
                    found.append(np.frombuffer(record, dtype, items, offset))
                    offset += items * dtype.itemsize
                if offset != len(record) or any(map(operator.gt, totals, self._room)):
                    raise ValueError(f"it has {len(record)} bytes, and its counts ask for {offset}")
        except ValueError as error:
            raise RunFailed(f"a cached row is not of the layout that its manifest says: {error}") from error
        return (
            np.asarray(examples, np.int32),
            np.concatenate(counts, axis=1).astype(np.int32),
            [
                np.concatenate(found).astype(batch_dtype(dtype))
                for found, dtype in zip(parts, self._dtypes, strict=True)
            ],
        )


class _Track:
    """The items of many rows' examples one after the other, and how they become rows; as the converter's `Track`.

    Attributes:
      counts: items of each example, int32 `[examples]`.
      before: how many of them come before the last joined feature, `[examples]`.
    """

    def __init__(self, examples: np.ndarray, counts: np.ndarray, length: int):
        """Args:
        examples: of each row, `[rows]`.
        counts: items of each example, `[examples]`.
        length: of a row.
        """
        self.counts, self.before, self._examples, self._length = counts, np.zeros_like(counts), examples, length
        self._starts = _exclusive(counts)

    @functools.cached_property
    def positions(self) -> np.ndarray:
        """Each item's place in its example, flat."""
        return np.arange(self.counts.sum(), dtype=np.int32) - np.repeat(self._starts, self.counts)

    @functools.cached_property
    def left(self) -> np.ndarray:
        """How many items of the same example follow each item, flat."""
        return np.repeat(self.counts, self.counts) - self.positions - 1

    @functools.cached_property
    def segments(self) -> np.ndarray:
        """Each item's example in its row, from 1 on, flat."""
        number = np.arange(1, len(self.counts) + 1, dtype=np.int32)
        return np.repeat(number - np.repeat(_exclusive(self._examples), self._examples), self.counts)

    @functools.cached_property
    def _is_real(self) -> np.ndarray:
        """Which places of the rows hold an item, bool `[rows, length]`."""
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        row_ends = ends[np.cumsum(self._examples)]
        row_lengths = np.diff(row_ends, prepend=0)
        return np.arange(self._length) < row_lengths[:, np.newaxis]

    def dense(self, flat: np.ndarray) -> Shaped[np.ndarray, "rows length"]:
        """Flat values as rows, 0 behind the last example."""
        rows = np.zeros(self._is_real.shape, np.float32 if flat.dtype == np.float32 else np.int32)
        rows[self._is_real] = flat
        return rows


def _exclusive(counts: np.ndarray) -> np.ndarray:
    """How many there are before each, int32."""
    return (np.cumsum(counts) - counts).astype(np.int32)


# Of flat items, their track and BOS; flat too. The same as the converter's, in numpy.
_ROLES = {
    "tokens": lambda tokens, track, bos: tokens,
    "shifted": lambda tokens, track, bos: np.where(track.positions > 0, np.roll(tokens, 1), np.int32(bos)),
    "next": lambda tokens, track, bos: np.where(track.left > 0, np.roll(tokens, -1), np.int32(0)),
    "weights": lambda tokens, track, bos: np.ones_like(tokens),
    "next_weights": lambda tokens, track, bos: track.left > 0,
    "last_weights": lambda tokens, track, bos: track.positions >= np.repeat(track.before, track.counts),
    "prefix": lambda tokens, track, bos: track.positions <= np.repeat(track.before, track.counts),
    "segment_ids": lambda tokens, track, bos: track.segments,
    "positions": lambda tokens, track, bos: track.positions,
    "row_positions": lambda tokens, track, bos: tokens,
}
