"""Encodes the cached logits of a row as bytes and decodes them to batches, in plain NumPy.

A record has, for each prediction in the order of the manifest: the mask of its predicted positions (one bit per
position of a row, padded to bytes), and then for these n positions alone the values `[n, k]`, the ids `[n, k]`, the
log of the tail's mass `[n]`, and the log of the normalizer `[n]`, all little-endian. A row of padding has no position.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from t5x_like.errors import RunFailed

VALUES, IDS, LOG_TAIL, LOG_Z = "values", "ids", "log_tail", "log_z"
KINDS = (VALUES, IDS, LOG_TAIL, LOG_Z)
WEIGHTS = "weights"  # of the positions; computed with the kinds, and stored as a mask


@dataclasses.dataclass(frozen=True)
class Stored:
    """What is stored of one prediction.

    Attributes:
      positions: Number of positions of a row.
      classes: Number of classes, such as the size of the vocabulary.
      k: Number of the largest logits that are stored; `classes` for all.
      dtype: NumPy dtype of values, tails and normalizers: `float16` or `float32`.
    """

    positions: int
    classes: int
    k: int
    dtype: str

    @property
    def ids_dtype(self) -> str:
        """The smallest unsigned integer that holds the ids of all classes."""
        return np.min_scalar_type(self.classes - 1).name

    def dtype_of(self, kind: str) -> str:
        """Returns the NumPy dtype of one of `KINDS`."""
        return self.ids_dtype if kind == IDS else self.dtype

    def width_of(self, kind: str) -> int | None:
        """Returns the number of values per position of one of `KINDS`, or None for one without a dimension."""
        return self.k if kind in (VALUES, IDS) else None

    def shape_of(self, kind: str, positions: int) -> tuple[int, ...]:
        """Returns the shape of one of `KINDS` at some positions."""
        width = self.width_of(kind)
        return (positions,) if width is None else (positions, width)

    @property
    def bytes_per_position(self) -> int:
        """Number of bytes of a predicted position, without the mask."""
        return sum(np.dtype(self.dtype_of(kind)).itemsize * (self.width_of(kind) or 1) for kind in KINDS)


def encode(predictions: Mapping[str, Stored], arrays: Mapping[str, Mapping[str, np.ndarray]], rows: int) -> list[bytes]:
    """Encodes the first rows of a batch.

    Args:
      predictions: What is stored of each prediction.
      arrays: Prediction -> kind -> `[rows, positions, …]`, and `weights`, which are 0 at positions that are not stored.
        Positions at the end of the rows may be missing.
      rows: Number of rows to encode.

    Returns:
      A record per row.
    """
    return [
        b"".join(part for name, stored in predictions.items() for part in _parts(stored, arrays[name], row))
        for row in range(rows)
    ]


def _parts(stored: Stored, arrays: Mapping[str, np.ndarray], row: int) -> Iterator[bytes]:
    mask = arrays[WEIGHTS][row] > 0
    yield np.packbits(np.pad(mask, (0, stored.positions - len(mask)))).tobytes()
    for kind in KINDS:
        yield arrays[kind][row][mask].astype(_stored_dtype(stored, kind)).tobytes()


def decode(predictions: Mapping[str, Stored], records: Sequence[bytes]) -> dict[str, dict[str, np.ndarray]]:
    """Decodes records to arrays whose other positions are 0.

    Args:
      predictions: What is stored of each prediction.
      records: Encoded rows.

    Returns:
      Prediction -> kind -> `[rows, positions, …]`.

    Raises:
      RunFailed: a record does not have this form.
    """
    found = {
        name: {
            kind: np.zeros((len(records), *stored.shape_of(kind, stored.positions)), stored.dtype_of(kind))
            for kind in KINDS
        }
        for name, stored in predictions.items()
    }
    for row, record in enumerate(records):
        try:
            offset = 0
            for name, stored in predictions.items():
                size = -(-stored.positions // 8)
                bits = np.frombuffer(record, np.uint8, size, offset)
                mask, offset = np.unpackbits(bits, count=stored.positions).astype(bool), offset + size
                number = int(mask.sum())
                where = slice(number) if mask[:number].all() else mask  # copying a slice is faster
                for kind in KINDS:
                    dtype, shape = _stored_dtype(stored, kind), stored.shape_of(kind, number)
                    count = math.prod(shape)
                    found[name][kind][row, where] = np.frombuffer(record, dtype, count, offset).reshape(shape)
                    offset += count * dtype.itemsize
            if offset != len(record):
                raise ValueError(f"it has {len(record)} bytes, but its masks require {offset}")
        except ValueError as error:
            raise RunFailed(
                f"a row of teacher logits does not have the form of the manifest: {error}. Copy or write them again."
            ) from error
    return found


def _stored_dtype(stored: Stored, kind: str) -> np.dtype:
    return np.dtype(stored.dtype_of(kind)).newbyteorder("<")
