"""The report of a hang: the stacks of all processes of a run, and which process is not where the others are."""

import collections
import dataclasses
import faulthandler
import json
import os
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import logging

from t5x_like import paths

DIRECTORY = "hang"
REPORT = "report.txt"
_PACKAGE = Path(__file__).resolve().parents[1]
# How often a process looks for the stacks of the others.
_POLL_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Stall:
    """Where one process hangs.

    Attributes:
      process: Index of the process.
      host: Its host name.
      activity: What it has waited for.
      since: Time of its last progress, in seconds since 1970.
      time: Time of the report, in seconds since 1970.
      location: The innermost line of this package in its main thread, such as `data/feed.py:125 in __next__`.
    """

    process: int
    host: str
    activity: str
    since: float
    time: float
    location: str

    def __str__(self) -> str:
        waited = f"has waited {self.time - self.since:.0f} s for {self.activity}"
        return f"process {self.process} on host {self.host} {waited}, at {self.location}"


class HangReport:
    """Writes `MODEL_DIR/hang/process_<i>.txt` in every process, and `report.txt`, which compares them.

    The first line of a process's file is its `Stall` as JSON; the stacks of all threads follow. The files of an earlier
    hang are replaced.

    Args:
      model_dir: The run directory, which all processes share.
      process: Index of this process.
      count: Number of processes.
      wait_seconds: How long to wait for the files of the other processes, which may stop one step later.
      on_report: Called with the text of the report.
    """

    def __init__(
        self,
        model_dir: str,
        process: int,
        count: int,
        *,
        wait_seconds: float,
        on_report: Callable[[str], None] = lambda text: None,
    ):
        self._directory, self._process, self._count = paths.join(model_dir, DIRECTORY), process, count
        self._wait_seconds, self._on_report = wait_seconds, on_report

    def run(self, activity: str, waited: float) -> None:
        """Writes the stacks of this process and the report. Returns after twice `wait_seconds` if a store hangs.

        Args:
          activity: What this process has waited for.
          waited: For how many seconds.
        """
        main = threading.main_thread().ident
        location = _location(traceback.extract_stack(sys._current_frames()[main]))
        now = time.time()
        mine = Stall(self._process, socket.gethostname(), activity, now - waited, now, location)
        thread = threading.Thread(target=self._run, args=(mine,), name="hang report", daemon=True)
        thread.start()
        thread.join(2 * self._wait_seconds)

    def _run(self, mine: Stall) -> None:
        try:
            header = json.dumps(dataclasses.asdict(mine)) + "\n\n"
            paths.write_atomic(self._file(self._process), header + _stacks())
            stalls, deadline = self._read(mine), time.monotonic() + self._wait_seconds
            while len(stalls) < self._count and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                stalls = self._read(mine)
            text = compare(stalls, self._count)
            logging.error("%s", text)
            if mine.process == min(stall.process for stall in stalls):
                paths.write_atomic(paths.join(self._directory, REPORT), text + "\n")
            self._on_report(text)
        except Exception as error:  # each store raises its own errors
            logging.error("the report of the hang cannot be written to %s: %s", self._directory, error)

    def _read(self, mine: Stall) -> list[Stall]:
        """Returns the stalls of all processes that have reported this hang."""
        stalls = []
        for process in range(self._count):
            try:
                stall = Stall(**json.loads(paths.read_text(self._file(process)).split("\n", 1)[0]))
            except (FileNotFoundError, ValueError, TypeError):  # missing or being written
                continue
            if stall.time > mine.since:  # not of an earlier hang
                stalls.append(stall)
        return stalls

    def _file(self, process: int) -> str:
        return paths.join(self._directory, f"process_{process:05d}.txt")


def compare(stalls: Sequence[Stall], count: int) -> str:
    """Describes which processes are not where most are, and where each process is.

    Args:
      stalls: The stalls of the processes that have reported.
      count: Number of processes.

    Returns:
      Text whose first line names the likely cause.
    """
    # If as many processes are in one place as in another, those that made progress last wait for the others.
    ordered = sorted(stalls, key=lambda stall: -stall.since)
    (usual, _), *_ = collections.Counter(stall.location for stall in ordered).most_common(1)
    apart = sorted((stall for stall in stalls if stall.location != usual), key=lambda stall: stall.process)
    silent = sorted(set(range(count)) - {stall.process for stall in stalls})
    causes = [f"process {stall.process} on host {stall.host} hangs at {stall.location}" for stall in apart]
    if silent:
        causes.append(f"processes {silent} have not reported: they have ended, or hang outside of Python")
    head = "; ".join(causes) if causes else f"all {count} processes wait at {usual}"
    others = f" The others wait at {usual}." if causes else ""
    return "\n".join([f"{head}.{others}", *(str(stall) for stall in sorted(stalls, key=lambda stall: stall.process))])


def _location(stack: Sequence[traceback.FrameSummary]) -> str:
    """Returns the innermost line of this package in a stack, or the innermost line."""
    ours = [frame for frame in stack if _PACKAGE in Path(frame.filename).parents]
    frame = (ours or list(stack))[-1]
    name = Path(frame.filename)
    shown = name.relative_to(_PACKAGE) if ours else name.name
    return f"{shown}:{frame.lineno} in {frame.name}"


def _stacks() -> str:
    """Returns the stacks of all threads."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0, os.SEEK_SET)
        return file.read()
