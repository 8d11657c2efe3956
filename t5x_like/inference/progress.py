"""Shows progress over records on standard error: a bar on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Mapping

from absl import logging

from t5x_like.metrics.progress import BarOnTerminal, duration
from t5x_like.runtime import terminal

# Seconds between two lines of progress without a terminal.
_LOG_SECONDS = 30.0


class Progress(BarOnTerminal):
    """Counts records and tokens, and shows their speed and the remaining time. Use it as a context manager.

    Args:
      total: Number of records.
      completed: Number of records that an interrupted command has completed.
      enabled: Whether to show anything; True only in one process.
      noun: What the records are.

    Attributes:
      tokens: Number of tokens so far.
    """

    def __init__(self, total: int, completed: int = 0, *, enabled: bool = True, noun: str = "records"):
        super().__init__(total, completed, enabled=enabled, console=terminal.console(stderr=True, highlight=False))
        self._completed, self._noun = completed, noun
        self._started = self._logged = time.monotonic()
        self.tokens = 0

    def advance(self, records: float, tokens: int) -> None:
        """Adds records, possibly a fraction of one, and tokens."""
        self._completed += records
        self.tokens += tokens
        if self._bar is not None:
            self._bar.update(self._task, completed=round(self._completed), description=self.describe())
        elif self._enabled and time.monotonic() - self._logged > _LOG_SECONDS:
            self._logged = time.monotonic()
            logging.info("%d/%d %s, %s", self._completed, self._total, self._noun, self.describe())

    def describe(self) -> str:
        """Returns the speed and the remaining time, such as `records/s 71.2  tokens/s 9,123  eta 1:23`."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        done = self._completed - self._start
        remaining = seconds / done * (self._total - self._completed) if done else float("inf")
        rate = f"{self._noun}/s {done / seconds:,.1f}  tokens/s {self.tokens / seconds:,.0f}"
        return f"{rate}  eta {duration(remaining)}"

    def summary(self, records: int, tokens: int, lengths: Mapping[int, int]) -> str:
        """Returns a line about the whole command.

        Args:
          records: Number of records that it has computed.
          tokens: Number of tokens of all processes.
          lengths: Length of the batches -> their number.
        """
        seconds = max(time.monotonic() - self._started, 1e-9)
        noun = "length" if len(lengths) == 1 else "lengths"
        of_lengths = f"{len(lengths)} {noun}: {', '.join(map(str, sorted(lengths)))}" if lengths else "no batch"
        return (
            f"{records:,} {self._noun}, {tokens:,} tokens in {duration(seconds)}, {tokens / seconds:,.0f} tokens/s, "
            f"compiled for {of_lengths}"
        )
