"""Finds the process whose host delays the steps of a run: slow input, a busy CPU, or a slow disk.

All devices of a step wait for the last one. A host that prepares its part of the step late therefore shows up in no
step time, but in the seconds that it takes by itself, without waiting for devices.
"""

import time
from collections.abc import Callable

import numpy as np
from absl import logging

# A process and its seconds in one int32, whose maximum over all processes is the slowest: 13 bits for the process and
# 17 for milliseconds.
_PROCESS_BITS, _MAX_MILLISECONDS = 13, 2**17 - 1
# Over this many steps, the same process must be the slowest in most steps, and longer than the fastest one by this
# fraction of the steps' time.
_STEPS = 100
_MIN_DELAY = 0.1
# Seconds between two warnings.
_PAUSE = 600.0


def encode(process: int, seconds: float) -> np.ndarray:
    """Returns the seconds of a process as int32 `[2]`. The maxima over all processes are the input of `decode`."""
    milliseconds = min(round(1000 * seconds), _MAX_MILLISECONDS)
    return np.array([milliseconds << _PROCESS_BITS | process, -milliseconds], np.int32)


def decode(maxima: np.ndarray) -> tuple[int, float, float]:
    """Returns the slowest process, its seconds, and the seconds of the fastest process."""
    packed, fastest = (int(value) for value in maxima)
    return packed % 2**_PROCESS_BITS, (packed >> _PROCESS_BITS) / 1000, -fastest / 1000


class SlowHost:
    """Warns if one process delays most steps.

    Args:
      host_of: Host name by process.
      now: A monotonic clock, in seconds.
    """

    def __init__(self, host_of: list[str], *, now: Callable[[], float] = time.monotonic):
        self._hosts, self._now = host_of, now
        self._delays: list[tuple[int, float, float]] = []
        self._since, self._warned = now(), float("-inf")

    def add(self, maxima: np.ndarray) -> None:
        """Adds a step; see `encode`."""
        if not self._delays:
            self._since = self._now()
        self._delays.append(decode(maxima))
        if len(self._delays) > _STEPS:
            if (warning := self._judge()) and self._now() - self._warned > _PAUSE:
                self._warned = self._now()
                logging.warning("%s", warning)
            self._delays = []

    def _judge(self) -> str | None:
        step_seconds = (self._now() - self._since) / _STEPS
        processes = np.array([process for process, _, _ in self._delays])
        slowest = int(np.bincount(processes).argmax())
        own = [(seconds, fastest) for process, seconds, fastest in self._delays if process == slowest]
        # The median is not affected by single long pauses.
        seconds, fastest = np.median(own, axis=0)
        if 2 * len(own) <= len(self._delays) or seconds - fastest < _MIN_DELAY * step_seconds:
            return None
        return (
            f"process {slowest} on host {self._hosts[slowest]} is slow: it takes {seconds:.3f} s per step by itself, "
            f"such as for data, the fastest process {fastest:.3f} s, and a step {step_seconds:.3f} s"
        )
