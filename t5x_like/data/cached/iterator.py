"""Batches of a cache in an order that neither the number of processes nor a restart changes."""

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

from t5x_like.data.feed import DataMismatchError
from t5x_like.errors import UserError

_MAGIC = b"t5x_like cached position 1\n"
# Grain shuffles indices of 32 bits; the rounds are those of its own `shuffle`.
MAX_SHUFFLED_ROWS = 2**32
_ROUNDS = 4


class RowOrder:
    """Which row of a cache comes when, computed for any place at once.

    The passes come one after the other, each in an order of its own: a document is met once in each. Behind the last
    one they begin again, in other orders.
    """

    def __init__(self, rows_of_passes: Sequence[int], *, shuffle: bool, seed: int):
        """Args:
        rows_of_passes: how many rows each pass has.
        shuffle: whether the rows of a pass come in a random order; else as they are stored.
        seed: of that order.

        Raises:
          UserError: there is no row, or a pass is too large to be shuffled.
        """
        self._ends = list(itertools.accumulate(rows_of_passes))
        self.rows = self._ends[-1] if self._ends else 0
        if not self.rows:
            raise UserError("a cache without rows cannot be read")
        if shuffle and max(rows_of_passes) > MAX_SHUFFLED_ROWS:
            raise UserError(
                f"a pass of {max(rows_of_passes):,} rows is too large to be shuffled: {MAX_SHUFFLED_ROWS:,} at most"
            )
        self._shuffle, self._seeds = shuffle, [_seed(seed, number) for number in range(len(self._ends))]

    def __getitem__(self, place: int) -> int:
        """The number of the row that comes at this place, from 0 on."""
        repetition, place = divmod(place, self.rows)
        number = bisect.bisect_right(self._ends, place)
        before = self._ends[number - 1] if number else 0
        if not self._shuffle:
            return place
        seed, last = (self._seeds[number] + repetition) % 2**32, self._ends[number] - before - 1
        return before + index_shuffle(place - before, max_index=last, seed=seed, rounds=_ROUNDS)


def _seed(seed: int, number: int) -> int:
    """A seed of 32 bits for a pass, far from those of the others: the number of the repetition is added to it."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=4).digest())


class CachedIterator:
    """A host iterator whose position is one number: `__next__`, `state`, `restore`, and `state_before`."""

    def __init__(
        self,
        read: Callable[[int], dict[str, np.ndarray]],
        *,
        identity: Mapping[str, Any],
        batches_without_repeating: int,
        threads: int,
    ):
        """Args:
        read: the batch of a number, from 0 on, as this process sees it.
        identity: what must be the same for a position to mean the same.
        batches_without_repeating: how many there are before a row comes again.
        threads: how many batches are read at the same time; 0 reads each when it is asked for.
        """
        self._read, self._identity, self._threads = read, dict(identity), threads
        self._without_repeating, self._warned = batches_without_repeating, False
        self._go_to(0)

    def __iter__(self) -> "CachedIterator":
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        batch = next(self._iterator)
        self._batches += 1
        if self._batches > self._without_repeating and not self._warned:
            self._warned = True
            logging.warning(
                "all rows of the cache have been read, in %d batches: from here on they come again, corrupted (masked) "
                "as before. `t5x_like cache --passes=N` writes N passes that differ",
                self._without_repeating,
            )
        return batch

    def state(self) -> bytes:
        """The position after the last batch."""
        return self.state_before(0)

    def state_before(self, batches: int) -> bytes:
        """The position so many batches before the last one."""
        return _MAGIC + json.dumps({"batches": self._batches - batches, "identity": self._identity}).encode()

    def restore(self, state: bytes) -> None:
        """Goes to a position that `state()` gave on any number of processes, at once.

        Raises:
          UserError: it is a position in other data; the message says in what they differ.
        """
        if not state.startswith(_MAGIC):
            raise UserError(f"{len(state)} bytes that begin with {state[:24]!r} are not a position in a cache")
        stored = json.loads(state[len(_MAGIC) :])
        there = stored["identity"]
        if differ := [name for name in self._identity if there.get(name) != self._identity[name]]:
            changes = "; ".join(f"{name} was {there.get(name)}, is {self._identity[name]}" for name in differ)
            raise DataMismatchError(f"the data cannot go on from the saved position: {changes}")
        self._go_to(stored["batches"])

    def _go_to(self, batches: int) -> None:
        self._batches = batches
        options = grain.ReadOptions(num_threads=self._threads, prefetch_buffer_size=self._threads)
        self._iterator = iter(grain.MapDataset.range(batches, sys.maxsize).map(self._read).to_iter_dataset(options))
