"""Counts of words together in a window: the data of GloVe (Pennington et al. 2014, section 4.2)."""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Float64, Int, Int64

from t5x_like.data.batches import rows_of_process
from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.data.feed import DataMismatchError, HostBatch, unknown_position
from t5x_like.data.source import DataSource
from t5x_like.data.specs import WORDS
from t5x_like.data.task_features import TaskFeature
from t5x_like.errors import UserError
from t5x_like.vocabularies.vocabulary_digest import TextVocabulary
from t5x_like.vocabularies.vocabulary_kind import VocabularyKind
from t5x_like.vocabularies.word_counts import EOS_ID, FIRST_WORD_ID

ROWS, COLUMNS, COUNTS = "encoder_input_tokens", "context_words", "counts"
SPEC = FeatureSpec(
    features=(
        ModelFeature(ROWS, "words", "tokens"),
        ModelFeature(COLUMNS, "contexts", "tokens"),
        ModelFeature(COUNTS, "counts", "tokens"),
    ),
    packable=False,
    aligned_features=(
        TaskFeature("contexts", aligned_with="words"),
        TaskFeature("counts", aligned_with="words", dtype="float32"),
    ),
)
"""Entries of the matrix of counts, several in a row of a batch; entries with count 0 are padding."""
# Words that are counted at a time.
_BLOCK = 1 << 20


class Matrix(NamedTuple):
    """A sparse matrix of counts, by row and column.

    Attributes:
      rows: Ids of words.
      columns: Ids of words in their windows.
      counts: The weighted counts.
    """

    rows: Int64[np.ndarray, " entries"]
    columns: Int64[np.ndarray, " entries"]
    counts: Float64[np.ndarray, " entries"]


