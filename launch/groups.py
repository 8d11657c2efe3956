"""Managed instance groups of Compute Engine: one group per slice, created from one instance template.

The VMs of a slice with several VMs share a workload policy, which names the topology. The group is in bulk mode: it
waits until there is capacity for all VMs and creates them together. It does not repair single VMs
(`--default-action-on-vm-failure=do-nothing`), because launch/tpu.py recreates the whole TPU. Compute Engine rejects
resize requests for TPUs, so a group gets its size when it is created.

Sources, below docs.cloud.google.com: compute/docs/tpus/create-tpu-mig-multi-host-slice and tpus-and-migs;
tpu/docs/spot-compute; compute/docs/instances/provisioning-models; the help of `gcloud compute resource-policies create
workload-policy`, `instance-templates create` and `instance-groups managed`. Never run against the cloud. Google does
not document several slices for groups: `slice_environments` sets what the Cloud TPU API and GKE set for JAX
(jax/_src/clusters/cloud_tpu_cluster.py).

Requires Python 3.10 and only its standard library.
"""

import subprocess
from pathlib import Path

import gcloud
from cloud import SSH_FLAGS, Request, State, TpuState
from generations import CHIPS_PER_VM, IMAGE_PROJECT
from shell import CommandFailed, Shell

SUFFIX = "t5x-like"  # of templates and policies, which `create` replaces, so that others with the same name are kept
BOOT_DISK_SIZE = "200GB"  # the images have 10 GB, which an environment with TensorFlow and JAX does not fit in
VM_IN_DRY_RUN = "VM"  # stands for each VM that list-instances prints
# Maps states of VMs (compute.googleapis.com/v1) to kinds of states. A VM that does not exist yet has no state.
VM_STATES = {
    "RUNNING": TpuState.READY,
    **dict.fromkeys(("", "PENDING", "PROVISIONING", "STAGING", "REPAIRING"), TpuState.PENDING),
    **dict.fromkeys(
        ("STOPPING", "STOPPED", "SUSPENDING", "SUSPENDED", "TERMINATED", "DEPROVISIONING", "DELETING"), TpuState.LOST
    ),
}
# Error codes of permanent errors. The group itself retries after others.
PERMANENT_CODES = ("QUOTA_EXCEEDED", "PERMISSIONS_ERROR", "INVALID_", "CONDITION_NOT_MET")
# What the groups of a TPU share: collections of gcloud, in the order in which they can be deleted, and their titles.
SHARED_PARTS = {"instance-templates": "instance template", "resource-policies": "workload policy"}
ENDPOINTS = (
    "curl -sf -H Metadata-Flavor:Google "
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/worker-network-endpoints"
)


