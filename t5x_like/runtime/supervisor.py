"""Runs a command as a child process and restarts it after crashes, for `--max_restarts=N`. Imports no JAX."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from t5x_like.runtime import run_files
from t5x_like.runtime.protocol import LIKELY_TO_REPEAT, LOST_PEER, PREEMPTED, SUCCESS, SUPERVISED, USER_ERROR

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WAIT_SECONDS = 5.0
# The pause before a restart doubles with each crash, because the machine or the store may need time to recover.
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
# A run preempted before this time is likely to be preempted for the same reason after a restart.
SHORT_RUN_SECONDS = 300.0
_MEANINGS = {
    PREEMPTED: "it was preempted",
    LOST_PEER: "it lost another process of the run",
    LIKELY_TO_REPEAT: f"it ended with exit code {LIKELY_TO_REPEAT}, a failure that is likely to repeat",
}


def describe_exit(code: int) -> str:
    """Describes an exit code of `subprocess` in words."""
    if code < 0:
        hint = ", often because of exhausted memory" if -code == signal.SIGKILL else ""
        return f"it was ended by {signal.Signals(-code).name}{hint}"
    return _MEANINGS.get(code, f"it ended with exit code {code}")


class Supervisor:
    """Runs a command until it succeeds, is stopped, or has crashed too often.

    | exit code of the command | what follows |
    |---|---|
    | 0 (success), 2 (a user error, which a restart would repeat) | the end |
    | 75 (preempted, while this machine continues to run) | a restart, without a limit |
    | 69 (another process of the run is lost) | a restart, without a limit, for which the others wait |
    | 70 (memory exhausted, loss not finite, a hang) | a restart, unless the run failed so before and has no new step |
    | others (crashes), and 70 | a restart; `max_restarts` of them without a new checkpoint |

    The pause before a restart grows with each crash, and while preempted runs are short, because each of them writes a
    checkpoint, which would soon displace older ones.

    Args:
      command: The program and its arguments.
      max_restarts: Maximum number of restarts after crashes without a new checkpoint.
      model_dir: The run directory, with checkpoints and status.
      first_pause: Seconds before the first restart. Later pauses are 2, 4, … times as long.
    """

    def __init__(
        self,
        command: Sequence[str],
        max_restarts: int,
        *,
        model_dir: str,
        first_pause: float = FIRST_PAUSE_SECONDS,
    ):
        self._command, self._max_restarts = command, max_restarts
        self._model_dir, self._first_pause = model_dir, first_pause
        self._child: subprocess.Popen | None = None
        self._stop_requested = threading.Event()

    def run(self) -> int:
        """Runs the command and restarts it as needed.

        Returns:
          The exit code of the last child process; 128 + n if signal n ended it.
        """
        previous = {number: signal.signal(number, self._forward) for number in _FORWARDED if _is_handled(number)}
        try:
            code = self._run()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return code if code >= 0 else 128 - code

    def _run(self) -> int:
        crashes = 0
        pause = preempted_pause = self._first_pause
        failed_step: int | None = None  # the last step of a failure that is likely to repeat
        newest = self._newest_checkpoint()
        while True:
            started = time.monotonic()
            code = self._run_once()
            if self._stop_requested.is_set() or code in (SUCCESS, USER_ERROR):
                return code
            before, newest = newest, self._newest_checkpoint()
            if newest is not None and (before is None or newest > before):
                crashes, pause = 0, self._first_pause
            seconds, status = time.monotonic() - started, self._status()
            reason = f" ({status['reason']})" if status.get("state") == "failed" and status.get("reason") else ""
            why = f"{describe_exit(code)} after {seconds:.0f} s{reason}"
            if code == PREEMPTED:
                if seconds >= SHORT_RUN_SECONDS:
                    preempted_pause = self._first_pause
                logging.warning(
                    "%s; restarting in %.0f s (the pause doubles after each run shorter than %.0f s)",
                    *(why, preempted_pause, SHORT_RUN_SECONDS),
                )
                self._stop_requested.wait(preempted_pause)
                preempted_pause = min(2 * preempted_pause, LONGEST_PAUSE_SECONDS)
            elif code == LOST_PEER:
                logging.warning("%s; restarting in %.0f s, which is not counted", why, self._first_pause)
                self._stop_requested.wait(self._first_pause)
            else:
                crashes += 1
                step = status.get("step")
                if code == LIKELY_TO_REPEAT and isinstance(step, int):
                    if failed_step is not None and step <= failed_step:
                        logging.error("%s; it failed so before, and has computed no new step since", why)
                        return code
                    failed_step = step
                if crashes > self._max_restarts:
                    logging.error("%s; maximum restarts (%d) without a new checkpoint reached", why, self._max_restarts)
                    return code
                logging.warning("%s; restart %d of %d in %.0f s", why, crashes, self._max_restarts, pause)
                self._stop_requested.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            if self._stop_requested.is_set():
                return code

    def _run_once(self) -> int:
        # In a new session Ctrl-C reaches the child only through `_forward`, once, as a request to save and exit.
        self._child = subprocess.Popen(self._command, env={**os.environ, SUPERVISED: "1"}, start_new_session=True)
        if self._stop_requested.is_set():  # the request came between two child processes
            self._child.terminate()
        # A wait without end would not see a signal that arrives just before it blocks, until the child ends.
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._child.wait(timeout=_WAIT_SECONDS)

    def _forward(self, number, frame) -> None:
        self._stop_requested.set()
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)

    def _newest_checkpoint(self) -> tuple[int, int] | None:
        """Returns the number of the phase that has run last, and the step of its newest checkpoint, or None."""
        with contextlib.suppress(Exception):  # each store raises its own errors
            phases = run_files.phase_directories(self._model_dir)
            newest = run_files.newest_checkpoint(phases[-1] if phases else self._model_dir)
            return None if newest is None else (len(phases), newest)
        return None

    def _status(self) -> Mapping[str, Any]:
        with contextlib.suppress(Exception):
            phases = run_files.phase_directories(self._model_dir)
            return run_files.read_status(phases[-1] if phases else self._model_dir) or {}
        return {}


def _is_handled(number: int) -> bool:
    """Returns whether a signal is not ignored, as nohup ignores SIGHUP."""
    return signal.getsignal(number) is not signal.SIG_IGN


def run_with_restarts(argv: Sequence[str], max_restarts: int, model_dir: str) -> int:
    """Runs a command line under a supervisor.

    Args:
      argv: The command and its flags, without `--max_restarts`.
      max_restarts: Maximum number of restarts after consecutive crashes.
      model_dir: The run directory.

    Returns:
      The exit code, see `Supervisor.run`.
    """
    return Supervisor([sys.executable, "-m", "t5x_like", *argv], max_restarts, model_dir=model_dir).run()
