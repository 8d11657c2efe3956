"""Nodes of GKE for TPU slices and GPUs: machine types, labels, and the commands that create and delete node pools.

Sources: cloud.google.com/kubernetes-engine/docs, pages "Plan TPUs in GKE" (machine types and topologies), "Deploy TPU
workloads" (labels, node pools, reservations), "Deploy TPU Multislices", "Spot VMs" (graceful termination) and "Run
GPUs"; AI-Hypercomputer/xpk, the dry runs of `cluster create` in its recipes and core/capacity.py, for the options of
node pools, flex-start, blocks of reservations, and the workload policies of tpu7x.

Requires Python 3.10 and only its standard library.
"""

import argparse
import dataclasses
import re

import protocol
import slices
from generations import CHIPS_PER_VM

ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
GPU_LABEL = "cloud.google.com/gke-accelerator"
SPOT_LABEL = "cloud.google.com/gke-spot"
FLEX_START_LABEL = "cloud.google.com/gke-flex-start"
RESERVATION_LABEL = "cloud.google.com/reservation-name"
RESERVATION_PROJECT_LABEL = "cloud.google.com/reservation-project"
MACHINE_TYPE_LABEL = "node.kubernetes.io/instance-type"
# The default scopes of a node can only read buckets.
SCOPES = "https://www.googleapis.com/auth/cloud-platform"
DISK_GB = 200  # the image, and logs: more than the default of 100
SPOT_SETTINGS = "launch/spot_nodes.yaml"
COORDINATOR_PORT = 8476  # JAX's default


@dataclasses.dataclass(frozen=True)
class Nodes:
    """The VMs of one slice, which are the nodes of one node pool.

    Attributes:
      shape: The shape of the slice.
      machine_type: The machine type of each VM.
      devices: Number of chips per VM.
      unique: Whether GKE offers the slice with this machine type only.
    """

    shape: slices.Slice
    machine_type: str
    devices: int
    unique: bool = True
    resource = "google.com/tpu"
    platforms = protocol.TPU_PLATFORMS

    @property
    def all_devices(self) -> int:
        """Number of JAX devices of the slice."""
        return self.shape.devices

    @property
    def count(self) -> int:
        """Number of VMs."""
        return self.shape.chips // self.devices

    @property
    def has_workload_policy(self) -> bool:
        """Whether a workload policy sets the topology of the node pool."""
        return self.count > 1 and self.shape.generation.gke_workload_policy

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the nodes."""
        labels = {ACCELERATOR_LABEL: self.shape.generation.gke_accelerator, TOPOLOGY_LABEL: self.shape.topology}
        if not self.unique:  # otherwise two pods of 4 chips could run on one VM of 8 chips
            labels[MACHINE_TYPE_LABEL] = self.machine_type
        return labels

    def __str__(self) -> str:
        return f"{self.machine_type} ({self.count} VM{'s' if self.count > 1 else ''})"


@dataclasses.dataclass(frozen=True)
class GpuNodes:
    """VMs with GPUs.

    Attributes:
      accelerator: Value of the label of the nodes, such as nvidia-h100-80gb.
      devices: Number of GPUs per VM.
      count: Number of VMs.
    """

    accelerator: str
    devices: int
    count: int
    resource = "nvidia.com/gpu"
    # GKE mounts the driver into the container, where the loader does not look for it.
    platforms = protocol.GPU_PLATFORMS | {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}

    @property
    def all_devices(self) -> int:
        """Number of GPUs of all VMs."""
        return self.devices * self.count

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the nodes."""
        return {GPU_LABEL: self.accelerator}


def find_gpus(text: str, count: int) -> GpuNodes:
    """Returns the VMs for `--gpus` and `--nodes`.

    Raises:
      LaunchError: The text is not an accelerator and a number.
    """
    accelerator, _, devices = text.partition(":")
    if not re.fullmatch(r"nvidia-[a-z0-9-]+", accelerator) or not re.fullmatch(r"[1-9][0-9]?", devices):
        raise slices.LaunchError(
            f"--gpus={text}: not an accelerator and a number per node. Write for example --gpus=nvidia-h100-80gb:8, as "
            f"in the label {GPU_LABEL} of the nodes."
        )
    return GpuNodes(accelerator, int(devices), count)


