"""Attached arrays: arrays of a batch that are not made from a task's features, but stored or computed for each row."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowArray:
    """An array `[batch, positions]` or `[batch, positions, width]` that belongs to the rows of a batch.

    Attributes:
      name: Key in the batch, such as `teacher_logits/teacher/masked_lm/values`.
      positions: Number of positions per row. Positions without a value are 0.
      width: Number of values per position; None for one value without a dimension of its own.
      dtype: Name of the NumPy dtype.
    """

    name: str
    positions: int
    width: int | None = None
    dtype: str = "int32"

    is_stored: ClassVar[bool] = False
    """Whether the array is read from a cache, rather than computed from the features of a row."""

    def missing(self, data: str) -> str:
        """Returns why data does not have the array, and what to do, for a message.

        Args:
          data: Name of the data.
        """
        return f"{data} does not compute {self.name!r}, which a loss across tokenizers reads. Give the data of a task."

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row."""
        return (self.positions,) if self.width is None else (self.positions, self.width)

    @property
    def axes(self) -> tuple[str | None, ...]:
        """The logical axes of a batch."""
        return ("batch", "length") if self.width is None else ("batch", "length", None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attached(RowArray):
    """An array that is read from a sidecar of a cache.

    A sidecar has one record per row of the cache, so the array of a row always belongs to the same examples, in
    whatever order the rows are read.

    Attributes:
      directory: Directory of the sidecar: a local path or `gs://…`.
      origin: Digest of what computed the values, which the sidecar must have too.
    """

    directory: str
    origin: str

    is_stored: ClassVar[bool] = True

    def missing(self, data: str) -> str:
        """Returns why data does not have the array; see `RowArray.missing`."""
        return (
            f"{self.directory} belongs to the rows of a cache, but {data} is a live task. Write the rows with "
            "`t5x_like cache`, and read them with --gin_file=data/cached.gin."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Computed(RowArray):
    """An array that a data source computes from the features of each row; see `data.retokenized`."""


def refuse_attached(arrays: Sequence[RowArray], data: str) -> None:
    """Refuses attached arrays for data that is not a cache.

    Args:
      arrays: `FeatureSpec.attached`.
      data: Name of the data, for the message.

    Raises:
      UserError: There are attached arrays.
    """
    if arrays:
        raise UserError(arrays[0].missing(data))