def count(words: Int[np.ndarray, " stream"], window: int, *, symmetric: bool = True) -> Matrix:
    """Counts pairs of words at most `window` words apart, each 1 / distance.

    Args:
      words: Ids; EOS ends a sentence, and other special ids are left out before distances are counted.
      window: Largest distance.
      symmetric: Whether a pair counts in both directions. Otherwise its row is the left word and its column the right
        one, as in the published program.

    Returns:
      The entries that are not 0, by row and column.
    """
    is_word = words >= FIRST_WORD_ID
    sentences = np.cumsum(words == EOS_ID)[is_word]
    words = words[is_word].astype(np.int64)
    number = int(words.max(initial=0)) + 1
    keys, sums = np.zeros(0, np.int64), np.zeros(0)
    for start in range(0, len(words), _BLOCK):
        parts = []
        for distance in range(1, window + 1):
            right = np.arange(max(start, distance), min(start + _BLOCK, len(words)))
            right = right[sentences[right] == sentences[right - distance]]
            parts.append((words[right - distance] * number + words[right], np.full(len(right), 1 / distance)))
        block = [np.concatenate(each) for each in zip((keys, sums), *parts, strict=True)]
        keys, inverse = np.unique(block[0], return_inverse=True)
        sums = np.bincount(inverse, block[1], len(keys))
    if symmetric:
        mirrored = keys % number * number + keys // number
        keys, inverse = np.unique(np.concatenate([keys, mirrored]), return_inverse=True)
        sums = np.bincount(inverse, np.concatenate([sums, sums]), len(keys))
    return Matrix(keys // number, keys % number, sums)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CooccurrenceSource:
    """The entries of the matrix of counts of a text, in a random order that differs in each epoch; see `DataSource`.

    The text is counted when the first batch is requested, at each start of a run. The entries are in memory.

    Attributes:
      text: The words: a source of rows that follow one another in stored order.
      batch_size: Number of rows of a batch over all processes.
      entries_per_row: Number of entries in a row.
      window: Largest distance of two words.
      symmetric: Whether a pair counts in both directions; see `count`.
      seed: Seed of the order.
    """

    text: DataSource
    batch_size: int
    entries_per_row: int = 1000
    window: int = 15
    symmetric: bool = True
    seed: int = 0

    def __post_init__(self):
        for name in ("batch_size", "entries_per_row", "window"):
            if getattr(self, name) < 1:
                raise UserError(f"{name.upper()}={getattr(self, name)} is not positive. Give a positive integer.")

    @property
    def name(self) -> str:
        """The name of the text."""
        return self.text.name

    def describe(self) -> list[str]:
        """Returns lines that describe the text and the counts."""
        return [*self.text.describe(), f"counts of words together: window {self.window}, symmetric {self.symmetric}"]

    def provenance(self) -> list[dict[str, Any]]:
        """Returns the provenance of the text; see `DataSource`."""
        return self.text.provenance()

    def check(self, spec: FeatureSpec) -> None:
        """Checks the text, and that the objective reads counts; see `DataSource`."""
        if spec != SPEC:
            raise UserError(f"{self.name}: gives counts of words together. Give an objective that reads them, GloVe.")
        self.text.check(WORDS)

    def check_vocabulary(self, embeddings: int) -> None:
        """Checks that a model has a vector for each word."""
        self.text.check_vocabulary(embeddings)

    def text_vocabulary(self, spec: FeatureSpec) -> TextVocabulary:
        """Returns digest and location of the vocabulary of the text."""
        return self.text.text_vocabulary(WORDS)

    def vocabularies(self) -> Mapping[str, Any]:
        """Returns task feature -> vocabulary of the text."""
        return self.text.vocabularies()

    def vocabulary_kind(self, spec: FeatureSpec) -> VocabularyKind | None:
        """Returns the kind of the vocabulary of the text."""
        return self.text.vocabulary_kind(WORDS)

    def add_eos(self) -> Mapping[str, bool]:
        """Returns task feature -> whether its text ends in EOS."""
        return self.text.add_eos()

    def text_problems(self, spec: FeatureSpec) -> list[str]:
        """Returns what is wrong if little of the text reaches a row."""
        return self.text.text_problems(WORDS)

    def has_metrics(self) -> bool:
        """Returns False: counts have no metrics of a task."""
        return False

    def batch_shapes(self, spec: FeatureSpec) -> dict[str, tuple[int, ...]]:
        """Returns model feature -> shape of the global batch."""
        return dict.fromkeys((ROWS, COLUMNS, COUNTS), (self.batch_size, self.entries_per_row))

    def per_task(self) -> "list[CooccurrenceSource]":
        """Returns the source itself."""
        return [self]

    @functools.cached_property
    def matrix(self) -> Matrix:
        """The matrix of counts.

        Raises:
          UserError: The text has no two words in a window.
        """
        rows = [batch[ROWS][batch["encoder_segment_ids"] != 0] for batch in self.text.eval_batches(WORDS)]
        words = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        found = count(words, self.window, symmetric=self.symmetric)
        if not len(found.counts):
            raise UserError(f"{self.name}: no two words in a window. Give more text, or a smaller MIN_COUNT.")
        steps = len(found.counts) / (self.batch_size * self.entries_per_row)
        logging.info("%d words have %d counts, %.1f steps in each pass", len(words), len(found.counts), steps)
        return found

    def host_iterator(self, spec: FeatureSpec, *, process_index: int = 0, process_count: int = 1) -> "CountIterator":
        """Returns the batches of one process."""
        return CountIterator(self, rows_of_process(self.batch_size, process_index, process_count))

    def eval_batches(
        self, spec: FeatureSpec, num_batches: int | None = None, *, process_index: int = 0, process_count: int = 1
    ) -> Iterator[HostBatch]:
        """Yields the batches of one pass; the last one is padded with counts of 0. See `DataSource`."""
        rows = rows_of_process(self.batch_size, process_index, process_count)
        size = self.batch_size * self.entries_per_row
        batches = -(-len(self.matrix.counts) // size)
        for number in range(batches if num_batches is None else min(batches, num_batches)):
            at = np.arange(number * size, (number + 1) * size)
            yield self.batch(np.where(at < len(self.matrix.counts), at, -1), rows)

    def batch(self, entries: Int[np.ndarray, " entries"], rows: range) -> dict[str, np.ndarray]:
        """Returns rows of a batch.

        Args:
          entries: Numbers of the entries of the global batch; -1 for padding.
          rows: The rows of this process.
        """
        shape = (self.batch_size, self.entries_per_row)
        found = self.matrix
        arrays = {
            ROWS: np.where(entries < 0, 0, found.rows[entries]).astype(np.int32),
            COLUMNS: np.where(entries < 0, 0, found.columns[entries]).astype(np.int32),
            COUNTS: np.where(entries < 0, 0, found.counts[entries]).astype(np.float32),
        }
        return {name: array.reshape(shape)[rows.start : rows.stop] for name, array in arrays.items()}


class CountIterator:
    """Host iterator over entries, whose position is the number of batches; see `SeekableIterator`.

    Args:
      source: The source.
      rows: The rows of this process.
    """

    def __init__(self, source: CooccurrenceSource, rows: range):
        self._source, self._rows, self._batches = source, rows, 0
        self._epoch, self._order = -1, np.zeros(0, np.int64)

    def __iter__(self) -> "CountIterator":
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        source = self._source
        number, size = len(source.matrix.counts), source.batch_size * source.entries_per_row
        epochs, within = np.divmod(np.arange(self._batches * size, (self._batches + 1) * size), number)
        entries = np.concatenate([self._of_epoch(epoch)[within[epochs == epoch]] for epoch in np.unique(epochs)])
        self._batches += 1
        return source.batch(entries, self._rows)

    def _of_epoch(self, epoch: int) -> np.ndarray:
        """Returns the order of the entries in an epoch."""
        if epoch != self._epoch:
            rng = np.random.default_rng([self._source.seed, int(epoch)])
            self._epoch, self._order = epoch, rng.permutation(len(self._source.matrix.counts))
        return self._order

    def state(self) -> bytes:
        """Returns the position after the last batch."""
        return self.state_before(0)

    def state_before(self, batches: int) -> bytes:
        """Returns the position some batches before the last one."""
        return json.dumps({"batches": self._batches - batches, **self._identity}).encode()

    def restore(self, state: bytes) -> None:
        """Moves to a position.

        Raises:
          DataMismatchError: The position was saved with other counts.
        """
        try:
            stored = json.loads(state)
        except ValueError as error:
            raise unknown_position(state, "counts of words") from error
        self._batches, found = stored.pop("batches"), self._identity
        if stored != found:
            raise DataMismatchError(f"the data cannot resume from the saved position: it was {stored}, is {found}.")

    @property
    def _identity(self) -> dict[str, Any]:
        source = self._source
        return {
            "entries": len(source.matrix.counts),
            "total": float(source.matrix.counts.sum()),
            "batch": [source.batch_size, source.entries_per_row],
            "seed": source.seed,
        }
