"""`--max_restarts=N`: the command as a child that is started again after a crash. Imports no JAX."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from t5x_like import paths
from t5x_like.runtime.protocol import PREEMPTED, SUCCESS, SUPERVISED, USER_ERROR
from t5x_like.runtime.run_files import STATUS

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# The pause before a restart: doubled with each crash, as the machine or the store may need time.
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
# A run that was stopped before it has lasted so long is likely to be stopped for the same reason when it starts again.
SHORT_RUN_SECONDS = 300.0
# A run that has lasted so long has shown that it works: crashes are counted from there anew.
GOOD_RUN_SECONDS = 3600.0


def describe_exit(code: int) -> str:
    """An exit code as `subprocess` gives it, in words."""
    if code < 0:
        hints = {
            signal.SIGKILL: ", often for want of memory",
            signal.SIGABRT: ", as JAX does where another process of the run is lost",
        }
        return f"it was ended by {signal.Signals(-code).name}{hints.get(-code, '')}"
    return "it was preempted" if code == PREEMPTED else f"it ended with exit code {code}"


class Supervisor:
    """Runs a command until it is done, was stopped, or has crashed too often.

    Exit codes 0 (done) and 2 (a mistake of the user's, which another start would repeat) end it. 75 (preempted, though
    this machine was not) starts the command again, as often as it comes, after a pause that grows while the runs are
    short: each writes a checkpoint, which would soon have pushed out the good ones. Anything else is a crash.
    """

    def __init__(
        self,
        command: Sequence[str],
        max_restarts: int,
        *,
        model_dir: str | None = None,
        first_pause: float = FIRST_PAUSE_SECONDS,
    ):
        """Starts nothing yet.

        Args:
          command: the program and its arguments.
          max_restarts: how many crashes in a row to start again after.
          model_dir: the run's folder, whose status says why the run has failed.
          first_pause: seconds before the first restart; later pauses are 2, 4, … times as long.
        """
        self._command, self._most, self._model_dir, self._first_pause = command, max_restarts, model_dir, first_pause
        self._child: subprocess.Popen | None = None
        self._asked = threading.Event()

    def run(self) -> int:
        """Runs the command as often as it takes.

        Returns:
          The last child's exit code; one that was ended by signal n counts as 128 + n.
        """
        previous = {number: signal.signal(number, self._pass_on) for number in _PASSED_ON if _is_heeded(number)}
        try:
            code = self._run()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return code if code >= 0 else 128 - code

    def _run(self) -> int:
        crashes = 0
        pause = preempted_pause = self._first_pause
        while True:
            started = time.monotonic()
            code = self._run_once()
            if self._asked.is_set() or code in (SUCCESS, USER_ERROR):
                return code
            seconds = time.monotonic() - started
            why = f"{describe_exit(code)} after {seconds:.0f} s{self._reason()}"
            if code == PREEMPTED:
                if seconds >= SHORT_RUN_SECONDS:
                    preempted_pause = self._first_pause
                logging.warning(
                    "%s; starting again in %.0f s (twice as long each time that it is stopped within %.0f s)",
                    *(why, preempted_pause, SHORT_RUN_SECONDS),
                )
                self._asked.wait(preempted_pause)
                preempted_pause = min(2 * preempted_pause, LONGEST_PAUSE_SECONDS)
            else:
                if seconds >= GOOD_RUN_SECONDS:
                    crashes, pause = 0, self._first_pause
                crashes += 1
                if crashes > self._most:
                    logging.error("%s; giving up after %d restarts", why, self._most)
                    return code
                logging.warning("%s; restart %d of %d in %.0f s", why, crashes, self._most, pause)
                self._asked.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            if self._asked.is_set():
                return code

    def _run_once(self) -> int:
        # A session of its own: Ctrl-C reaches it through here alone, once, and stays a request to save and leave.
        self._child = subprocess.Popen(self._command, env={**os.environ, SUPERVISED: "1"}, start_new_session=True)
        if self._asked.is_set():  # between two children, when there was none to pass it on to
            self._child.terminate()
        return self._child.wait()

    def _pass_on(self, number, frame) -> None:
        self._asked.set()
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)

    def _reason(self) -> str:
        status = _status(self._model_dir) if self._model_dir else {}
        return f" ({status['reason']})" if status.get("state") == "failed" and status.get("reason") else ""


def _is_heeded(number: int) -> bool:
    """Whether a signal is not ignored, as SIGHUP is under nohup."""
    return signal.getsignal(number) is not signal.SIG_IGN


def _status(model_dir: str) -> Mapping[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return json.loads(paths.read_text(paths.join(model_dir, STATUS)))
    return {}


def run_with_restarts(argv: Sequence[str], max_restarts: int, model_dir: str) -> int:
    """This command line without its supervisor, under one.

    Args:
      argv: the command and its flags, without `--max_restarts`.
      max_restarts: how many crashes in a row to start again after.
      model_dir: the run's folder.
    """
    return Supervisor([sys.executable, "-m", "t5x_like", *argv], max_restarts, model_dir=model_dir).run()
