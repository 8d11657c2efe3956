"""Goodput: the fraction of a run's wall time in which it computed steps that it kept, and where the rest went.

The categories follow Google's ml-goodput-measurement (https://github.com/AI-Hypercomputer/ml-goodput-measurement).
docs/reliability.md defines them. Each start of a run writes one file, `MODEL_DIR/goodput/<n>.jsonl`: its first line has
the time and the step of the start, and each further line the seconds per phase since the line before.
"""

import contextlib
import dataclasses
import itertools
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from absl import logging

from t5x_like import paths
from t5x_like.metrics import line_files
from t5x_like.metrics.progress import duration

Phase = Literal["step", "compile", "restore", "data", "save", "evaluate", "start"]
# What the seconds of a run are divided into; `step` is productive.
CATEGORIES = ("step", "compile", "restore", "data", "save", "evaluate", "start", "lost", "idle")

_DIRECTORY = "goodput"
_FILE = re.compile(r"^(?P<number>\d{5})\.jsonl$")
# The seconds of a killed process since its last line count as idle, so lines are not far apart.
_LINE_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Goodput:
    """How a run has spent its time.

    Attributes:
      seconds: Category of `CATEGORIES` -> seconds. They add up to the time from the first start to the last line.
      starts: Number of starts of the run that began to train.
    """

    seconds: Mapping[str, float]
    starts: int

    @property
    def total(self) -> float:
        """Seconds from the first start to the last line, without those after a finished run."""
        return sum(self.seconds.values())

    @property
    def fraction(self) -> float:
        """The goodput, between 0 and 1."""
        return self.seconds["step"] / max(self.total, 1e-9)

    def describe(self) -> str:
        """Returns one line, such as `goodput 92.1 % of 3:05:10 in 2 starts: step 2:50:31, compile 1:02, …`."""
        spent = ", ".join(f"{name} {duration(value)}" for name, value in self.seconds.items() if value >= 0.5)
        starts = f"{self.starts} start" + "s" * (self.starts > 1)
        return f"goodput {self.fraction:.1%} of {duration(self.total)} in {starts}" + (f": {spent}" if spent else "")

    def as_json(self) -> dict[str, Any]:
        """Returns `fraction`, `starts` and `seconds` as JSON values."""
        seconds = {name: round(value, 3) for name, value in self.seconds.items()}
        return {"fraction": round(self.fraction, 4), "starts": self.starts, "seconds": seconds}


@dataclasses.dataclass
class _Start:
    """One start of a run.

    Attributes:
      time: When it began, in seconds since 1970.
      step: The step that it resumed from.
      lines: The last step before each line, and the seconds per phase since the line before.
      finished: Whether it has reached the end of the run.
    """

    time: float
    step: int
    lines: list[tuple[int, Mapping[str, float]]]
    finished: bool

    @property
    def end(self) -> float:
        return self.time + sum(sum(seconds.values()) for _, seconds in self.lines)


def read_goodput(model_dir: str) -> Goodput | None:
    """Returns the goodput of a run, which may still be running, or None for a run without records of it.

    Args:
      model_dir: The run directory, local or in a bucket.

    Raises:
      UserError: A line of a record is damaged. The message names file and line.
    """
    starts = _read_starts(model_dir)
    return _summarize(starts) if starts else None


def _read_starts(model_dir: str) -> list[_Start]:
    directory = paths.join(model_dir, _DIRECTORY)
    files = [paths.join(directory, name) for name in paths.listdir(directory) if _FILE.match(name)]
    return [start for file in files if (start := _parse(file)) is not None]


