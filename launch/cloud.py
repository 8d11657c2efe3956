"""What launch/tpu.py asks of a cloud: a request for a TPU, its states, and the interface of a backend.

Two backends implement the interface: queued resources of the Cloud TPU API (launch/queued.py), and managed instance
groups of Compute Engine (launch/groups.py). launch/workers.py runs jobs on the VMs of either.

Requires Python 3.10 and only its standard library.
"""

import concurrent.futures
import contextlib
import dataclasses
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from slices import Slice

PARALLEL_CALLS = 16

# A preempted VM does not close its connections. ssh therefore ends a silent connection after 90 s and waits at most
# 10 s for a new one.
SSH_FLAGS = [
    f"--ssh-flag=-o{option}" for option in ("ConnectTimeout=10", "ServerAliveInterval=30", "ServerAliveCountMax=3")
]

ABSENT, READY, PENDING, LOST, FAILED = "absent", "ready", "pending", "lost", "failed"

# Parts of gcloud's error messages that mark permanent errors: the request, the account or the settings are invalid, so
# that a retry fails in the same way.
PERMANENT_ERRORS = (
    "PERMISSION_DENIED",
    "INVALID_ARGUMENT",
    "UNAUTHENTICATED",
    "Required 'compute.",  # Compute Engine names a missing permission in this way
    "Invalid value for field",
    "[project] is not currently set",
    "active account selected",
)


class CommandFailed(RuntimeError):
    """A command failed. The message contains its error output."""


class TransientFailure(CommandFailed):
    """A call failed but may succeed when retried: an outage of the service or network, or an expired token."""


@dataclasses.dataclass(frozen=True)
class State:
    """The state of a TPU.

    Attributes:
      kind: `ABSENT`, `READY`, `PENDING`, `LOST` or `FAILED`.
      detail: The state as reported by the cloud, or a sentence.
      workers: Number of VMs if the TPU is ready, otherwise 0.
    """

    kind: str
    detail: str
    workers: int = 0


