"""Shows the progress of a run: a bar on a terminal, plain lines elsewhere."""

import contextlib
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self, TextIO

from absl import logging
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from t5x_like.runtime import terminal


def duration(seconds: float) -> str:
    """Formats seconds as `m:ss` or `h:mm:ss`."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def describe(row: Mapping[str, Any], remaining_steps: int, losses: Sequence[str] = ()) -> str:
    """Formats the main metrics of a row, such as `loss 5.43  tokens/s 9,123  lr 0.01  eta 1:23`.

    Args:
      row: Metrics of a step.
      remaining_steps: Number of steps until the end of the run.
      losses: Names of metrics that are shown after `loss`.
    """
    parts = []
    if "loss" in row:
        parts.append(f"loss {row['loss']:.3f}")
    parts += [f"{name} {row[name]:.4g}" for name in losses if name in row]
    if row.get("tokens_per_second"):  # 0 if batches have no tokens, such as the counts of GloVe
        parts.append(f"tokens/s {row['tokens_per_second']:,.0f}")
    if "learning_rate" in row:
        parts.append(f"lr {row['learning_rate']:.3g}")
    if row.get("mfu") is not None:
        parts.append(f"mfu {row['mfu']:.1%}")
    if row.get("seconds_per_step") is not None:
        parts.append(f"eta {duration(remaining_steps * row['seconds_per_step'])}")
    return "  ".join(parts)


class _SafeStream:
    """A text stream that never raises. After the first failed write it logs a warning and drops all further output.

    Args:
      stream: The stream to write to. None, Python's value for a closed standard output, drops all output.
    """

    def __init__(self, stream: TextIO | None):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return self._stream is not None and not self._stream.closed and self._stream.isatty()

    def write(self, text: str) -> int:
        self._try("write", text)
        return len(text)

    def flush(self) -> None:
        self._try("flush")

    def _try(self, method: str, *arguments: str) -> None:
        if self._stream is None:
            return
        try:
            getattr(self._stream, method)(*arguments)
        except (OSError, ValueError) as error:  # a full disk, a pipe without a reader, or a closed stream
            stream, self._stream = self._stream, None
            logging.warning("standard output cannot be written: %s. Training continues without progress output", error)
            _drain(stream)


def _drain(stream: TextIO) -> None:
    """Redirects a broken stream to the null device, since Python would fail to flush it at exit."""
    with contextlib.suppress(OSError, ValueError):
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, stream.fileno())
        os.close(null_device)


class BarOnTerminal:
    """A context manager with a bar that counts to a total, if the console is a terminal.

    Args:
      total: The number at which the bar ends.
      start: The number at which it starts.
      enabled: Whether to show anything; True only in one process.
      console: The console to write to.
    """

    def __init__(self, total: int, start: int, *, enabled: bool, console: Console):
        self._total, self._start, self._enabled, self._console = total, start, enabled, console
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        if self._enabled and self._console.is_terminal:
            columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._bar = Bar(*columns, console=self._console)
            self._task = self._bar.add_task("", total=self._total, completed=self._start)
            self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Progress(BarOnTerminal):
    """Shows the steps of a run. Use it as a context manager around the loop.

    Args:
      total_steps: The step at which the run ends.
      start: The step at which it starts.
      enabled: Whether to show anything; True only in one process.
      console: The console to write to; standard output by default.
      losses: Names of metrics that are shown after `loss`.
    """

    def __init__(
        self,
        total_steps: int,
        start: int = 0,
        *,
        enabled: bool = True,
        console: Console | None = None,
        losses: Sequence[str] = (),
    ):
        self._losses = losses
        console = console or terminal.console(file=_SafeStream(sys.stdout), highlight=False)
        super().__init__(total_steps, start, enabled=enabled, console=console)

    def update(self, step: int, row: Mapping[str, Any]) -> None:
        """Shows the current step.

        Args:
          step: Number of updates so far.
          row: Metrics of the last update.
        """
        shown = describe(row, self._total - step, self._losses)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=shown)
        else:
            self._print(f"step {step}/{self._total}  {shown}")

    def note(self, step: int, results: Mapping[str, Any], name: str = "evaluation") -> None:
        """Prints the results of the evaluation `name` after `step` updates."""
        shown = "  ".join(f"{name} {value:.4g}" for name, value in results.items() if isinstance(value, int | float))
        self._print(f"step {step}/{self._total}  {name}: {shown}")

    def _print(self, line: str) -> None:
        if self._enabled:
            # Lines are not wrapped, so that programs can parse a log.
            self._console.print(line, soft_wrap=True, markup=False)
            self._console.file.flush()
