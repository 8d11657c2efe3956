"""The state of a supervised job on this machine, and its processes.

Requires Python 3.10 and only its standard library.
"""

import contextlib
import json
import os
import signal
import socket
import time
from pathlib import Path

import protocol

POLL_SECONDS = 0.2
SUPERVISOR = "supervise.py"  # in the command line of a supervisor


class Job:
    """A job directory: `log`, and `state.json`, which is replaced atomically.

    Args:
      directory: The directory, which is created with the first state.
    """

    def __init__(self, directory: Path):
        self.directory, self.log, self._state = directory, directory / "log", directory / "state.json"

    def read(self) -> dict:
        """Returns the state of the job, with the name of this `host`.

        Its `state` is `absent`, `running`, `finished`, or `lost` if the supervisor died while the job was running, or
        was asked to stop it because the machine was shut down.
        """
        try:
            state = json.loads(self._state.read_text())
        except FileNotFoundError:
            return {"state": "absent", "host": socket.gethostname()}
        shut_down = state.get("exit_code") == protocol.PREEMPTED and state.get("boot", boot_id()) != boot_id()
        if shut_down or (state["state"] == "running" and not self._is_alive(state["pid"])):
            state.update(state="lost", reason="the machine was restarted, or the supervisor was killed")
        return {**state, "host": socket.gethostname()}

    def write(self, **state) -> None:
        """Replaces the state of the job."""
        self.directory.mkdir(parents=True, exist_ok=True)
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
        # After a reboot another process may have the same ID. Where /proc exists, check the command line.
        with contextlib.suppress(OSError):
            command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
            return SUPERVISOR.encode() in command_line
        return True


def boot_id() -> str | None:
    """Returns an ID of the time since the machine was started, or None on systems without /proc."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None


def job_processes(state: dict) -> list[int]:
    """Returns the IDs of a job's live processes, or an empty list on systems without /proc."""
    definition, pids = f"{protocol.JOB_ID}={state.get('mark')}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # the process has exited, or belongs to another user
            if definition in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
    return pids


def terminate_orphans(state: dict, grace: float) -> str | None:
    """Terminates processes of a job whose supervisor has died.

    Args:
      state: The state of the job.
      grace: Seconds to save a checkpoint and exit before the processes are killed.

    Returns:
      `has exited` or `was killed`, or None if no process was running.
    """
    pids = job_processes(state)
    if not pids:
        return None
    send_signal([state["child"]] if state["child"] in pids else pids, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while (pids := job_processes(state)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    if not pids:
        return "has exited"
    while pids := job_processes(state):
        send_signal(pids, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return "was killed"


def send_signal(pids: list[int], number: int) -> None:
    """Sends a signal to processes, ignoring those that have exited."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