def _parse(file: str) -> _Start | None:
    """Returns the start that a file records, or None if it was killed before its first line."""
    start = None
    for number, line in line_files.read(file):
        try:
            if start is None:
                start = _Start(float(line["time"]), int(line["step"]), [], False)
            else:
                seconds = {str(phase): float(value) for phase, value in line["seconds"].items()}
                start.lines.append((int(line["step"]), seconds))
                start.finished = bool(line.get("finished"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise line_files.damaged(file, number, "not a record of goodput") from error
    return start


def _summarize(starts: Sequence[_Start]) -> Goodput:
    """Adds up the phases of all starts. Steps after the one that a later start resumed from are lost."""
    seconds = dict.fromkeys(CATEGORIES, 0.0)
    kept = math.inf
    for start in reversed(starts):
        before = start.step
        for step, phases in start.lines:
            for phase, value in phases.items():
                seconds[phase] = seconds.get(phase, 0.0) + value
            lost = phases.get("step", 0.0) * _lost_fraction(before, step, kept)
            seconds["step"] -= lost
            seconds["lost"] += lost
            before = step
        kept = min(kept, start.step)
    for earlier, later in itertools.pairwise(starts):
        if not earlier.finished:
            seconds["idle"] += max(0.0, later.time - earlier.end)
    return Goodput(seconds, len(starts))


def _lost_fraction(before: int, step: int, kept: float) -> float:
    """Returns the fraction of the steps `before` + 1 … `step` that come after step `kept`."""
    if step == before:  # reports between two steps
        return float(before > kept)
    return max(0.0, step - max(before, kept)) / (step - before)


class GoodputMonitor:
    """Records what a run spends its time on. Use it as a context manager from the beginning of a start to its end.

    Seconds outside of all phases count as `start` before `begin` and as `step` after it. If the record cannot be
    written, one warning is logged and training continues.

    Args:
      model_dir: The run directory, local or in a bucket.
      enabled: Whether to record; True only in process 0. If False, all methods do nothing.
      started: Time of the beginning on the clock `now`; by default the construction.
      now: A monotonic clock, in seconds.
      wall: Seconds since 1970.
    """

    def __init__(
        self,
        model_dir: str,
        *,
        enabled: bool = True,
        started: float | None = None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ):
        self._model_dir, self._enabled, self._now = model_dir, enabled, now
        self._since = now() if started is None else started
        self._time = wall() - (now() - self._since)
        self._phases: list[Phase] = ["start"]  # the phases that have begun, the current one last
        self._seconds: dict[str, float] = {}  # since the last line
        self._last_line = self._since
        self._earlier: list[_Start] = []
        self._current: _Start | None = None  # None before `begin`
        self._file: line_files.LineFile | None = None

    def __enter__(self) -> "GoodputMonitor":
        return self

    def __exit__(self, *exception) -> None:
        if self._current is not None:
            self.flush()
            with self._warn_if_unwritable():
                if self._file is not None:
                    self._file.close()

    @contextlib.contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Counts the seconds within the context as `name`, except the seconds of a phase within it."""
        self._count()
        self._phases.append(name)
        try:
            yield
        finally:
            self._count()
            self._phases.pop()

    def begin(self, step: int) -> None:
        """Starts the record of this start of the run, when it begins to train from `step`."""
        if not self._enabled:
            return
        self._current = _Start(self._time, step, [], False)
        with self._warn_if_unwritable():
            self._earlier = _read_starts(self._model_dir)
            directory = paths.join(self._model_dir, _DIRECTORY)
            numbers = [int(match["number"]) for name in paths.listdir(directory) if (match := _FILE.match(name))]
            file = paths.join(directory, f"{max(numbers, default=-1) + 1:05d}.jsonl")
            self._file = line_files.create(file, json.dumps({"time": self._time, "step": step}) + "\n")
        self.flush()
        self._phases = ["step"]

    def step(self, step: int) -> None:
        """Records that the run has computed `step`."""
        if self._current is not None and self._now() - self._last_line >= _LINE_SECONDS:
            self.flush(step)

    def flush(self, step: int | None = None, *, finished: bool = False) -> None:
        """Writes a line with the seconds since the last one.

        Args:
          step: The last step that has been computed; by default the step of the last line.
          finished: Whether the run has reached its end, after which no time counts as idle.
        """
        if self._current is None:
            return
        self._count()
        start = self._current
        step = step if step is not None else start.lines[-1][0] if start.lines else start.step
        start.lines.append((step, self._seconds))
        start.finished = start.finished or finished
        line = {"step": step, "seconds": {name: round(value, 4) for name, value in self._seconds.items()}}
        text = json.dumps(line | ({"finished": True} if start.finished else {})) + "\n"
        self._seconds, self._last_line = {}, self._now()
        with self._warn_if_unwritable():
            if self._file is not None:
                self._file.append(text)

    def summary(self) -> Goodput | None:
        """Returns the goodput of all starts so far, or None before `begin` and in other processes."""
        if self._current is None:
            return None
        self._count()
        step = self._current.lines[-1][0]
        current = dataclasses.replace(self._current, lines=[*self._current.lines, (step, self._seconds)])
        return _summarize([*self._earlier, current])

    def _count(self) -> None:
        now = self._now()
        self._seconds[self._phases[-1]] = self._seconds.get(self._phases[-1], 0.0) + now - self._since
        self._since = now

    @contextlib.contextmanager
    def _warn_if_unwritable(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each store raises its own errors
            directory = paths.join(self._model_dir, _DIRECTORY)
            logging.warning("%s: %s. Training continues without a record of its goodput", directory, error)
            self._file = None
