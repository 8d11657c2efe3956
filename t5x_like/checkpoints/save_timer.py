"""Decides when the time for a checkpoint has come, after the same step in all processes of a run."""

import time
from collections.abc import Callable


class SaveTimer:
    """Counts the seconds since the last checkpoint. The clock of process 0 decides for all processes.

    Process 0 tells the others by the vote of a step, so the checkpoint follows one step later.

    Args:
      seconds: Time between two checkpoints; None for no checkpoint by time.
      decides: Whether this is the process whose clock decides.
      now: A monotonic clock, in seconds.
    """

    def __init__(self, seconds: float | None, *, decides: bool, now: Callable[[], float] = time.monotonic):
        self._seconds = seconds if decides else None
        self._now, self._since, self._last_step = now, now(), 0

    def is_due(self) -> bool:
        """Returns whether this process asks for a checkpoint."""
        return self._seconds is not None and self._now() - self._since >= self._seconds

    def saves_at(self, step: int, is_agreed: bool) -> bool:
        """Returns whether a checkpoint follows `step`.

        Args:
          step: The step.
          is_agreed: Whether the vote of the step before asked for a checkpoint.
        """
        # The vote of the step after a request was made before the checkpoint.
        return is_agreed and step > self._last_step + 1

    def restart(self, step: int) -> None:
        """Counts from now on, because a checkpoint follows `step` for any reason."""
        self._since, self._last_step = self._now(), step
