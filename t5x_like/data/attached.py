"""Attached arrays: arrays of a batch that are stored beside the rows of a cache instead of being made from a task."""

import dataclasses
from collections.abc import Sequence

from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class Attached:
    """An array that is read from a sidecar of a cache, `[batch, positions]` or `[batch, positions, width]`.

    A sidecar has one record per row of the cache, so the array of a row always belongs to the same examples, in
    whatever order the rows are read.

    Attributes:
      name: Key in the batch, such as `teacher_logits/teacher/masked_lm/values`.
      directory: Directory of the sidecar: a local path or `gs://…`.
      positions: Number of positions per row. Positions without a value are 0.
      width: Number of values per position; None for one value without a dimension of its own.
      dtype: Name of the NumPy dtype.
      origin: Digest of what computed the values, which the sidecar must have too.
    """

    name: str
    directory: str
    positions: int
    width: int | None
    dtype: str
    origin: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row."""
        return (self.positions,) if self.width is None else (self.positions, self.width)

    @property
    def axes(self) -> tuple[str | None, ...]:
        """The logical axes of a batch."""
        return ("batch", "length") if self.width is None else ("batch", "length", None)


def refuse_attached(arrays: Sequence[Attached], data: str) -> None:
    """Refuses attached arrays for data that is not a cache.

    Args:
      arrays: `FeatureSpec.attached`.
      data: Name of the data, for the message.

    Raises:
      UserError: there are attached arrays.
    """
    if arrays:
        raise UserError(
            f"{arrays[0].directory} belongs to the rows of a cache, but {data} is a live task. Write the rows with "
            "`t5x_like cache`, and read them with --gin_file=data/cached.gin."
        )
