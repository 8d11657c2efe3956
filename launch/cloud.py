"""What launch/tpu.py asks of a cloud: a request for a TPU, its states, and the interface of a backend.

Two backends implement the interface: queued resources of the Cloud TPU API (launch/queued.py), and managed instance
groups of Compute Engine (launch/groups.py). launch/workers.py runs jobs on the VMs of either.

Requires Python 3.10 and only its standard library.
"""

import dataclasses
import enum
import subprocess
from pathlib import Path
from typing import Protocol

from shell import Shell
from slices import Slice

# A preempted VM does not close its connections. ssh therefore ends a silent connection after 90 s and waits at most
# 10 s for a new one.
SSH_FLAGS = [
    f"--ssh-flag=-o{option}" for option in ("ConnectTimeout=10", "ServerAliveInterval=30", "ServerAliveCountMax=3")
]


class TpuState(enum.Enum):
    """What can be done with a TPU."""

    ABSENT = "absent"  # it can be created
    PENDING = "pending"  # it is queued, being created or being repaired
    READY = "ready"  # all of its VMs run
    LOST = "lost"  # it was preempted or stopped, or some of its VMs are missing; it must be deleted
    FAILED = "failed"  # the cloud refused the request, which must be deleted


@dataclasses.dataclass(frozen=True)
class State:
    """The state of a TPU with its description.

    Attributes:
      kind: The state.
      detail: The state as reported by the cloud, or a sentence.
      workers: Number of VMs if the TPU is ready, otherwise 0.
    """

    kind: TpuState
    detail: str
    workers: int = 0


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
        """Requests the TPU. It may be pending for a long time after this returns.

        Raises:
          TransientFailure: A call failed, but a retry may succeed. Parts of the TPU may exist; `state` tells.
          CommandFailed: A call failed, and a retry would fail in the same way.
        """

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

    def remaining(self) -> list[str]:
        """Returns what `create` created and still exists, such as `queued resource first`. See `state` for errors."""

    def worker_counts(self) -> list[int]:
        """Returns the number of workers of each slice of a TPU that is ready. See `state` for errors."""

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

    def copy_words(self, file: Path, slice_index: int, worker: int) -> list[str]:
        """Returns the call of gcloud that copies a file into the home directory of one worker."""

    def copy(self, file: Path, **options) -> subprocess.CompletedProcess:
        """Copies a file into the home directory of every worker.

        Args:
          file: The file.
          **options: Options of `Shell.run`.
        """

    def slice_environments(self) -> list[dict[str, str]]:
        """Returns the environment variables of each slice through which they find each other, if the cloud sets none.

        Raises:
          CommandFailed: They cannot be read from the VMs.
        """
