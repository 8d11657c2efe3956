#!/usr/bin/env python3
"""Keeps one command running on this machine: starts it again after a preemption, and after a crash, so many times.

    supervise.py run [--max_restarts=N] [--delay=SECONDS] [--on_preempted=restart|exit] -- COMMAND…   in the foreground
    supervise.py start … -- COMMAND…      the same, detached from this shell; output goes to JOB_DIR/log
    supervise.py status                   one line of JSON: state, exit_code, restarts, reason
    supervise.py follow [--lines=N]       the log as it grows, until the job ends; exits with the job's exit code
    supervise.py stop [--grace=SECONDS]   asks the job to save and leave; kills it after the grace

What exit codes mean: 0 done; 2 a mistake of the user's, which another start would repeat; 75 preempted, start again (as
often as it comes, unless --on_preempted=exit); anything else a crash, restarted --max_restarts times. A run that lasted
--reset_after seconds has shown that it works: crashes are counted from there anew. SIGTERM and Ctrl-C are passed on,
and end the supervision too: with --on_preempted=exit by code 75, unless the command ended with 0 or 2.

A supervisor that is killed takes its command with it, on Linux: what was left would write on beside the next start.
`run`, `start` and `stop` end what was left all the same, as `stop` ends a job.

Plain Python 3.10 and its standard library. `--job_dir` (default ~/t5x_like_job) holds the log and the state.
"""

import argparse
import contextlib
import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import protocol
from jobs import split_command
from protocol import PREEMPTED, SUCCESS, USER_ERROR

NOT_RUNNING, ALREADY_RUNNING = 3, 4  # exit codes of this script
POLL_SECONDS = 0.2
PR_SET_PDEATHSIG = 1  # of Linux's <sys/prctl.h>


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        hint = ", often for want of memory" if -code == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    return {
        USER_ERROR: "exit code 2, a mistake in its arguments or settings",
        PREEMPTED: "preempted (exit code 75)",
    }.get(code, f"exit code {code}")


