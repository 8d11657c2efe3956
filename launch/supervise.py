#!/usr/bin/env python3
"""Keeps one command running on this machine: restarts it after preemptions and, up to a limit, after crashes.

    supervise.py run [--max_restarts=N] [--delay=SECONDS] [--on_preempted=restart|exit] -- COMMAND…   in the foreground
    supervise.py start … -- COMMAND…      the same, detached from this shell; output goes to JOB_DIR/log
    supervise.py status                   print one line of JSON: host, state, exit_code, restarts, reason
    supervise.py follow [--lines=N]       follow the log until the job ends; exits with the job's exit code
    supervise.py stop [--grace=SECONDS]   ask the job to save a checkpoint and exit; kill it after the grace period

Exit codes of the command: 0 is success; 2 is a user error, which a restart would repeat; 75 is a preemption, after
which the command is always restarted (unless --on_preempted=exit); all others are crashes, which are restarted
--max_restarts times in a row. A run of at least --reset_after seconds resets the count of crashes. SIGTERM and Ctrl-C
are forwarded and also end the supervision; the exit code is then 75, unless the command exited with 0 or 2.

On Linux, the command dies with a supervisor that is killed, because otherwise it would keep writing while the next
start writes the same files. `run`, `start` and `stop` also terminate other processes that such a supervisor left.

Requires Python 3.10 and only its standard library. `--job_dir` (default: ~/t5x_like_job) holds the log and the state.
"""

import argparse
import contextlib
import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import protocol
from job_state import POLL_SECONDS, Job, boot_id, job_processes, send_signal, terminate_orphans
from jobs import split_command
from log_copy import LogCopy
from protocol import PREEMPTED, SUCCESS, USER_ERROR

NOT_RUNNING, ALREADY_RUNNING = 3, 4  # exit codes of this script
PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


