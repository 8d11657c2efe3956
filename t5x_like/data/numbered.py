"""Base class of data sources whose batches a function makes from their numbers, without a task and without files."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from t5x_like.data.batches import rows_of_process
from t5x_like.data.features import FeatureSpec
from t5x_like.data.feed import DataMismatchError, HostBatch, unknown_position
from t5x_like.data.source import DataSource
from t5x_like.errors import UserError
from t5x_like.vocabularies.vocabulary_digest import TextVocabulary
from t5x_like.vocabularies.vocabulary_kind import VocabularyKind


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberedSource:
    """Data without an end: batch n is a function of n. Implements `DataSource`.

    A subclass is a frozen dataclass with further fields. It defines `name`, `batch_shapes` and `batch`. Its rows may
    depend on its fields alone, so that a run resumes with the batches that it would have read.

    Attributes:
      batch_size: Number of rows of a batch over all processes.
      split: Split of the data; an evaluation replaces it by each of its splits.
      name: Name of the data in messages.
    """

    batch_size: int
    split: str = "train"

    name: ClassVar[str]
    stores_rows = False

    def batch_shapes(self, spec: FeatureSpec) -> dict[str, tuple[int, ...]]:
        """Returns model feature -> shape over all processes; see `DataSource`."""
        raise NotImplementedError

    def batch(self, spec: FeatureSpec, number: int, rows: range) -> HostBatch:
        """Returns rows of a batch.

        Args:
          spec: Features that the objective reads.
          number: Number of the batch, from 0.
          rows: The rows of this process.
        """
        raise NotImplementedError

    def describe(self) -> list[str]:
        """Returns a line with the name of the data."""
        return [f"data: {self.name}, batches of {self.batch_size} rows"]

    def provenance(self) -> list[dict[str, Any]]:
        """Returns the name of the data; see `DataSource`."""
        return [{"name": self.name}]

    def check(self, spec: FeatureSpec) -> None:
        """Checks that the first batch can be made."""
        self.batch(spec, 0, range(self.batch_size))

    def check_vocabulary(self, embeddings: int) -> None:
        """Checks nothing: no vocabulary is known."""

    def text_vocabulary(self, spec: FeatureSpec) -> TextVocabulary:
        """Returns a vocabulary of which nothing is known."""
        return TextVocabulary()

    def vocabularies(self) -> Mapping[str, Any]:
        """Returns an empty mapping: no vocabulary is known."""
        return {}

    def vocabulary_kind(self, spec: FeatureSpec) -> VocabularyKind | None:
        """Returns None: no vocabulary is known."""
        return None

    def add_eos(self) -> Mapping[str, bool]:
        """Returns an empty mapping: it is not known whether texts end in EOS."""
        return {}

    def text_problems(self, spec: FeatureSpec) -> list[str]:
        """Returns an empty list: there is no text of a user."""
        return []

    def has_metrics(self) -> bool:
        """Returns False: there is no task with metrics."""
        return False

    def per_task(self) -> list[DataSource]:
        """Returns the source itself."""
        return [self]

    def host_iterator(self, spec: FeatureSpec, *, process_index: int = 0, process_count: int = 1) -> "NumberedIterator":
        """Returns the training batches of one process."""
        rows = rows_of_process(self.batch_size, process_index, process_count)
        return NumberedIterator(
            lambda number: self.batch(spec, number, rows), lambda: {"data": self.name, "batch_size": self.batch_size}
        )

    def eval_batches(
        self, spec: FeatureSpec, num_batches: int | None = None, *, process_index: int = 0, process_count: int = 1
    ) -> Iterator[HostBatch]:
        """Yields the first batches; see `DataSource`.

        Raises:
          UserError: Their number is not given.
        """
        if num_batches is None:
            raise UserError(f"EVAL_STEPS=None: {self.name} has no end. Give a number of batches.")
        rows = rows_of_process(self.batch_size, process_index, process_count)
        return (self.batch(spec, number, rows) for number in range(num_batches))


class NumberedIterator:
    """Host iterator whose position is the number of batches; see `SeekableIterator`.

    Args:
      make: Function from the number of a batch to the rows of this process.
      identity: Returns JSON values that must be equal for a position to have the same meaning.
    """

    def __init__(self, make: Callable[[int], HostBatch], identity: Callable[[], Mapping[str, Any]]):
        self._make, self._identity, self._batches = make, identity, 0

    def __iter__(self) -> "NumberedIterator":
        return self

    def __next__(self) -> HostBatch:
        batch = self._make(self._batches)  # a position that is saved after its error stays before the batch
        self._batches += 1
        return batch

    def state(self) -> bytes:
        """Returns the position after the last batch."""
        return self.state_before(0)

    def state_before(self, batches: int) -> bytes:
        """Returns the position that many batches before the last one.

        Args:
          batches: Number of batches to go back.
        """
        return json.dumps({"batches": self._batches - batches, **self._identity()}).encode()

    def restore(self, state: bytes) -> None:
        """Moves to a position.

        Raises:
          DataMismatchError: The position was saved in other data.
        """
        try:
            stored, current = json.loads(state), self._identity()
        except ValueError as error:
            raise unknown_position(state, "numbered batches") from error
        batches = stored.pop("batches")
        if stored != current:
            raise DataMismatchError(f"the data cannot resume from the saved position: it was {stored}, is {current}.")
        self._batches = batches