class Shell:
    """Runs commands, or prints them in a form that can be pasted into a shell.

    Args:
      dry_run: Print commands instead of running them.
    """

    def __init__(self, dry_run: bool):
        self.dry_run = dry_run

    def run(self, *words: str, capture: bool = False, check: bool = True) -> subprocess.CompletedProcess:
        """Runs a command.

        Args:
          words: The command and its arguments.
          capture: Return the output instead of passing it through.
          check: Raise an error if the command fails.

        Returns:
          The completed process; its output is empty in a dry run.

        Raises:
          CommandFailed: The command failed or does not exist.
        """
        if self.dry_run:
            print(shlex.join(words), flush=True)
            return subprocess.CompletedProcess(words, 0, "", "")
        pipe = subprocess.PIPE if capture else None
        try:
            result = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        except FileNotFoundError:
            raise CommandFailed(f"{words[0]} not found. Install it, or add it to PATH.") from None
        if check and result.returncode:
            output = f": {(result.stderr or result.stdout).strip()}" if capture else ""
            raise CommandFailed(f"`{shlex.join(words[:6])} …` failed with exit code {result.returncode}{output}")
        return result

    def run_all(self, commands: list[list[str]], **options) -> subprocess.CompletedProcess:
        """Runs commands in parallel.

        Args:
          commands: The commands and their arguments.
          **options: Options of `run`.

        Returns:
          The outputs, joined, and the largest exit code.

        Raises:
          CommandFailed: A command failed or does not exist. All of them have ended.
        """
        if self.dry_run:
            results = [self.run(*words, **options) for words in commands]
        else:
            with concurrent.futures.ThreadPoolExecutor(PARALLEL_CALLS) as executor:
                results = list(executor.map(lambda words: self.run(*words, **options), commands))
        outputs = ["".join(getattr(result, name) or "" for result in results) for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess(commands, max((r.returncode for r in results), default=0), *outputs)

    @contextlib.contextmanager
    def in_background(self, *words: str) -> Iterator[subprocess.Popen | None]:
        """Runs a command whose output is shown while other commands run, and ends it with the context.

        Args:
          words: The command and its arguments.

        Yields:
          The process; None in a dry run.
        """
        if self.dry_run:
            self.run(*words)
            yield None
            return
        # In its own process group, because gcloud starts ssh, which would survive it.
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()

    def log(self, text: str) -> None:
        """Logs a message. In a dry run it is printed as a comment between the commands."""
        if self.dry_run:
            print(f"# {text}", flush=True)
        else:
            print(f"tpu.py: {text}", file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class Request:
    """Options for creating a TPU. Without one of the four kinds of capacity, it is on demand.

    Attributes:
      slice: The shape of each slice.
      spot: Request spot capacity.
      reserved: Use any reservation of the project.
      reservation: Use the reservation with this name.
      flex_start: Wait for capacity that is granted for `max_run_duration` and not preempted.
      max_run_duration: Duration after which the cloud deletes the VMs, such as 2d.
      runtime_version: Software version or image family of the VMs; None selects that of the generation.
      network: Network of the VMs; None selects the default.
      subnetwork: Subnetwork of the VMs; None selects the default.
      internal_ips: Create VMs without external IP addresses.
      service_account: Service account of the VMs; None selects the project's default.
      valid_until: Duration after which a request that is still queued expires, such as 6h.
    """

    slice: Slice
    spot: bool = False
    reserved: bool = False
    reservation: str | None = None
    flex_start: bool = False
    max_run_duration: str | None = None
    runtime_version: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    internal_ips: bool = False
    service_account: str | None = None
    valid_until: str | None = None


class Backend(Protocol):
    """Creates, deletes and reaches the VMs of one TPU.

    Attributes:
      shell: Runs the commands.
      name: Name of the TPU.
      num_slices: Number of its slices.
    """

    shell: Shell
    name: str
    num_slices: int

    def create(self, request: Request) -> None:
        """Requests the TPU. It may be pending for a long time after this returns."""

    def state(self) -> State:
        """Returns the state, which is ready if all VMs of all slices are.

        Raises:
          TransientFailure: gcloud could not report the state, but a retry may succeed.
          CommandFailed: gcloud cannot report the state: missing permission or project, or an invalid argument.
        """

    def failure_reason(self) -> str:
        """Returns the cloud's reason for a failed request."""

    def delete(self) -> None:
        """Deletes everything that `create` created.

        Raises:
          TransientFailure: A call failed. The TPU may already be deleted or being deleted; `state` tells.
          CommandFailed: A call failed, and a retry would fail in the same way.
        """

    def ssh_words(self, command: str, slice_index: int, worker: int) -> list[str]:
        """Returns the call of gcloud that runs a shell command on one worker."""

    def ssh(self, command: str, slice_index: int | None = None, **options) -> subprocess.CompletedProcess:
        """Runs a shell command on all workers at once.

        Args:
          command: The command.
          slice_index: Only on the workers of this slice.
          **options: Options of `Shell.run`.

        Returns:
          The outputs of all workers, joined in any order.
        """

    def copy(self, file: Path) -> None:
        """Copies a file into the home directory of every worker."""

    def slice_environments(self) -> list[dict[str, str]]:
        """Returns the environment variables of each slice through which they find each other, if the cloud sets none.

        Raises:
          CommandFailed: They cannot be read from the VMs.
        """


def failure(summary: str, output: str) -> CommandFailed:
    """Returns the error for a failed call of gcloud, permanent or transient by its error output."""
    permanent = any(message in output for message in PERMANENT_ERRORS)
    return (CommandFailed if permanent else TransientFailure)(f"{summary}: {output.strip()}")


def is_not_found(output: str) -> bool:
    """Whether the error output of gcloud says that a resource does not exist."""
    return "NOT_FOUND" in output or "not found" in output