class InstanceGroups:
    """The instance groups of one TPU with their template and policy. Implements `cloud.Backend`.

    Args:
      shell: Runs the commands.
      name: Name of the group; several groups append the index of their slice. The template and the policy append
        `SUFFIX`.
      zone: Zone of the groups.
      project: Project of the groups. Required, because groups refer to templates and policies by URL.
      num_slices: Number of slices.
      tunnel: Connect to VMs through Identity-Aware Proxy, for VMs without external IP addresses.
    """

    def __init__(self, shell: Shell, name: str, zone: str, project: str, num_slices: int = 1, tunnel: bool = False):
        self.shell, self.name, self.num_slices = shell, name, num_slices
        self.groups = [name] if num_slices == 1 else [f"{name}-{index}" for index in range(num_slices)]
        self._region, self._project = zone.rpartition("-")[0], project
        self._in_zone = [f"--zone={zone}", f"--project={project}"]
        self._in_region = [f"--region={self._region}", f"--project={project}"]
        self._tunnel = ["--tunnel-through-iap"] if tunnel else []
        self._shared = f"{name}-{SUFFIX}"
        self._vms: dict[str, list[str]] = {}

    def _group_words(self, action: str, *words: str) -> list[str]:
        return ["gcloud", "compute", "instance-groups", "managed", action, *words, *self._in_zone]

    def _url(self, collection: str, name: str) -> str:
        return f"projects/{self._project}/regions/{self._region}/{collection}/{name}"

    def create(self, request: Request) -> None:
        """Creates the policy, the template and the groups."""
        self.shell.log("deleting the template and the policy of an earlier request, if they exist")
        self._delete_shared_parts()
        # A 2x4 slice of v6e is two VMs, although there are VMs of 8 chips, because those are rarely available.
        chips = min(request.slice.chips, CHIPS_PER_VM)
        num_vms = request.slice.chips // chips
        group = [f"--template={self._url('instanceTemplates', self._shared)}", f"--size={num_vms}"]
        group += ["--target-size-policy-mode=bulk", "--default-action-on-vm-failure=do-nothing"]
        if num_vms > 1:
            policy = ["--type=HIGH_THROUGHPUT", f"--accelerator-topology={request.slice.topology}", *self._in_region]
            create = ["gcloud", "compute", "resource-policies", "create", "workload-policy"]
            gcloud.create(self.shell, f"workload policy {self._shared}", [*create, self._shared, *policy, "--quiet"])
            group.append(f"--workload-policy={self._url('resourcePolicies', self._shared)}")
        template = ["gcloud", "compute", "instance-templates", "create", self._shared]
        machine_type = request.slice.generation.machine_type.format(chips=chips)
        template += [f"--machine-type={machine_type}", *self._template_flags(request), "--quiet"]
        gcloud.create(self.shell, f"instance template {self._shared}", template)
        calls = [self._group_words("create", name, *group, "--quiet") for name in self.groups]
        gcloud.create(self.shell, f"instance group {', '.join(self.groups)}", *calls)

    def _template_flags(self, request: Request) -> list[str]:
        generation = request.slice.generation
        flags = [f"--instance-template-region={self._region}", f"--project={self._project}"]
        flags += ["--maintenance-policy=TERMINATE", f"--boot-disk-size={BOOT_DISK_SIZE}"]
        flags += [f"--image-family={request.runtime_version or generation.image_family}"]
        flags += [f"--image-project={IMAGE_PROJECT}"]
        flags += [f"--boot-disk-type={generation.boot_disk_type}"] if generation.boot_disk_type else []
        flags += self._capacity_flags(request)
        flags += [f"--network={request.network}"] if request.network else []
        if request.subnetwork:  # a name alone would not say in which region
            name = request.subnetwork
            flags.append(f"--subnet={name if '/' in name else self._url('subnetworks', name)}")
        flags += ["--no-address"] if request.internal_ips else []
        flags += [f"--service-account={request.service_account}"] if request.service_account else []
        return [*flags, "--scopes=cloud-platform"]  # without it, the VMs cannot write to the bucket

    @staticmethod
    def _capacity_flags(request: Request) -> list[str]:
        if request.reservation:
            model = ["--provisioning-model=RESERVATION_BOUND", "--instance-termination-action=DELETE"]
            return [*model, "--reservation-affinity=specific", f"--reservation={request.reservation}"]
        if request.flex_start:
            duration = [f"--max-run-duration={request.max_run_duration}", "--instance-termination-action=DELETE"]
            return ["--provisioning-model=FLEX_START", *duration, "--reservation-affinity=none"]
        if request.spot:
            return ["--provisioning-model=SPOT", "--instance-termination-action=STOP"]
        return []

    def state(self) -> State:
        """See `cloud.Backend`. A refused request is a failure; a lack of capacity is not, because groups wait."""
        states = [self._group_state(name) for name in self.groups]
        kinds = {state.kind for state in states}
        if kinds == {TpuState.ABSENT}:
            return states[0]
        if TpuState.ABSENT in kinds:
            return State(TpuState.LOST, next(state.detail for state in states if state.kind == TpuState.ABSENT))
        for kind in (TpuState.FAILED, TpuState.LOST, TpuState.PENDING):
            if kind in kinds:
                return next(state for state in states if state.kind == kind)
        return State(TpuState.READY, "ready", sum(state.workers for state in states))

    def _group_state(self, name: str) -> State:
        group = self._describe(name, "describe")
        instances = self._describe(name, "list-instances")
        if self.shell.dry_run:
            return State(TpuState.READY, "ready")
        if group is None or instances is None:
            return State(TpuState.ABSENT, "absent" if self.num_slices == 1 else f"{name} not found")
        self._vms[name] = sorted(vm["instance"].rpartition("/")[2] for vm in instances if vm.get("instance"))
        for code, text in errors(instances):
            if code.startswith(PERMANENT_CODES):
                return State(TpuState.FAILED, f"{code}: {text}")
        if not instances and group["status"].get("isStable"):
            return State(
                TpuState.LOST, f"{name} has no VMs left"
            )  # deleted by the cloud, for example at the end of flex-start
        for vm in instances:
            text = "DELETING" if vm.get("currentAction") == "DELETING" else vm.get("instanceStatus", "")
            if VM_STATES.get(text, TpuState.PENDING) == TpuState.LOST:
                return State(TpuState.LOST, f"{vm['instance'].rpartition('/')[2]} is {text}")
        running = sum(vm.get("instanceStatus") == "RUNNING" for vm in instances)
        if running < max(group["targetSize"], 1):
            reasons = sorted({code for code, _ in errors(instances)})
            detail = f"{name}: {running} of {group['targetSize']} VMs are running"
            return State(TpuState.PENDING, detail + (f" ({', '.join(reasons)})" if reasons else ""))
        return State(TpuState.READY, "ready", running)

    def _describe(self, name: str, action: str) -> dict | list | None:
        return gcloud.describe(self.shell, name, self._group_words(action, name))

    def failure_reason(self) -> str:
        """See `cloud.Backend`."""
        return next(
            (state.detail for state in map(self._group_state, self.groups) if state.kind == TpuState.FAILED), "unknown"
        )

    def delete(self) -> None:
        """See `cloud.Backend`. The template and the policy can be deleted only when no group uses them."""
        deleted = [
            gcloud.delete(self.shell, name, self._group_words("delete", name, "--quiet")) for name in self.groups
        ]
        if not any([*deleted, *self._delete_shared_parts()]):
            raise gcloud.failure(
                f"gcloud did not delete {self.name}", "not found. Check --zone, --project and --backend."
            )

    def _delete_shared_parts(self) -> list[bool]:
        """Deletes the template and the policy, and returns which of them existed."""
        return [
            gcloud.delete(self.shell, f"{self._shared} of {collection}", self._shared_words(collection, "delete"))
            for collection in SHARED_PARTS
        ]

    def _shared_words(self, collection: str, action: str) -> list[str]:
        return ["gcloud", "compute", collection, action, self._shared, *self._in_region, "--quiet"]

    def remaining(self) -> list[str]:
        """See `cloud.Backend`."""
        groups = [f"instance group {name}" for name in self.groups if self._describe(name, "describe") is not None]
        shared = [
            f"{title} {self._shared}"
            for collection, title in SHARED_PARTS.items()
            if gcloud.describe(self.shell, self._shared, self._shared_words(collection, "describe")) is not None
        ]
        return groups + shared

    def worker_counts(self) -> list[int]:
        """See `cloud.Backend`."""
        return [len(self._names(index)) for index in range(self.num_slices)]

    def ssh_words(self, command: str, slice_index: int, worker: int) -> list[str]:
        """See `cloud.Backend`. Workers are the VMs of a group in the order of their names."""
        return self._ssh_words(self._worker_name(slice_index, worker), command)

    def _worker_name(self, slice_index: int, worker: int) -> str:
        names = self._names(slice_index)
        if self.shell.dry_run:
            worker = 0
        if worker >= len(names):
            known = f"Give 0 to {len(names) - 1}" if names else "Repeat the command when its VMs exist"
            raise CommandFailed(f"--worker={worker}: {self.groups[slice_index]} has {len(names)} VMs. {known}.")
        return names[worker]

    def _ssh_words(self, vm: str, command: str) -> list[str]:
        words = ["gcloud", "compute", "ssh", vm, *self._in_zone, *self._tunnel, *SSH_FLAGS, "--quiet"]
        return [*words, f"--command={command}"]

    def _names(self, slice_index: int) -> list[str]:
        """Returns the names of the VMs of a slice, as `state` has read them."""
        if self.shell.dry_run:
            return [VM_IN_DRY_RUN]
        name = self.groups[slice_index]
        if name not in self._vms:
            self._group_state(name)
        return self._vms.get(name, [])

    def _all_names(self, slice_index: int | None = None) -> list[str]:
        indices = range(self.num_slices) if slice_index is None else [slice_index]
        return [vm for index in indices for vm in self._names(index)]

    def ssh(self, command: str, slice_index: int | None = None, **options) -> subprocess.CompletedProcess:
        """See `cloud.Backend`."""
        names = self._all_names(slice_index)
        return self.shell.run_all([self._ssh_words(vm, command) for vm in names], **options)

    def copy_words(self, file: Path, slice_index: int, worker: int) -> list[str]:
        """See `cloud.Backend`."""
        return self._copy_words(file, self._worker_name(slice_index, worker))

    def _copy_words(self, file: Path, vm: str) -> list[str]:
        return ["gcloud", "compute", "scp", str(file), f"{vm}:{file.name}", *self._in_zone, *self._tunnel, "--quiet"]

    def copy(self, file: Path, **options) -> subprocess.CompletedProcess:
        """See `cloud.Backend`."""
        return self.shell.run_all([self._copy_words(file, vm) for vm in self._all_names()], **options)

    def slice_environments(self) -> list[dict[str, str]]:
        """See `cloud.Backend`. JAX's coordinator is the first worker that the metadata of slice 0 lists."""
        if self.num_slices == 1:
            return [{}]
        endpoints = self.shell.run(*self.ssh_words(ENDPOINTS, 0, 0), capture=True).stdout.strip()
        coordinator = endpoints.partition(",")[0].rpartition(":")[2] or VM_IN_DRY_RUN
        return [
            {
                "MEGASCALE_COORDINATOR_ADDRESS": coordinator,
                "MEGASCALE_NUM_SLICES": str(self.num_slices),
                "MEGASCALE_SLICE_ID": str(index),
            }
            for index in range(self.num_slices)
        ]


def errors(instances: list[dict]) -> list[tuple[str, str]]:
    """Returns codes and messages of the errors of the last attempts to create VMs."""
    attempts = [vm.get("lastAttempt", {}).get("errors", {}).get("errors", []) for vm in instances]
    return [(error.get("code", ""), error.get("message", "")) for found in attempts for error in found]
