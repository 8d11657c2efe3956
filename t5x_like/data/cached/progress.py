"""The progress of a cache that is written."""

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from t5x_like.data.cached.manifest import Shard

if TYPE_CHECKING:
    from t5x_like.data.cached.writer import Plan

# Seconds between two lines without a terminal.
_LINE_SECONDS = 10.0


class ProgressDisplay:
    """Shows a bar of shards with rows and tokens per second, or plain lines without a terminal."""

    def __init__(self, plan: "Plan", done: Collection[tuple[int, int]], console: Console):
        self._name, self._total, self._finished = plan.directory, len(plan.units()), len(done)
        self._console, self._started, self._printed = console, time.monotonic(), time.monotonic()
        self._rows, self._tokens = 0, 0
        columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=self._total, completed=self._finished)

    def __enter__(self) -> "ProgressDisplay":
        self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        self._bar.stop()

    def wrote(self, rows: int, tokens: int) -> None:
        """Adds rows and tokens that are written."""
        self.wrote_in_total(self._rows + rows, self._tokens + tokens)

    def wrote_in_total(self, rows: int, tokens: int) -> None:
        """Sets the numbers of rows and tokens that are written."""
        self._rows, self._tokens = rows, tokens
        self._show()

    def finished(self, shard: Shard) -> None:
        """Counts a complete shard."""
        self._finished += 1
        self._show()

    def _show(self) -> None:
        seconds = max(time.monotonic() - self._started, 1e-9)
        text = f"{self._rows:,} rows  {self._tokens / seconds:,.0f} tokens/s  {seconds:,.0f} s"
        self._bar.update(self._task, completed=self._finished, description=text)
        if not self._console.is_terminal and time.monotonic() - self._printed > _LINE_SECONDS:
            self._printed = time.monotonic()
            line = f"{self._name}: shard {self._finished} of {self._total}  {text}"
            self._console.print(line, soft_wrap=True, markup=False)
