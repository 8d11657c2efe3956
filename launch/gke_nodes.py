"""Nodes of GKE for TPU slices: machine types, labels, and the node pools that `gke.py` creates and deletes.

Sources: cloud.google.com/kubernetes-engine/docs, pages "Plan TPUs in GKE" (machine types and topologies), "Deploy TPU
workloads" (labels, node pools, reservations) and "Deploy TPU Multislices"; AI-Hypercomputer/xpk, the dry runs of
`cluster create` in its recipes, for the options of node pools and the workload policies of tpu7x.

Requires Python 3.10 and only its standard library.
"""

import argparse
import dataclasses

import slices
from generations import CHIPS_PER_VM

ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
SPOT_LABEL = "cloud.google.com/gke-spot"
RESERVATION_LABEL = "cloud.google.com/reservation-name"
RESERVATION_PROJECT_LABEL = "cloud.google.com/reservation-project"
MACHINE_TYPE_LABEL = "node.kubernetes.io/instance-type"
# The default scopes of a node can only read buckets.
SCOPES = "https://www.googleapis.com/auth/cloud-platform"


@dataclasses.dataclass(frozen=True)
class Nodes:
    """The VMs of one slice, which are the nodes of one node pool.

    Attributes:
      shape: The shape of the slice.
      machine_type: The machine type of each VM.
      chips_per_vm: Number of chips per VM.
      unique: Whether GKE offers the slice with this machine type only.
    """

    shape: slices.Slice
    machine_type: str
    chips_per_vm: int
    unique: bool = True

    @property
    def count(self) -> int:
        """Number of VMs."""
        return self.shape.chips // self.chips_per_vm

    @property
    def has_workload_policy(self) -> bool:
        """Whether a workload policy sets the topology of the node pool."""
        return self.count > 1 and self.shape.generation.gke_workload_policy

    def __str__(self) -> str:
        return f"{self.machine_type} ({self.count} VM{'s' if self.count > 1 else ''})"


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


def selector(options: argparse.Namespace, nodes: Nodes) -> dict[str, str]:
    """Returns the labels of the nodes on which the pods run.

    Args:
      options: The parsed command line.
      nodes: The VMs of one slice.
    """
    labels = {ACCELERATOR_LABEL: nodes.shape.generation.gke_accelerator, TOPOLOGY_LABEL: nodes.shape.topology}
    if not nodes.unique:  # otherwise two pods of 4 chips could run on one VM of 8 chips
        labels[MACHINE_TYPE_LABEL] = nodes.machine_type
    if options.spot:
        labels[SPOT_LABEL] = "true"
    if options.reservation:
        labels[RESERVATION_LABEL] = options.reservation
    if options.reservation_project:
        labels[RESERVATION_PROJECT_LABEL] = options.reservation_project
    return labels


@dataclasses.dataclass(frozen=True)
class Resource:
    """A resource of the cloud that belongs to a run: a node pool or a workload policy.

    Attributes:
      title: The kind and the name, for messages.
      group: The arguments of gcloud that select the kind.
      kind: An argument after `create`, if the kind needs one.
      name: The name.
      place: The arguments that say where the resource is.
      settings: The other arguments of `create`.
    """

    title: str
    group: tuple[str, ...]
    name: str
    place: tuple[str, ...]
    kind: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    def describe(self) -> list[str]:
        """Returns the command that succeeds if the resource exists."""
        return ["gcloud", *self.group, "describe", self.name, *self.place, "--format=value(name)"]

    def create(self) -> list[str]:
        """Returns the command that creates the resource."""
        return ["gcloud", *self.group, "create", *self.kind, self.name, *self.place, *self.settings]

    def delete(self) -> list[str]:
        """Returns the command that deletes the resource without asking."""
        return ["gcloud", *self.group, "delete", self.name, *self.place, "--quiet"]


def resources(options: argparse.Namespace, nodes: Nodes) -> list[Resource]:
    """Returns the resources of a run in the order in which they are created: node pools use the workload policy.

    Args:
      options: The parsed command line.
      nodes: The VMs of one slice.
    """
    project = (f"--project={options.project}",) if options.project else ()
    region = options.zone.rpartition("-")[0]
    settings = [
        f"--node-locations={options.zone}",
        f"--machine-type={nodes.machine_type}",
        f"--num-nodes={nodes.count}",
    ]
    created = []
    if nodes.has_workload_policy:
        policy = Resource(
            title=f"workload policy {options.name}",
            group=("compute", "resource-policies"),
            kind=("workload-policy",),
            name=options.name,
            place=(f"--region={region}", *project),
            settings=("--type=HIGH_THROUGHPUT", f"--accelerator-topology={nodes.shape.topology}"),
        )
        created.append(policy)
        settings.append(f"--placement-policy={policy.name}")
    elif nodes.count > 1:
        settings += ["--placement-type=COMPACT", f"--tpu-topology={nodes.shape.topology}"]
    if options.spot:
        settings.append("--spot")
    if options.reservation:
        owner = f"projects/{options.reservation_project}/reservations/" if options.reservation_project else ""
        settings += ["--reservation-affinity=specific", f"--reservation={owner}{options.reservation}"]
    settings += ["--enable-gvnic", f"--scopes={SCOPES}"]
    place = (f"--cluster={options.cluster}", f"--location={options.location or region}", *project)
    for index in range(options.num_slices):
        name = f"{options.name}-{index}"
        group = ("container", "node-pools")
        created.append(Resource(f"node pool {name}", group, name, place, settings=tuple(settings)))
    return created
