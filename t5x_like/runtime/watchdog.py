"""Exits a process of a run that makes no progress, because it or another process hangs."""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

import jax
from absl import logging

from t5x_like.errors import UserError
from t5x_like.runtime.hang_report import HangReport
from t5x_like.runtime.protocol import LIKELY_TO_REPEAT

# The longest time without progress. Another process may hang although it still sends heartbeats to JAX.
STALL = "T5X_LIKE_STALL_SECONDS"
# The default before the steps have been measured, and outside of steps: longer than any compilation, restore,
# evaluation, save, or report at the end of a run.
STALL_SECONDS = 3600
# The default for a step: this many times the longest step so far, but long enough to compile a step for other shapes.
STALL_STEPS = 20
LEAST_STALL_SECONDS = 600


def seconds_of(variable: str, default: int | None = None) -> int | None:
    """Returns a number of seconds from the environment.

    Raises:
      UserError: The variable is not a positive integer.
    """
    text = os.environ.get(variable)
    if not text:
        return default
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"{variable}={text}: not a positive integer. Give a number of seconds.")
    return int(text)


class Watchdog:
    """Exits this process if it makes no progress for too long. Use it as a context manager.

    Before the exit it logs the current activity and the stack of each thread.

    Args:
      seconds: The longest time between two heartbeats. The default is `T5X_LIKE_STALL_SECONDS`, or an hour, and in a
        step 20 times the longest step so far, from 10 minutes to an hour.
      enabled: Whether to watch. By default it watches runs of several processes.
    """

    def __init__(self, seconds: int | None = None, *, enabled: bool | None = None):
        self._fixed = seconds or seconds_of(STALL)
        # `process_count` initializes the devices, so call it only if the process has joined others.
        several = jax.distributed.is_initialized() and jax.process_count() > 1
        self._enabled = several if enabled is None else enabled
        self._ended = threading.Event()
        self._last_heartbeat, self._activity = time.monotonic(), "the start"
        self._steps, self._longest_step = 0, 0.0  # the consecutive heartbeats of steps, and the seconds of a step
        self._report_to: tuple[str, Callable[[str], None]] | None = None

    def __enter__(self) -> "Watchdog":
        self.heartbeat("the start")
        _watching.append(self)
        if self._enabled:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        _watching.remove(self)
        self._ended.set()

    def heartbeat(self, activity: str, *, is_step: bool = False) -> None:
        """Records progress and the next activity.

        Args:
          activity: What this process does next.
          is_step: Whether it is a step, whose limit follows the measured steps.
        """
        now = time.monotonic()
        if is_step and self._steps > 1:  # the first step may compile
            self._longest_step = max(self._longest_step, now - self._last_heartbeat)
        self._steps = self._steps + 1 if is_step else min(self._steps, 1)
        self._last_heartbeat, self._activity = now, activity

    @property
    def limit(self) -> float:
        """The longest time in seconds until the next heartbeat."""
        if self._fixed is not None:
            return self._fixed
        if self._steps < 2 or not self._longest_step:
            return STALL_SECONDS
        return min(max(STALL_STEPS * self._longest_step, LEAST_STALL_SECONDS), STALL_SECONDS)

    def report_to(self, model_dir: str | None, on_report: Callable[[str], None]) -> None:
        """Sets where the processes report a hang; see `HangReport`. None: nowhere."""
        self._report_to = None if model_dir is None else (model_dir, on_report)

    def report_failure(self, reason: str) -> None:
        """Reports why another process has failed where a hang would be reported, before this process exits."""
        if self._report_to is not None:
            self._report_to[1](reason)

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self.limit / 4)):
            limit, waited = self.limit, time.monotonic() - self._last_heartbeat
            if waited > limit:
                logging.error(
                    "process %d of %d has waited %d s for %s: this process, another one or the data hangs. All "
                    "processes exit (%s sets the limit); the same command resumes from the latest checkpoint. "
                    "Stack of each thread:",
                    *(jax.process_index(), jax.process_count(), waited, self._activity, STALL),
                )
                faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
                self._report(waited, limit)
                os._exit(LIKELY_TO_REPEAT)

    def _report(self, waited: float, limit: float) -> None:
        if self._report_to is not None:
            model_dir, on_report = self._report_to
            # The others may have stopped a step later. The limit is longer than any step.
            wait = max(10.0, limit / 10)
            report = HangReport(
                model_dir, jax.process_index(), jax.process_count(), wait_seconds=wait, on_report=on_report
            )
            report.run(self._activity, waited)


_watching: list[Watchdog] = []


def heartbeat(activity: str, *, is_step: bool = False) -> None:
    """Records progress and the next activity in all active watchdogs; see `Watchdog.heartbeat`."""
    for watchdog in _watching:
        watchdog.heartbeat(activity, is_step=is_step)


def report(reason: str) -> None:
    """Reports why another process has failed in all active watchdogs; see `Watchdog.report_failure`."""
    for watchdog in _watching:
        watchdog.report_failure(reason)


@contextlib.contextmanager
def reports_hangs(model_dir: str, on_report: Callable[[str], None]) -> Iterator[None]:
    """Within the context, a hang is reported to `MODEL_DIR/hang`, and `on_report` is called with the report.

    After an error in the context, it still is, because a process may hang while it cleans up.
    """
    watching = list(_watching)
    for watchdog in watching:
        watchdog.report_to(model_dir, on_report)
    yield
    for watchdog in watching:
        watchdog.report_to(None, on_report)
