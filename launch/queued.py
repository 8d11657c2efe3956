"""Queued resources of the Cloud TPU API: one request for all slices, which waits until there is capacity.

Google no longer develops this API, and it does not have TPU7x and later generations (docs.cloud.google.com/tpu/docs/
queued-resources). Sources: the same page; tpu/docs/multislice-introduction; tpu/docs/spot, request-using-dws-flex-start
and reservations; the help of `gcloud compute tpus queued-resources`. Never run against the cloud.

Requires Python 3.10 and only its standard library.
"""

import subprocess
from pathlib import Path

import gcloud
from cloud import SSH_FLAGS, Request, State, TpuState
from shell import Shell

# Maps states of queued resources and nodes (tpu.googleapis.com/v2) to kinds of states. Unknown states are pending.
STATES = {
    **dict.fromkeys(("ACTIVE", "READY"), TpuState.READY),
    **dict.fromkeys(("CREATING", "ACCEPTED", "PROVISIONING", "WAITING_FOR_RESOURCES"), TpuState.PENDING),
    **dict.fromkeys(("RESTARTING", "REIMAGING", "STARTING", "REPAIRING"), TpuState.PENDING),
    **dict.fromkeys(
        ("SUSPENDING", "SUSPENDED", "PREEMPTED", "TERMINATED", "STOPPING", "STOPPED", "DELETING"), TpuState.LOST
    ),
    "FAILED": TpuState.FAILED,
}


class QueuedResource:
    """One queued resource, with one node per slice. Implements `cloud.Backend`.

    Args:
      shell: Runs the commands.
      name: Name of the queued resource.
      zone: Its zone.
      project: Its project; None selects the project that gcloud is configured with.
      num_slices: Number of slices.
      tunnel: Connect to workers through Identity-Aware Proxy, for VMs without external IP addresses.
    """

    def __init__(
        self, shell: Shell, name: str, zone: str, project: str | None = None, num_slices: int = 1, tunnel: bool = False
    ):
        self.shell, self.name, self.num_slices = shell, name, num_slices
        self.nodes = [name] if num_slices == 1 else [f"{name}-{index}" for index in range(num_slices)]
        self._location = [f"--zone={zone}", *([f"--project={project}"] if project else [])]
        self._tunnel = ["--tunnel-through-iap"] if tunnel else []

    def _words(self, action: str, *words: str, group: str = "queued-resources", track: str = "") -> list[str]:
        return ["gcloud", *([track] if track else []), "compute", "tpus", group, action, *words, *self._location]

    def create(self, request: Request) -> None:
        """Requests the TPU, which then waits in the queue."""
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
        """See `cloud.Backend`."""
        resource = self._describe(self.name, "queued-resources")
        if resource is None:
            return State(TpuState.ABSENT, "absent")
        if self.shell.dry_run:
            return State(TpuState.READY, "ready")
        text = resource["state"]["state"]
        if STATES.get(text, TpuState.PENDING) != TpuState.READY:
            return State(STATES.get(text, TpuState.PENDING), text)
        workers = 0
        for name in self.nodes:
            node = self._describe(name, "tpu-vm")
            if node is None:  # the resource is still active, so this slice was preempted
                return State(TpuState.LOST, f"{name} not found")
            kind = STATES.get(node["state"], TpuState.PENDING)
            if kind != TpuState.READY:
                return State(kind, f"{name} is {node['state']}")
            workers += len(node["networkEndpoints"])
        return State(TpuState.READY, "ready", workers)

    def _describe(self, name: str, group: str) -> dict | None:
        return gcloud.describe(self.shell, name, self._words("describe", name, group=group))

    def failure_reason(self) -> str:
        """See `cloud.Backend`."""
        data = (self._describe(self.name, "queued-resources") or {}).get("state", {}).get("failedData", {})
        return data.get("error", {}).get("message", "no reason given")

    def delete(self) -> None:
        """See `cloud.Backend`."""
        if not gcloud.delete(self.shell, self.name, self._words("delete", self.name, "--force", "--quiet")):
            raise gcloud.failure(
                f"gcloud did not delete {self.name}", "not found. Check --zone, --project and --backend."
            )

    def remaining(self) -> list[str]:
        """See `cloud.Backend`."""
        resource = self._describe(self.name, "queued-resources")
        return [] if resource is None else [f"queued resource {self.name}"]

    def worker_counts(self) -> list[int]:
        """See `cloud.Backend`."""
        nodes = [self._describe(name, "tpu-vm") or {} for name in self.nodes]
        return [len(node.get("networkEndpoints", [])) for node in nodes]

    def ssh_words(self, command: str, slice_index: int, worker: int) -> list[str]:
        """See `cloud.Backend`."""
        return self._ssh_words(command, str(slice_index), str(worker))

    def _ssh_words(self, command: str, node: str, worker: str) -> list[str]:
        target = [f"--worker={worker}", f"--node={node}", *self._tunnel]
        return self._words("ssh", self.name, *target, *SSH_FLAGS, "--quiet", f"--command={command}")

    def ssh(self, command: str, slice_index: int | None = None, **options) -> subprocess.CompletedProcess:
        """See `cloud.Backend`."""
        node = "all" if slice_index is None else str(slice_index)
        return self.shell.run(*self._ssh_words(command, node, "all"), **options)

    def copy_words(self, file: Path, slice_index: int, worker: int) -> list[str]:
        """See `cloud.Backend`."""
        return self._copy_words(file, str(slice_index), str(worker))

    def _copy_words(self, file: Path, node: str, worker: str) -> list[str]:
        target = [f"--worker={worker}", f"--node={node}", *self._tunnel]
        return self._words("scp", str(file), f"{self.name}:{file.name}", *target, "--quiet")

    def copy(self, file: Path, **options) -> subprocess.CompletedProcess:
        """See `cloud.Backend`."""
        return self.shell.run(*self._copy_words(file, "all", "all"), **options)

    def slice_environments(self) -> list[dict[str, str]]:
        """See `cloud.Backend`. The Cloud TPU API sets the variables in the metadata of the VMs."""
        return [{} for _ in self.nodes]
