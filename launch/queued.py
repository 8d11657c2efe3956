"""Queued resources of the Cloud TPU API: one request for all slices, which waits until there is capacity.

Google no longer develops this API, and it does not have TPU7x and later generations (docs.cloud.google.com/tpu/docs/
queued-resources): launch/gke.py has them. Sources: the same page; tpu/docs/multislice-introduction; tpu/docs/spot,
request-using-dws-flex-start and reservations; tpu/docs/failure-recovery; the help of `gcloud compute tpus
queued-resources`. Never run against the cloud.

Requires Python 3.10 and only its standard library.
"""

import dataclasses
import enum

import gcloud
from shell import Shell
from slices import Slice


class TpuState(enum.Enum):
    """What can be done with a TPU."""

    ABSENT = "absent"  # it can be created
    PENDING = "pending"  # it is queued or being created, or the platform repairs or replaces a part of it
    READY = "ready"  # all of its VMs run
    LOST = "lost"  # it was preempted or stopped; it must be deleted
    FAILED = "failed"  # the cloud refused the request, which must be deleted


@dataclasses.dataclass(frozen=True)
class State:
    """The state of a TPU with its description.

    Attributes:
      kind: The state.
      detail: The state as reported by the cloud, or a sentence.
      workers: Number of VMs if the TPU is ready, otherwise 0.
      is_gone: Whether a pending TPU has lost all of its slices.
    """

    kind: TpuState
    detail: str
    workers: int = 0
    is_gone: bool = False