class Job:
    """What a job folder holds: `log`, and `state.json`, which is replaced as a whole."""

    def __init__(self, folder: Path):
        self.folder, self.log, self._state = folder, folder / "log", folder / "state.json"

    def read(self) -> dict:
        """The state: `absent`, `running`, `finished`, or `lost` where the machine went down under it."""
        try:
            state = json.loads(self._state.read_text())
        except FileNotFoundError:
            return {"state": "absent"}
        if state["state"] == "running" and not self._is_alive(state["pid"]):
            state.update(state="lost", reason="the machine was restarted, or the supervisor was killed")
        return state

    def write(self, **state) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self._state.with_suffix(".draft")
        draft.write_text(json.dumps(state))
        draft.replace(self._state)

    @staticmethod
    def _is_alive(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        # After a reboot another process may have the number; where /proc tells, it is asked.
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            return os.path.basename(__file__).encode() in words
        return True


def processes(state: dict) -> list[int]:
    """The numbers of a job's processes that are alive; none where there is no /proc to tell them from others."""
    mark, found = f"{protocol.JOB_ID}={state.get('mark')}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def end_left_over(state: dict, grace: float) -> str | None:
    """Ends what a job without its supervisor has running still: asks it to save and leave, and kills it after a while.

    Args:
      state: of the job.
      grace: in seconds.

    Returns:
      What became of it, `has left` or `was killed`; None where nothing was running.
    """
    left = processes(state)
    if not left:
        return None
    signal_all([state["child"]] if state["child"] in left else left, signal.SIGTERM)
    end = time.monotonic() + grace
    while (left := processes(state)) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    if not left:
        return "has left"
    while left := processes(state):
        signal_all(left, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return "was killed"


def signal_all(numbers: list[int], number: int) -> None:
    """Sends a signal to processes, some of which may be gone."""
    for process in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def dying_with_parent():
    """What a child does before its command so that it does not outlive this process; None where this is not Linux.

    It is killed, not asked: nobody is left to wait for it, and the next start of the job must find it gone.
    """
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def before_command():
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # killed before the line above
            os._exit(1)

    return before_command


class Supervisor:
    """Runs a command until it is done, stopped, or has crashed too often."""

    def __init__(self, job: Job, command: list[str], options: argparse.Namespace):
        self.job, self.command, self.options = job, command, options
        self.child: subprocess.Popen | None = None
        self.stopping = False
        self.restarts = 0
        self.mark = secrets.token_hex(8)

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        before = self.job.read()
        if before["state"] == "lost" and (became := end_left_over(before, self.options.grace)):
            self._say(f"the last job here was running without its supervisor, and {became}")
        offset = self.job.log.stat().st_size if self.job.log.exists() else 0
        crashes, reason = 0, None
        while True:
            code, seconds = self._run_once(offset, reason)
            reason = describe_exit(code)
            if code in (SUCCESS, USER_ERROR) or self.stopping:
                break
            if code == PREEMPTED:
                if self.options.on_preempted == "exit":
                    break
                self._say(f"{reason}; starting again in {self.options.delay:g} s")
            else:
                crashes = 1 if seconds >= self.options.reset_after else crashes + 1
                if crashes > self.options.max_restarts:
                    self._say(f"{reason} after {seconds:.0f} s; giving up after {crashes - 1} restarts")
                    code = max(code, 1)  # being killed again and again is a failure, and no preemption to others
                    break
                self._say(
                    f"{reason} after {seconds:.0f} s; restart {crashes} of {self.options.max_restarts} "
                    f"in {self.options.delay:g} s"
                )
            self.restarts += 1
            self._pause()
            if self.stopping:
                break
        code = code if code >= 0 else 128 - code
        if self.stopping and self.options.on_preempted == "exit" and code not in (SUCCESS, USER_ERROR):
            code = PREEMPTED  # peers that left before it may have torn it down: that is part of being asked to leave
        self._say(f"the job has ended: {reason}" if code else "the job is done")
        self._record("finished", offset, reason, exit_code=code)
        return code

    def _run_once(self, offset: int, reason: str | None) -> tuple[int, float]:
        start = time.monotonic()
        environment = {**os.environ, protocol.SUPERVISED: "1", protocol.JOB_ID: self.mark}
        try:
            # A session of its own: Ctrl-C reaches it through here alone, once, and stays a request to save and leave.
            self.child = subprocess.Popen(
                self.command, env=environment, start_new_session=True, preexec_fn=dying_with_parent()
            )
        except OSError as error:
            self._say(f"{self.command[0]} cannot be started: {error.strerror}")
            return USER_ERROR, 0.0
        self._record("running", offset, reason)
        if self.stopping:  # asked between two runs, when there was no child to pass it on to
            self.child.terminate()
        return self.child.wait(), time.monotonic() - start

    def _record(self, state: str, offset: int, reason: str | None, **more) -> None:
        child = self.child.pid if self.child else None
        self.job.write(
            state=state,
            pid=os.getpid(),
            child=child,
            mark=self.mark,
            restarts=self.restarts,
            reason=reason,
            log_offset=offset,
            command=self.command,
            **more,
        )

    def _pause(self) -> None:
        end = time.monotonic() + self.options.delay
        while not self.stopping and time.monotonic() < end:
            time.sleep(min(POLL_SECONDS, max(0.0, end - time.monotonic())))

    def _stop(self, number, frame) -> None:
        self.stopping = True
        if self.child is not None and self.child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.child.terminate()

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} supervise: {text}", file=sys.stderr, flush=True)


def start(job: Job, arguments: list[str]) -> int:
    """Starts `run` with these arguments in a session of its own, and returns once its state can be read."""
    before = job.read()
    if before["state"] == "running":
        print(f"supervise: a job is running here already (process {before['pid']}): stop it first", file=sys.stderr)
        return ALREADY_RUNNING
    job.folder.mkdir(parents=True, exist_ok=True)
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
        print(f"supervise: it did not start; {job.log} says why", file=sys.stderr)
        return process.returncode
    print(f"supervise: started as process {process.pid}; its output is in {job.log}")
    return 0


def follow(job: Job, lines: int) -> int:
    """Prints the last lines of the log, then what comes, until the job ends.

    Returns:
      The job's exit code.
    """
    state = job.read()
    if state["state"] == "absent":
        print(f"supervise: no job was started here ({job.folder})", file=sys.stderr)
        return NOT_RUNNING
    with job.log.open("rb") as log:
        log.seek(state["log_offset"])
        tail = log.read().splitlines(keepends=True)
        sys.stdout.buffer.write(b"".join(tail[-lines:] if lines else tail))
        while True:
            state = job.read()  # before the read, so that what was written until the end is shown
            sys.stdout.buffer.write(log.read())
            sys.stdout.buffer.flush()
            if state["state"] != "running":
                return state.get("exit_code", NOT_RUNNING)
            time.sleep(POLL_SECONDS)


def stop(job: Job, grace: float) -> int:
    """Asks the job to save and leave, and kills it where it has not after `grace` seconds."""
    state = job.read()
    if state["state"] == "lost" and (became := end_left_over(state, grace)):
        print(f"supervise: the job was running without its supervisor, and {became}")
        return 0 if became == "has left" else 1
    if state["state"] != "running":
        print(f"supervise: no job is running here (state: {state['state']})")
        return 0
    os.kill(state["pid"], signal.SIGTERM)
    end = time.monotonic() + grace
    while time.monotonic() < end:
        if job.read()["state"] != "running":
            print(f"supervise: stopped: {job.read()['reason']}")
            return 0
        time.sleep(POLL_SECONDS)
    # Again: the child may be another one by now.
    state = job.read()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(state["child"], signal.SIGKILL)
    signal_all(processes(state), signal.SIGKILL)  # and those that made a group of their own
    print(f"supervise: killed after {grace:g} s: it had not left by itself")
    return 1


def main(argv: list[str]) -> int:
    argv, command = split_command(argv)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("action", choices=("run", "start", "status", "follow", "stop"))
    parser.add_argument(
        "--job_dir", type=lambda text: Path(text).expanduser(), default=Path.home() / protocol.JOB_DIRECTORY
    )
    parser.add_argument("--max_restarts", type=int, default=protocol.MAX_RESTARTS, help="after a crash (default: 3)")
    parser.add_argument("--delay", type=float, default=10.0, help="before a restart, in seconds (default: 10)")
    parser.add_argument("--reset_after", type=float, default=3600.0, help="in seconds (default: an hour)")
    parser.add_argument("--on_preempted", choices=("restart", "exit"), default="restart")
    parser.add_argument("--lines", type=int, default=50, help="of the log to begin with; 0 is all (default: 50)")
    parser.add_argument("--grace", type=float, default=300.0, help="in seconds (default: 300)")
    options = parser.parse_args(argv)
    if options.action in ("run", "start") and not command:
        parser.error(f"{options.action}: say what to run after --")
    job = Job(options.job_dir)
    if options.action == "run":
        return Supervisor(job, command, options).run()
    if options.action == "start":
        return start(job, [*(word for word in argv if word != "start"), "--", *command])
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
        sys.exit(130)
