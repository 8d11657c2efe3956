"""Iterates over the batches of a cache, in an order that does not depend on the number of processes or on restarts."""

import bisect
import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grain
import numpy as np
from absl import logging
from grain.experimental import index_shuffle

from t5x_like.data.feed import DataMismatchError, unknown_position
from t5x_like.errors import UserError

_MAGIC = b"t5x_like cached position 1\n"
# Grain shuffles indices of 32 bits; the number of rounds is that in Grain's `shuffle`.
MAX_SHUFFLED_ROWS = 2**32
_ROUNDS = 4


class RowOrder:
    """The order in which the rows of a cache are read, with random access.

    The passes follow one another, each in its own order, so a document occurs once per pass. After the last pass they
    repeat in other orders.

    Args:
      rows_of_passes: Number of rows of each pass.
      shuffle: Whether to read the rows of a pass in random order instead of stored order.
      seed: Seed of the random order.

    Raises:
      UserError: the cache has no rows, or a pass is too large to be shuffled.
    """

    def __init__(self, rows_of_passes: Sequence[int], *, shuffle: bool, seed: int):
        self._ends = list(itertools.accumulate(rows_of_passes))
        self.rows = self._ends[-1] if self._ends else 0
        if not self.rows:
            raise UserError("the cache has no rows. Write it again from a split with examples.")
        if shuffle and max(rows_of_passes) > MAX_SHUFFLED_ROWS:
            raise UserError(
                f"a pass of {max(rows_of_passes):,} rows cannot be shuffled. Write passes of at most "
                f"{MAX_SHUFFLED_ROWS:,} rows, or set shuffle=False."
            )
        self._shuffle, self._seeds = shuffle, [_seed(seed, number) for number in range(len(self._ends))]

    def __getitem__(self, position: int) -> int:
        """Returns the number of the row at a position, both starting at 0."""
        repetition, position = divmod(position, self.rows)
        number = bisect.bisect_right(self._ends, position)
        before = self._ends[number - 1] if number else 0
        if not self._shuffle:
            return position
        seed, last = (self._seeds[number] + repetition) % 2**32, self._ends[number] - before - 1
        return before + index_shuffle(position - before, max_index=last, seed=seed, rounds=_ROUNDS)


class Streams:
    """The order in which the rows of a cache are read if row i of a batch continues row i of the batch before.

    The stored rows are cut into as many equal parts as a batch has rows; a remainder is not read. Row i reads part i
    in stored order, then part i + 1, and after the last part the first one.

    Args:
      rows: Number of rows of the cache.
      batch_size: Number of rows of a batch.

    Raises:
      UserError: the cache has fewer rows than a batch.
    """

    def __init__(self, rows: int, batch_size: int):
        if rows < batch_size:
            raise UserError(
                f"BATCH_SIZE={batch_size}: the cache has only {rows} rows to continue. Give a number of at most {rows}."
            )
        self._length, self._rows = rows // batch_size, rows // batch_size * batch_size

    def row(self, batch: int, row: int) -> int:
        """Returns the number of the stored row that a row of a batch reads, all starting at 0."""
        return (row * self._length + batch) % self._rows


def _seed(seed: int, number: int) -> int:
    """Returns a 32-bit seed for a pass, distant from other passes' seeds: the repetition's number is added to it."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=4).digest())


class CachedIterator:
    """Host iterator over a cache, whose position is the number of batches; see `SeekableIterator`.

    Args:
      read: Function from the number of a batch, starting at 0, to the rows of this process.
      identity: Properties that must be equal for a position to have the same meaning.
      batches_without_repeating: Number of batches before rows repeat.
      threads: Number of batches that are read concurrently; 0 reads each batch when it is requested.
      metrics: Function from a number of batches, from the first one on, to their metrics.
    """

    def __init__(
        self,
        read: Callable[[int], dict[str, np.ndarray]],
        *,
        identity: Mapping[str, Any],
        batches_without_repeating: int,
        threads: int,
        metrics: Callable[[int], Mapping[str, float]] = lambda batches: {},
    ):
        self._metrics = metrics
        self._read, self._identity, self._threads = read, dict(identity), threads
        self._without_repeating, self._warned = batches_without_repeating, False
        self._seek(0)

    def __iter__(self) -> "CachedIterator":
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        batch = next(self._iterator)
        self._batches += 1
        if self._batches > self._without_repeating and not self._warned:
            self._warned = True
            logging.warning(
                "the rows of the cache repeat from batch %d on. If the task corrupts them at random, such as by "
                "masking, `t5x_like cache --passes=N` writes N passes with different corruption",
                self._without_repeating + 1,
            )
        return batch

    def metrics(self, batches: int) -> Mapping[str, float]:
        """Returns the metrics of the batches up to one of those since `restore`; see `Feed.metrics`."""
        return self._metrics(self._restored + batches)

    def state(self) -> bytes:
        """Returns the position after the last batch."""
        return self.state_before(0)

    def state_before(self, batches: int) -> bytes:
        """Returns the position that many batches before the last one.

        Args:
          batches: Number of batches to go back.
        """
        return _MAGIC + json.dumps({"batches": self._batches - batches, "identity": self._identity}).encode()

    def restore(self, state: bytes) -> None:
        """Moves to a position that `state()` returned on any number of processes, without reading rows.

        Raises:
          DataMismatchError: the position was saved in other data; the message lists the differences.
        """
        if not state.startswith(_MAGIC):
            raise unknown_position(state, "a cache")
        stored = json.loads(state[len(_MAGIC) :])
        saved = stored["identity"]
        if differ := [name for name in self._identity if saved.get(name) != self._identity[name]]:
            changes = "; ".join(f"{name} was {saved.get(name)}, is {self._identity[name]}" for name in differ)
            raise DataMismatchError(f"the data cannot resume from the saved position: {changes}.")
        self._seek(stored["batches"])

    def _seek(self, batches: int) -> None:
        self._batches = self._restored = batches
        options = grain.ReadOptions(num_threads=self._threads, prefetch_buffer_size=self._threads)
        self._iterator = iter(grain.MapDataset.range(batches, sys.maxsize).map(self._read).to_iter_dataset(options))
