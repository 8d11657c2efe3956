"""The order of the rows of several caches that are mixed."""

import functools
import hashlib
import math
import sys
from collections.abc import Mapping, Sequence

import grain

from t5x_like.data.cached.iterator import RowOrder


class MixedOrder:
    """The order in which the rows of several caches are read, with random access.

    Grain interleaves the tasks as evenly as their fractions allow, so every long section of a stage has the fractions
    of the stage. The rows of a task follow its own `RowOrder`, which continues from one stage to the next.

    Args:
      rows_of_passes: Task -> number of rows of each pass.
      stages: The first position of each stage, from 0 on, and its fractions: task -> fraction of the rows, positive.
      shuffle: Whether to read the rows of a pass in random order.
      seed: Seed of the random order.
    """

    def __init__(
        self,
        rows_of_passes: Mapping[str, Sequence[int]],
        stages: Sequence[tuple[int, Mapping[str, float]]],
        *,
        shuffle: bool,
        seed: int,
    ):
        self._orders = {
            task: RowOrder(rows, shuffle=shuffle, seed=_seed(seed, task)) for task, rows in rows_of_passes.items()
        }
        self._rows_of_a_pass = {task: sum(rows) / len(rows) for task, rows in rows_of_passes.items()}
        self._stages: list[_Stage] = []
        for first, fractions in stages:
            self._stages.append(_Stage(first, fractions, self._counts(first)))

    @property
    def rows(self) -> int:
        """The number of positions until the last stage has read every row of each of its tasks."""
        last = self._stages[-1]
        left = [
            max(self._orders[task].rows - last.start[task], 0) / fraction for task, fraction in last.fractions.items()
        ]
        return last.first + math.ceil(max(left))

    def __getitem__(self, position: int) -> tuple[str, int]:
        """Returns the task and the number of its row at a position, starting at 0."""
        task, number = self._stage_of(position)[position]
        return task, self._orders[task][number]

    def epochs(self, positions: int) -> dict[str, float]:
        """Returns task -> number of passes over its rows in the first positions, as a fraction."""
        return {task: count / self._rows_of_a_pass[task] for task, count in self._counts(positions).items()}

    def _stage_of(self, position: int) -> "_Stage":
        return next(stage for stage in reversed(self._stages) if stage.first <= position)

    def _counts(self, positions: int) -> dict[str, int]:
        """Returns task -> number of its rows in the first positions."""
        if not positions:
            return dict.fromkeys(self._orders, 0)
        return self._stage_of(positions - 1).counts(positions)


class _Stage:
    """A part of an order in which the fractions do not change.

    Args:
      first: The first position.
      fractions: Task -> fraction of the rows.
      start: Task -> number of its rows before the first position, of all tasks.
    """

    def __init__(self, first: int, fractions: Mapping[str, float], start: Mapping[str, int]):
        self.first, self.fractions, self.start = first, fractions, start
        numbers = grain.MapDataset.range(sys.maxsize)
        self._mixed = grain.MapDataset.mix(
            [numbers.map(functools.partial(_with_name, task)) for task in fractions], list(fractions.values())
        )

    def __getitem__(self, position: int) -> tuple[str, int]:
        """Returns the task of a position, and how many of its rows precede it."""
        task, number = self._mixed[position - self.first]
        return task, self.start[task] + number

    def counts(self, positions: int) -> dict[str, int]:
        """Returns task -> number of its rows before a position, which is at or after the first one."""
        counts = dict(self.start)
        left = set(self.fractions)
        for position in range(positions - 1, self.first - 1, -1):
            task, number = self[position]
            if task in left:
                counts[task] = number + 1
                left.remove(task)
            if not left:
                break
        return counts


def _with_name(task: str, number: int) -> tuple[str, int]:
    return task, number


def _seed(seed: int, task: str) -> int:
    """Returns a seed for the rows of a task, so that tasks of equal size have different orders."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {task}".encode(), digest_size=4).digest())