def describe_exit(code: int) -> str:
    """Describes an exit code, which is negative for a signal as in `subprocess`."""
    if code < 0:
        hint = ", often because memory ran out" if -code == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    meanings = {
        USER_ERROR: f"exit code {USER_ERROR}, an error in its arguments or settings",
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


class Supervisor:
    """Runs a command until it succeeds, is stopped, or has crashed too often.

    Args:
      job: The job directory.
      command: The command and its arguments.
      options: The parsed command line.
    """

    def __init__(self, job: Job, command: list[str], options: argparse.Namespace):
        self.job, self.command, self.options = job, command, options
        self.child: subprocess.Popen | None = None
        self.stopping = False
        self.restarts = 0
        self.mark = secrets.token_hex(8)  # identifies the processes of this job

    def run(self) -> int:
        """Runs the command and returns its last exit code; death by signal n counts as 128 + n."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        previous = self.job.read()
        if previous["state"] == "lost" and (outcome := terminate_orphans(previous, self.options.grace)):
            self._log(f"the previous job was running without its supervisor and {outcome}")
        offset = self.job.log.stat().st_size if self.job.log.exists() else 0
        with self._log_copy(offset):  # ends before the state says so, because the machine may then be deleted
            code, reason = self._run_until_done(offset)
            code = code if code >= 0 else 128 - code
            if self.stopping and code not in (SUCCESS, USER_ERROR):
                # The command was asked to exit. It may still have crashed, because its peers exited first.
                code = PREEMPTED
            self._log(f"the job ended: {reason}" if code else "the job is done")
        self._record("finished", offset, reason, exit_code=code)
        return code

    def _log_copy(self, offset: int) -> contextlib.AbstractContextManager:
        if not self.options.log_copy:
            return contextlib.nullcontext()
        return LogCopy(self.job.log, offset, f"{self.options.log_copy}/{socket.gethostname()}")

    def _run_until_done(self, offset: int) -> tuple[int, str]:
        """Runs and restarts the command, and returns its last exit code and the description."""
        crashes, reason = 0, None
        while True:
            code, seconds = self._run_once(offset, reason)
            reason = describe_exit(code)
            if code in (SUCCESS, USER_ERROR) or self.stopping:
                return code, reason
            if code == PREEMPTED:
                if self.options.on_preempted == "exit":
                    return code, reason
                self._log(f"{reason}; restarting in {self.options.delay:g} s")
            else:
                crashes = 1 if seconds >= self.options.reset_after else crashes + 1
                if crashes > self.options.max_restarts:
                    self._log(f"{reason} after {seconds:.0f} s; maximum restarts ({self.options.max_restarts}) reached")
                    # Positive: an outer scheduler must not mistake repeated kills for a preemption.
                    return max(code, 1), reason
                self._log(
                    f"{reason} after {seconds:.0f} s; restart {crashes} of {self.options.max_restarts} "
                    f"in {self.options.delay:g} s"
                )
            self.restarts += 1
            self._pause()
            if self.stopping:
                return code, reason

    def _run_once(self, offset: int, reason: str | None) -> tuple[int, float]:
        """Runs the command once, and returns its exit code and the seconds it took."""
        start = time.monotonic()
        environment = {**os.environ, protocol.SUPERVISED: "1", protocol.JOB_ID: self.mark}
        try:
            # In its own session the command receives Ctrl-C only once, from this supervisor, as a request to exit.
            self.child = subprocess.Popen(
                self.command, env=environment, start_new_session=True, preexec_fn=parent_death_hook()
            )
        except OSError as error:
            self._log(f"{self.command[0]} cannot be started: {error.strerror}")
            return USER_ERROR, 0.0
        self._record("running", offset, reason)
        if self.stopping:  # the signal arrived between two runs, when there was no child
            self.child.terminate()
        return self.child.wait(), time.monotonic() - start

    def _record(self, state: str, offset: int, reason: str | None, **extra) -> None:
        child = self.child.pid if self.child else None
        self.job.write(
            state=state,
            pid=os.getpid(),
            child=child,
            mark=self.mark,
            boot=boot_id(),
            restarts=self.restarts,
            reason=reason,
            log_offset=offset,
            command=self.command,
            **extra,
        )

    def _pause(self) -> None:
        deadline = time.monotonic() + self.options.delay
        while not self.stopping and time.monotonic() < deadline:
            time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))

    def _stop(self, number, frame) -> None:
        self.stopping = True
        if self.child is not None and self.child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.child.terminate()

    def _log(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} supervise: {text}", file=sys.stderr, flush=True)


def start(job: Job, arguments: list[str]) -> int:
    """Starts `run` in a new session, waits until its state can be read, and returns the exit code.

    Args:
      job: The job directory.
      arguments: The arguments of `run`.
    """
    previous = job.read()
    if previous["state"] == "running":
        print(f"supervise: a job is already running (process {previous['pid']}). Stop it first", file=sys.stderr)
        return ALREADY_RUNNING
    job.directory.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "run", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while process.poll() is None and job.read().get("pid") != process.pid:
        time.sleep(POLL_SECONDS / 4)
    if job.read().get("pid") != process.pid:
        print(f"supervise: the job did not start. See {job.log}", file=sys.stderr)
        return process.returncode
    print(f"supervise: started as process {process.pid}; its output is in {job.log}")
    return 0


def follow(job: Job, lines: int) -> int:
    """Prints the log of the current job until the job ends.

    Args:
      job: The job directory.
      lines: Number of existing lines to start with; 0 for all.

    Returns:
      The exit code of the job.
    """
    state = job.read()
    if state["state"] == "absent":
        print(f"supervise: no job found in {job.directory}", file=sys.stderr)
        return NOT_RUNNING
    with job.log.open("rb") as log:
        log.seek(state["log_offset"])
        tail = log.read().splitlines(keepends=True)
        sys.stdout.buffer.write(b"".join(tail[-lines:] if lines else tail))
        while True:
            state = job.read()  # before the log, so that all output is shown when the job has ended
            sys.stdout.buffer.write(log.read())
            sys.stdout.buffer.flush()
            if state["state"] != "running":
                return state.get("exit_code", NOT_RUNNING)
            time.sleep(POLL_SECONDS)


def stop(job: Job, grace: float) -> int:
    """Asks the job to save a checkpoint and exit, and kills it after the grace period.

    Args:
      job: The job directory.
      grace: Seconds until the job is killed.

    Returns:
      0 if the job exited by itself or was not running, 1 if it was killed.
    """
    state = job.read()
    if state["state"] == "lost" and (outcome := terminate_orphans(state, grace)):
        print(f"supervise: the job was running without its supervisor and {outcome}")
        return 0 if outcome == "has exited" else 1
    if state["state"] != "running":
        print(f"supervise: no running job found (state: {state['state']})")
        return 0
    os.kill(state["pid"], signal.SIGTERM)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline:
        if job.read()["state"] != "running":
            print(f"supervise: stopped: {job.read()['reason']}")
            return 0
        time.sleep(POLL_SECONDS)
    state = job.read()  # read again, because the child may have been restarted
    with contextlib.suppress(ProcessLookupError):
        os.killpg(state["child"], signal.SIGKILL)
    send_signal(job_processes(state), signal.SIGKILL)  # including those with their own process group
    print(f"supervise: killed after {grace:g} s because the job had not exited")
    return 1


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("action", choices=("run", "start", "status", "follow", "stop"), help="what to do, see above")

    def add(name: str, text: str, **options) -> None:
        parser.add_argument(f"--{name}", help=f"{text} (default: %(default)s)", **options)

    job_directory = Path.home() / protocol.JOB_DIRECTORY
    add("job_dir", "directory of the log and the state", type=lambda x: Path(x).expanduser(), default=job_directory)
    add("max_restarts", "maximum number of restarts after crashes", type=int, default=protocol.MAX_RESTARTS)
    add("delay", "seconds before a restart", type=float, default=10.0)
    add("reset_after", "seconds after which a run resets the count of crashes", type=float, default=3600.0)
    add("on_preempted", "what to do after a preemption", choices=("restart", "exit"), default="restart")
    add("log_copy", "with start: directory in a bucket to copy the log to while the job runs, below the host's name")
    add("lines", "lines of the log that follow starts with; 0 for all", type=int, default=50)
    add("grace", "seconds before a job that does not exit is killed", type=float, default=300.0)
    return parser


def main(argv: list[str]) -> int:
    """Runs an action and returns the exit code."""
    arguments, command = split_command(argv)
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.action in ("run", "start") and not command:
        parser.error(f"{options.action}: no command given. Add -- COMMAND")
    job = Job(options.job_dir)
    if options.action == "run":
        return Supervisor(job, command, options).run()
    if options.action == "start":
        return start(job, [*(word for word in arguments if word != "start"), "--", *command])
    if options.action == "follow":
        return follow(job, options.lines)
    if options.action == "stop":
        return stop(job, options.grace)
    print(json.dumps(job.read()))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(protocol.INTERRUPTED)