@dataclasses.dataclass(frozen=True)
class Request:
    """Options for creating a TPU. Without one of the four kinds of capacity, it is on demand.

    Attributes:
      slice: The shape of each slice.
      spot: Request spot capacity.
      reserved: Use any reservation of the project.
      reservation: Use the reservation with this name.
      flex_start: Wait for capacity that is granted for `max_run_duration` and not preempted.
      max_run_duration: Duration after which the TPU is deleted, such as 2d.
      runtime_version: Software version of the VMs; None selects the generation's.
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


# Maps states of queued resources and nodes (tpu.googleapis.com/v2) to kinds of states. Unknown states are pending.
STATES = {
    **dict.fromkeys(("ACTIVE", "READY"), TpuState.READY),
    **dict.fromkeys(("CREATING", "ACCEPTED", "PROVISIONING", "WAITING_FOR_RESOURCES"), TpuState.PENDING),
    **dict.fromkeys(("RESTARTING", "REIMAGING", "STARTING", "REPAIRING"), TpuState.PENDING),
    **dict.fromkeys(
        ("SUSPENDING", "SUSPENDED", "PREEMPTED", "TERMINATED", "STOPPING", "STOPPED", "DELETING"), TpuState.LOST
    ),
    "not found": TpuState.LOST,  # a node of a resource that exists
    "FAILED": TpuState.FAILED,
}
STARTUP_SCRIPT = "launch/startup.sh"
JOB_METADATA = "t5x-like-job"  # launch/startup.sh reads it


class QueuedResource:
    """One queued resource, with one node per slice.

    Args:
      shell: Runs the commands.
      name: Name of the queued resource.
      zone: Its zone.
      project: Its project; None selects the project that gcloud is configured with.
      num_slices: Number of slices.

    Attributes:
      place: The zone and the project.
    """

    def __init__(self, shell: Shell, name: str, zone: str, project: str | None = None, num_slices: int = 1):
        self.shell, self.name, self.num_slices = shell, name, num_slices
        self.nodes = [name] if num_slices == 1 else [f"{name}-{index}" for index in range(num_slices)]
        self.place = (zone, project)
        self._zone, self._project = [f"--zone={zone}"], [f"--project={project}"] if project else []

    def _words(self, action: str, *words: str, group: str = "queued-resources", track: str = "") -> list[str]:
        tracked = ["gcloud", *([track] if track else [])]
        return [*tracked, "compute", "tpus", group, action, *words, *self._zone, *self._project]

    def create(self, request: Request, startup_script: str, job: str) -> None:
        """Requests the TPU, which then waits in the queue. It may be pending for a long time after this returns.

        Args:
          request: What to request.
          startup_script: Path of the script that each VM runs at each boot.
          job: The directory of the job that the script runs.

        Raises:
          TransientFailure: The call failed, but a retry may succeed. The request may exist; `state` tells.
          CommandFailed: The call failed, and a retry would fail in the same way.
        """
        generation = request.slice.generation
        # Only the alpha track has named reservations, flex-start, and some shapes other than the default.
        shaped = not request.slice.is_default_shape
        alpha = request.reservation or request.flex_start or (shaped and generation.alpha_shapes)
        if shaped:
            flags = [f"--type={generation.type_prefix}", f"--topology={request.slice.topology}"]
        else:
            flags = [f"--accelerator-type={request.slice.accelerator_type}"]
        flags.append(f"--runtime-version={request.runtime_version or generation.runtime_version}")
        if self.num_slices > 1:
            flags += [f"--node-count={self.num_slices}", f"--node-prefix={self.name}"]
        else:
            flags.append(f"--node-id={self.name}")
        flags += [f"--metadata={JOB_METADATA}={job}", f"--metadata-from-file=startup-script={startup_script}"]
        flags += self._capacity_flags(request, bool(alpha))
        flags += ["--internal-ips"] if request.internal_ips else []
        for flag, value in (
            ("network", request.network),
            ("subnetwork", request.subnetwork),
            ("service-account", request.service_account),
            ("valid-until-duration", request.valid_until),
        ):
            flags += [f"--{flag}={value}"] if value else []
        words = self._words("create", self.name, *flags, "--quiet", track="alpha" if alpha else "")
        gcloud.create(self.shell, self.name, words)

    @staticmethod
    def _capacity_flags(request: Request, alpha: bool) -> list[str]:
        if request.reservation:
            return ["--provisioning-model=reservation-bound", f"--reservation={request.reservation}"]
        if request.flex_start:
            return ["--provisioning-model=flex-start", f"--max-run-duration={request.max_run_duration}"]
        if request.spot:  # the alpha track replaces the model of --spot by the standard one (gcloud 528)
            return ["--provisioning-model=spot" if alpha else "--spot"]
        return ["--reserved"] if request.reserved else []

    def state(self) -> State:
        """Returns the state, which is ready if all VMs of all slices are.

        A resource that is active and has lost slices is pending: the platform recovers slices that are on demand,
        reserved or flex-start (tpu/docs/failure-recovery).

        Raises:
          TransientFailure: gcloud could not report the state, but a retry may succeed.
          CommandFailed: gcloud cannot report the state: missing permission or project, or an invalid argument.
        """
        resource = self._describe(self.name, "queued-resources")
        if resource is None:
            return State(TpuState.ABSENT, "absent")
        if self.shell.dry_run:
            return State(TpuState.READY, "ready")
        text = resource["state"]["state"]
        if STATES.get(text, TpuState.PENDING) != TpuState.READY:
            return State(STATES.get(text, TpuState.PENDING), text)
        nodes = {name: self._describe(name, "tpu-vm") for name in self.nodes}
        texts = {name: node["state"] if node else "not found" for name, node in nodes.items()}
        kinds = {
            STATES.get(text, TpuState.PENDING) if text != "not found" else TpuState.LOST for text in texts.values()
        }
        if kinds == {TpuState.READY}:
            workers = sum(len(node["networkEndpoints"]) for node in nodes.values())
            return State(TpuState.READY, "ready", workers)
        detail = ", ".join(f"{name} is {text}" for name, text in texts.items() if text != "READY")
        return State(TpuState.PENDING, detail, is_gone=kinds == {TpuState.LOST})

    def _describe(self, name: str, group: str) -> dict | None:
        return gcloud.describe(self.shell, name, self._words("describe", name, group=group))

    def failure_reason(self) -> str:
        """Returns the cloud's reason for a failed request."""
        data = (self._describe(self.name, "queued-resources") or {}).get("state", {}).get("failedData", {})
        return data.get("error", {}).get("message", "no reason given")

    def job_directory(self) -> str | None:
        """Returns the directory of the job that the VMs run, "" if they run none, or None if the TPU is absent."""
        resource = self._describe(self.name, "queued-resources")
        if resource is None:
            return None
        nodes = resource.get("tpu", {}).get("nodeSpec", [])
        found = [node.get("node", {}).get("metadata", {}).get(JOB_METADATA) for node in nodes]
        return next(filter(None, found), "")

    def delete_words(self) -> list[str]:
        """Returns the call that requests the deletion, without the project, which a worker knows by another way."""
        return ["gcloud", "compute", "tpus", "queued-resources", "delete", self.name] + [
            *("--force", "--async", "--quiet"),
            *self._zone,
        ]

    def delete(self) -> bool:
        """Requests the deletion of the TPU with its VMs, and returns whether it existed.

        Raises:
          TransientFailure: The call failed. The TPU may already be deleted or being deleted; `state` tells.
          CommandFailed: The call failed, and a retry would fail in the same way.
        """
        return gcloud.delete(self.shell, self.name, [*self.delete_words(), *self._project])
