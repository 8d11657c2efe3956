#!/usr/bin/env python3
"""Runs one command on this machine: restarts it after preemptions, and up to a limit after crashes.

    supervise.py run [--max_restarts=N] [--run=DIRECTORY] [--delay=SECONDS] [--on_preempted=restart|exit] -- COMMAND…

| exit code of the command | reaction |
|---|---|
| 0, 2 | the supervisor exits with the same code: success, or a user error, which a restart would repeat |
| 75 | the command was preempted: a restart, or exit code 75 with --on_preempted=exit |
| 69 | another process of the run is lost: restarts for --peer_seconds, until it is back; a crash with --whole_run |
| 70 | a failure that is likely to repeat: one restart |
| other | a crash: up to --max_restarts restarts in a row |

Progress resets the count of crashes: a new checkpoint in --run, or without it a run of --reset_after seconds. With
--run, starts of the supervisor itself are counted as well, in DIRECTORY/launch/starts/HOST.json: after --max_starts of
them without a new checkpoint it exits with code 1. Otherwise a cluster would restart forever what exhausts the memory
of its machine, because that kills the supervisor, too.

SIGTERM and Ctrl-C are forwarded and end the supervision; the exit code is then 75, unless the command exited with 0 or
2. On Linux, the command dies with a supervisor that is killed, because otherwise it would keep writing while the next
start writes the same files.

Requires Python 3.10 and only its standard library, and t5x_like if --run is in a bucket.
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import protocol
from jobs import split_command
from protocol import LIKELY_TO_REPEAT, LOST_PEER, PREEMPTED, SUCCESS, USER_ERROR

POLL_SECONDS = 0.2
PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>
# A platform may need more than an hour to give up a machine and to replace it.
PEER_SECONDS = 4 * 3600.0
# Why the supervisor exits after starts without progress; Kubernetes must not mistake it for a preemption.
NO_PROGRESS = 1


def describe_exit(code: int) -> str:
    """Describes an exit code, which is negative for a signal as in `subprocess`."""
    if code < 0:
        hint = ", often because memory ran out" if -code == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    meanings = {
        USER_ERROR: f"exit code {USER_ERROR}, an error in its arguments or settings",
        LOST_PEER: f"another process of the run is lost (exit code {LOST_PEER})",
        LIKELY_TO_REPEAT: f"exit code {LIKELY_TO_REPEAT}, a failure that is likely to repeat",
        PREEMPTED: f"preempted (exit code {PREEMPTED})",
    }
    return meanings.get(code, f"exit code {code}")


def parent_death_hook():
    """Returns a `preexec_fn` that kills a child process when this process dies, or None if this is not Linux.

    The child gets SIGKILL instead of SIGTERM, because it must be gone when the job is started again.
    """
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def hook():
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # the parent was killed before the line above
            os._exit(1)

    return hook


class Progress:
    """The newest checkpoint of a run, and how often a supervisor started since.

    A directory that cannot be read or written does not stop a run: it then counts as one without progress.

    Args:
      directory: The directory of the run, a path or gs://…; None if it is not known.
    """

    def __init__(self, directory: str | None):
        self._directory = directory
        self._newest = self.newest_step()

    def newest_step(self) -> int:
        """Returns the step of the newest checkpoint, or -1 if there is none."""
        return max((int(name) for name in self._names() if name.isdigit()), default=-1)

    def has_advanced(self) -> bool:
        """Returns whether there is a newer checkpoint than at the last call."""
        before = self._newest
        self._newest = max(before, self.newest_step())  # -1 if the store does not answer
        return self._newest > before

    def count_start(self) -> int:
        """Counts a start of this host and returns the number since the newest checkpoint, this one included."""
        if self._directory is None:
            return 1
        path = f"{self._directory}/{protocol.JOB_DIRECTORY}/starts/{socket.gethostname()}.json"
        stored = {}
        with contextlib.suppress(Exception):
            stored = json.loads(self._files().read_text(path))
        starts = 1 + (stored.get("starts", 0) if stored.get("step") == self._newest else 0)
        with contextlib.suppress(Exception):
            self._files().write_atomic(path, json.dumps({"step": self._newest, "starts": starts}))
        return starts

    def _names(self) -> list[str]:
        if self._directory is None:
            return []
        names = []
        with contextlib.suppress(Exception):
            names = self._files().listdir(f"{self._directory}/checkpoints")
        # Where a rename is not atomic, a marker beside the directory says that it is complete.
        return [name.strip("/").removesuffix(".committed") for name in names]

    def _files(self):
        if "://" not in self._directory:
            return LocalFiles
        from t5x_like import paths  # only for a bucket: the supervisor of a container has no t5x_like

        return paths


class LocalFiles:
    """The functions of `t5x_like.paths` that `Progress` calls, for local files."""

    read_text = staticmethod(lambda path: Path(path).read_text())
    listdir = staticmethod(os.listdir)

    @staticmethod
    def write_atomic(path: str, text: str) -> None:
        """Replaces a file."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(f"{path}.draft").write_text(text)
        Path(f"{path}.draft").replace(path)


