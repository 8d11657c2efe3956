"""SeqIO sources of rows that are held in memory. The position in them can be saved and restored."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.corpora.documents import shuffled_indices
from t5x_like.data import skipped_records
from t5x_like.errors import UserError

NESTED = "/"
"""Separates the names of nested features: `idx/question` is the feature `question` in the dictionary `idx`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a split.

    Attributes:
      features: feature -> values of all rows, `[rows]` or ragged `[rows, (any)]`; see `NESTED`.
      origin: where the rows come from, with a hash of their contents.
      skipped: file -> reason -> number of records that were skipped while the rows were read.
    """

    features: Mapping[str, tf.Tensor | tf.RaggedTensor]
    origin: str
    skipped: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return int(next(iter(self.features.values())).shape[0])

    def row(self, index: tf.Tensor) -> dict[str, Any]:
        """Returns the features of one row."""
        example: dict[str, Any] = {}
        for name, values in self.features.items():
            *outer, last = name.split(NESTED)
            place = example
            for part in outer:
                place = place.setdefault(part, {})
            place[last] = values[index]
        return example


class RowSource(seqio.DataSource):
    """Rows that a function reads when a dataset is first requested.

    Shuffling draws a new permutation in every epoch, index by index, so the state of an iterator holds no rows.

    Args:
      read: returns the rows of a split. It is called often, so it should cache them.
      splits: the names of the splits.
      describe: returns one line about the data. It is part of the identity of the data, which resuming checks.
    """

    def __init__(self, read: Callable[[str], Rows], splits: Sequence[str], describe: Callable[[], str]):
        self._read, self._describe = read, describe
        super().__init__(splits=tuple(splits))

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """True: rows can be distributed over any number of shards."""
        return True

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the split as the only shard."""
        return [split]

    def num_input_examples(self, split: str) -> int:
        """Returns the number of rows of a split."""
        return len(self._read(split))

    def describe(self) -> str:
        """Returns one line about the data."""
        return self._describe()

    def get_dataset(self, split="train", shuffle=True, seed=None, shard_info=None, **_) -> tf.data.Dataset:
        """Returns the rows of a split; see `seqio.DataSource`."""
        if split not in self.splits:
            raise UserError(f"split {split!r} not found. Give one of {', '.join(self.splits)}.")
        rows = self._read(split)
        # All shards read the same files, so the first one counts what was skipped. The rows may have been read earlier.
        if (skipped := skipped_records.current()) is not None and (shard_info is None or shard_info.index == 0):
            skipped.merge(rows.skipped)
        indices = shuffled_indices(len(rows), seed) if shuffle else tf.data.Dataset.range(len(rows))
        if shard_info is not None and shard_info.num_shards > 1:
            indices = indices.shard(shard_info.num_shards, shard_info.index)
        return indices.map(rows.row)