def find_nodes(shape: slices.Slice, machine_type: str | None = None) -> Nodes:
    """Returns the VMs of a slice.

    A 2x4 slice of v5e or v6e has two VMs of 4 chips, or one VM of 8 chips if the machine type says so.

    Args:
      shape: The shape of the slice.
      machine_type: The machine type, or None for the one with the fewest chips.

    Raises:
      LaunchError: GKE does not offer the slice with this machine type.
    """
    sizes = [
        chips
        for chips in shape.generation.vm_chips
        if chips == shape.chips or (chips == CHIPS_PER_VM and shape.chips > chips)
    ]
    names = [shape.generation.machine_type.format(chips=chips) for chips in sizes]
    choices = [Nodes(shape, name, chips, len(sizes) == 1) for name, chips in zip(names, sizes, strict=True)]
    for nodes in choices:
        if machine_type in (None, nodes.machine_type):
            return nodes
    raise slices.LaunchError(
        f"--machine_type={machine_type}: {shape.generation.name}:{shape.topology} does not have this machine type. "
        f"Available: {', '.join(map(str, choices))}"
    )


def selector(options: argparse.Namespace, nodes: Nodes | GpuNodes) -> dict[str, str]:
    """Returns the labels of the nodes on which the pods run.

    Args:
      options: The parsed command line.
      nodes: The VMs.
    """
    labels = dict(nodes.labels)
    if options.spot:
        labels[SPOT_LABEL] = "true"
    if options.flex_start:
        labels[FLEX_START_LABEL] = "true"
    if options.reservation:
        labels[RESERVATION_LABEL] = options.reservation.partition("/")[0]
    if options.reservation_project:
        labels[RESERVATION_PROJECT_LABEL] = options.reservation_project
    return labels


def commands(options: argparse.Namespace, nodes: Nodes) -> list[list[str]]:
    """Returns the calls of gcloud that create the node pools of a run, or delete them with `--delete`.

    They return at once, so that the pools are created in parallel; the calls for a workload policy wait.

    Args:
      options: The parsed command line.
      nodes: The VMs of one slice.
    """
    project = [f"--project={options.project}"] if options.project else []
    region = options.zone.rpartition("-")[0]
    pool = ["gcloud", "container", "node-pools"]
    place = [f"--cluster={options.cluster}", f"--location={options.location or region}", *project]
    policy = ["gcloud", "compute", "resource-policies"]
    names = [f"{options.name}-{index}" for index in range(options.num_slices)]
    if options.delete:
        # Waits, because the policy can be deleted only when no pool uses it.
        deletions = [[*pool, "delete", name, *place, "--quiet"] for name in names]
        policy_words = [*policy, "delete", options.name, f"--region={region}", *project, "--quiet"]
        return [*deletions, policy_words] if nodes.has_workload_policy else deletions
    settings = [f"--node-locations={options.zone}", f"--machine-type={nodes.machine_type}"]
    settings += [f"--num-nodes={0 if options.flex_start else nodes.count}"]
    created = []
    if nodes.has_workload_policy:
        words = ["--type=HIGH_THROUGHPUT", f"--accelerator-topology={nodes.shape.topology}"]
        created.append([*policy, "create", "workload-policy", options.name, f"--region={region}", *project, *words])
        settings.append(f"--placement-policy={options.name}")
    elif nodes.count > 1:
        settings += ["--placement-type=COMPACT", f"--tpu-topology={nodes.shape.topology}"]
    settings += _capacity_flags(options, nodes)
    settings += [f"--max-run-duration={options.max_run_duration}"] if options.max_run_duration else []
    settings += [f"--disk-size={DISK_GB}", "--enable-gvnic", f"--scopes={SCOPES}", "--async"]
    return [*created, *([*pool, "create", name, *place, *settings] for name in names)]


def _capacity_flags(options: argparse.Namespace, nodes: Nodes) -> list[str]:
    if options.spot:
        return ["--spot", *([f"--system-config-from-file={SPOT_SETTINGS}"] if options.grace else [])]
    if options.flex_start:
        flags = ["--flex-start", "--enable-autoscaling", "--location-policy=ANY", "--reservation-affinity=none"]
        return [*flags, "--no-enable-autorepair", f"--max-nodes={nodes.count}"]
    if options.reservation:
        owner = f"projects/{options.reservation_project}/reservations/" if options.reservation_project else ""
        return ["--reservation-affinity=specific", f"--reservation={owner}{options.reservation}"]
    return []