class Supervisor:
    """Runs a command until it succeeds, is stopped, or has crashed too often.

    Args:
      command: The command and its arguments.
      options: The parsed command line.
    """

    def __init__(self, command: list[str], options: argparse.Namespace):
        self.command, self.options = command, options
        self.child: subprocess.Popen | None = None
        self.stopping = False
        self.progress = Progress(options.run and options.run.rstrip("/"))

    def run(self) -> int:
        """Runs the command and returns its last exit code; death by signal n counts as 128 + n."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        starts = self.progress.count_start()
        if starts > self.options.max_starts:
            log(
                f"{starts - 1} starts without a new checkpoint in {self.options.run}: not started again. Memory of the "
                f"machine may be exhausted. Correct the cause, and remove {self.options.run.rstrip('/')}/"
                f"{protocol.JOB_DIRECTORY}/starts"
            )
            return NO_PROGRESS
        code, reason = self._run_until_done()
        code = code if code >= 0 else 128 - code
        if self.stopping and code not in (SUCCESS, USER_ERROR):
            # The command was asked to exit. It may still have crashed, because its peers exited first.
            code = PREEMPTED
        log(f"the job ended: {reason}" if code else "the job is done")
        return code

    def _run_until_done(self) -> tuple[int, str]:
        """Runs and restarts the command, and returns its last exit code and the description."""
        crashes, progressed = 0, time.monotonic()
        while True:
            code, seconds = self._run_once()
            reason = describe_exit(code)
            if code in (SUCCESS, USER_ERROR) or self.stopping:
                return code, reason
            if code == PREEMPTED and self.options.on_preempted == "exit":
                return code, reason
            if self._has_progressed(seconds):
                crashes, progressed = 0, time.monotonic()
            waited = time.monotonic() - progressed
            if code == PREEMPTED or (code == LOST_PEER and not self.options.whole_run):
                if code == LOST_PEER and waited > self.options.peer_seconds:
                    log(f"{reason}, and not back after {waited:.0f} s without progress")
                    return code, reason
                log(f"{reason}; restarting in {self.options.delay:g} s")
            else:
                crashes += 1
                limit = min(self.options.max_restarts, 1) if code == LIKELY_TO_REPEAT else self.options.max_restarts
                if crashes > limit:
                    log(f"{reason} after {seconds:.0f} s; maximum restarts without progress ({limit}) reached")
                    # Positive: an outer scheduler must not mistake repeated kills for a preemption.
                    return max(code, 1), reason
                log(f"{reason} after {seconds:.0f} s; restart {crashes} of {limit} in {self.options.delay:g} s")
            self._pause()
            if self.stopping:
                return code, reason

    def _has_progressed(self, seconds: float) -> bool:
        if self.options.run:
            return self.progress.has_advanced()
        return seconds >= self.options.reset_after

    def _run_once(self) -> tuple[int, float]:
        """Runs the command once, and returns its exit code and the seconds it took."""
        start = time.monotonic()
        environment = {**os.environ, protocol.SUPERVISED: "1"}
        try:
            # In its own session the command receives Ctrl-C only once, from this supervisor, as a request to exit.
            self.child = subprocess.Popen(
                self.command, env=environment, start_new_session=True, preexec_fn=parent_death_hook()
            )
        except OSError as error:
            log(f"{self.command[0]} cannot be started: {error.strerror}")
            return USER_ERROR, 0.0
        if self.stopping:  # the signal arrived between two runs, when there was no child
            self.child.terminate()
        return self.child.wait(), time.monotonic() - start

    def _pause(self) -> None:
        deadline = time.monotonic() + self.options.delay
        while not self.stopping and time.monotonic() < deadline:
            time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))

    def _stop(self, number, frame) -> None:
        self.stopping = True
        if self.child is not None and self.child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.child.terminate()


def log(text: str) -> None:
    """Logs a message."""
    print(f"{time.strftime('%H:%M:%S')} supervise: {text}", file=sys.stderr, flush=True)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("action", choices=("run",), help="what to do, see above")

    def add(name: str, text: str, **options) -> None:
        parser.add_argument(f"--{name}", help=f"{text} (default: %(default)s)", **options)

    add("max_restarts", "maximum restarts without progress", type=int, default=protocol.MAX_RESTARTS)
    add("max_starts", "maximum starts of the supervisor without progress", type=int, default=protocol.MAX_STARTS)
    add("run", "directory of the run, whose checkpoints are its progress")
    parser.add_argument(
        "--whole_run", action="store_true", help="the command starts all processes: losing one counts as a crash"
    )
    add("delay", "seconds before a restart", type=float, default=10.0)
    add("peer_seconds", "how long a lost process may take to come back", type=float, default=PEER_SECONDS)
    add("reset_after", "without --run: seconds of a run that count as progress", type=float, default=3600.0)
    add("on_preempted", "what to do after a preemption", choices=("restart", "exit"), default="restart")
    return parser


def main(argv: list[str]) -> int:
    """Runs the command and returns the exit code."""
    arguments, command = split_command(argv)
    parser = make_parser()
    options = parser.parse_args(arguments)
    if not command:
        parser.error("no command given. Add -- COMMAND")
    return Supervisor(command, options).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
