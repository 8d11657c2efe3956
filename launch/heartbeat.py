"""How long a run has been silent, from reads of its lock that succeeded.

A read that fails is not silence: only the time between a change and a later successful read counts.

Requires Python 3.10, and google-cloud-storage to read objects.
"""

from typing import Any

import run_report
from shell import CommandFailed


class Heartbeat:
    """The heartbeat of a run.

    Args:
      bucket: Reads objects.
      run: Directory of the run, or None for a command that does not write one, or not in a bucket.
      clock: Has `monotonic`.
    """

    def __init__(self, bucket: Any, run: str | None, clock: Any):
        self._bucket, self._run, self._clock = bucket, run, clock
        self._last: int | None = None
        self.restart()

    def restart(self) -> None:
        """Forgets what was read: silence counts from the next read on."""
        self._changed = self._read_at = None
        self._is_known = False

    def read(self) -> str | None:
        """Reads the heartbeat. Returns why it could not be read, or None."""
        if self._run is None:
            return None
        try:
            found = run_report.heartbeat(self._bucket, self._run)
        except CommandFailed as error:
            self._is_known = False
            return str(error)
        now = self._clock.monotonic()
        if self._changed is None or found != self._last:
            self._changed = now
        self._last, self._read_at, self._is_known = found, now, True
        return None

    def silent_seconds(self) -> float:
        """Returns for how long the run is known to be silent: 0 after a read that failed."""
        return self._read_at - self._changed if self._is_known else 0.0

    def is_silent(self, seconds: float) -> bool:
        """Returns whether the run is known to be silent for a time, up to the last read.

        A command without a run always is, and a run that no process holds.
        """
        return self._run is None or (self._is_known and (self._last is None or self.silent_seconds() >= seconds))
