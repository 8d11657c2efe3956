"""Times functions in turn, so that other work on the machine slows down all of them alike."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from t5x_like.runtime import distributed


@dataclasses.dataclass(frozen=True)
class Times:
    """Durations of the calls of a function.

    Attributes:
      seconds: Duration of each call, in order.
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median in seconds."""
        return statistics.median(self.seconds)

    @property
    def min(self) -> float:
        """Shortest duration in seconds."""
        return min(self.seconds)

    @property
    def max(self) -> float:
        """Longest duration in seconds."""
        return max(self.seconds)


def time_call(function: Callable[[], Any]) -> float:
    """Calls a function and returns the seconds until its results are computed."""
    started = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - started


def time_in_turn(
    functions: Mapping[str, Callable[[], Any]], rounds: Iterable[int], deadline: float
) -> dict[str, Times]:
    """Calls each function once per round.

    Args:
      functions: Name -> function without arguments that returns arrays.
      rounds: The numbers of the rounds; an iterable that shows progress is possible.
      deadline: `time.monotonic()` after which no further round starts. The first round always runs. In a run of several
        processes the deadline of process 0 counts.

    Returns:
      Name -> durations of its calls.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for number in rounds:
        if number and distributed.compute_in_main(lambda: time.monotonic() > deadline):
            break
        for name, function in functions.items():
            seconds[name].append(time_call(function))
    return {name: Times(tuple(each)) for name, each in seconds.items()}
