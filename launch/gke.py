#!/usr/bin/env python3
"""Trains on TPU slices or GPUs of a GKE cluster, as a JobSet with one job per slice and one pod per VM.

    launch/gke.py nodes NAME --cluster=… --zone=us-west4-a --topology=v5e:4x4 --spot    print gcloud's commands
    launch/gke.py nodes … | bash -e                                                     create the node pools
    launch/gke.py apply NAME --image=IMAGE --topology=v5e:4x4 --spot -- t5x_like train --gin.MODEL_DIR=gs://…
    launch/gke.py apply NAME --image=IMAGE --gpus=nvidia-h100-80gb:8 --nodes=2 -- t5x_like train …
    launch/gke.py print …        print the manifest only
    launch/gke.py status NAME
    launch/gke.py logs NAME      follow the first worker's output
    launch/gke.py delete NAME
    launch/gke.py nodes … --delete | bash -e                                            delete the node pools

`nodes` prints a command per slice (--num_slices), and for tpu7x another one for a workload policy. The nodes incur
costs until they are deleted, whether or not a run uses them.

`apply` needs JobSet 0.6.0 or later in the cluster. Each pod runs the command under launch/supervise.py, which restarts
it after a crash. The cluster restarts all pods after a preemption, and fails the job when a pod has used up its
restarts or reports a user error. --dry_run prints the commands of kubectl.

Requires kubectl, gcloud for the nodes, and Python 3.10 or later, without other packages. launch/docker.sh builds the
image. The guide is docs/gke.md.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys

import cost
import gke_manifest
import gke_nodes
import jobs
import protocol
import slices
from check_command import check_command

# Kubernetes allows 63 characters for the name of a pod. JobSet appends the job, the index and a suffix.
MAX_NAME_LENGTH = 40
MAX_NODE_POOL_LENGTH = 40  # GKE's limit, which includes the index of the slice
MAX_KUBERNETES_LENGTH = 63  # of a namespace and of a queue
MAX_RECREATIONS = 1000
MAX_SPOT_GRACE_SECONDS = 105  # of the 120 s that GKE allows; the rest is for system pods
MANIFEST_ACTIONS = ("apply", "print")
JOBSET_RELEASES = "https://github.com/kubernetes-sigs/jobset/releases"


def check(options: argparse.Namespace, command: list[str]) -> gke_nodes.Nodes | gke_nodes.GpuNodes | None:
    """Checks the request before kubectl is called.

    Args:
      options: The parsed command line.
      command: The command after `--`.

    Returns:
      The VMs of each slice, or None if the action does not need them.

    Raises:
      LaunchError: A name, the image, the shape, the place or the command is invalid.
    """
    slices.check_name("job name", options.name, MAX_NAME_LENGTH)
    if options.namespace:
        slices.check_name("--namespace", options.namespace, MAX_KUBERNETES_LENGTH)
    if options.action not in ("nodes", *MANIFEST_ACTIONS):
        return None
    minimums = {"num_slices": 1, "nodes": 1, "max_restarts": 0, "max_recreations": 0, "grace": 1}
    slices.check_minimums(options, {name: low for name, low in minimums.items() if getattr(options, name) is not None})
    cost.check(options)
    _check_capacity(options)
    nodes = _find_gpus(options) if options.gpus else _find_nodes(options)
    if options.action == "nodes":
        _check_place(options, nodes.shape)
    else:
        _check_run(options, command)
    return nodes


def _find_gpus(options: argparse.Namespace) -> gke_nodes.GpuNodes:
    """Returns the VMs of a run on GPUs."""
    for name in ("topology", "type", "machine_type"):
        if getattr(options, name):
            raise slices.LaunchError(f"--gpus and --{name} exclude each other. Remove one of them.")
    if options.num_slices > 1:
        raise slices.LaunchError("--num_slices is for TPUs. Give --nodes, the number of VMs with GPUs.")
    if options.action == "nodes":
        raise slices.LaunchError("nodes prints commands for TPUs. docs/gke.md shows the one for a node pool of GPUs.")
    return gke_nodes.find_gpus(options.gpus, options.nodes or 1)


def _find_nodes(options: argparse.Namespace) -> gke_nodes.Nodes:
    """Returns the VMs of each TPU slice."""
    if options.nodes:
        raise slices.LaunchError(f"--nodes={options.nodes} is for --gpus: the topology determines the VMs of a slice.")
    shape = slices.parse_slice(options.type, options.topology)
    _check_order(options, shape)
    nodes = gke_nodes.find_nodes(shape, options.machine_type)
    if options.num_slices > 1 and nodes.count == 1:
        raise slices.LaunchError(
            f"--num_slices={options.num_slices}: GKE connects only slices of several VMs, and "
            f"{shape.generation.name}:{shape.topology} has one VM ({nodes.machine_type}). Choose a larger topology"
            f"{' or --machine_type=' + gke_nodes.find_nodes(shape).machine_type if not nodes.unique else ''}."
        )
    return nodes


def _check_order(options: argparse.Namespace, shape: slices.Slice) -> None:
    """Checks the order of the sides, which GKE's labels of nodes have in ascending order."""
    ascending = slices.Slice(shape.generation, tuple(sorted(shape.sides)))
    if shape.sides not in shape.generation.shapes and shape != ascending:
        raise slices.LaunchError(
            f"--topology={options.topology}: GKE nodes are not labeled {shape.topology}, because GKE lists shorter "
            f"sides first. Write --topology={shape.generation.name}:{ascending.topology}"
        )


def _check_capacity(options: argparse.Namespace) -> None:
    """Checks the kind of capacity."""
    given = [f"--{name}" for name in ("spot", "flex_start", "reservation") if getattr(options, name)]
    if len(given) > 1:
        raise slices.LaunchError(f"{' and '.join(given)} exclude each other. Give one of them.")
    if options.spot and (options.grace or 0) > MAX_SPOT_GRACE_SECONDS:
        raise slices.LaunchError(
            f"--grace={options.grace}: GKE gives pods on spot nodes {gke_manifest.SPOT_GRACE_SECONDS} s, and at most "
            f"{MAX_SPOT_GRACE_SECONDS} s from version 1.35.0-gke.1171000 on. Give --grace={MAX_SPOT_GRACE_SECONDS} to "
            "`nodes` and `apply`, or omit it."
        )
    name, block = r"[a-z][a-z0-9-]*[a-z0-9]", r"(/reservationBlocks/[a-z0-9-]+(/reservationSubBlocks/[a-z0-9-]+)?)?"
    for option, pattern in (("reservation", name + block), ("reservation_project", name)):
        value = getattr(options, option)
        if value and not re.fullmatch(pattern, value):
            raise slices.LaunchError(
                f"--{option}={value} is not a name. Give the name, if needed with a block, such as "
                "pool/reservationBlocks/block-1; --reservation_project is the project of a reservation that another "
                "project shares."
            )
    if options.reservation_project and not options.reservation:
        raise slices.LaunchError(
            f"--reservation_project={options.reservation_project} without --reservation. Add --reservation=NAME."
        )


def _check_place(options: argparse.Namespace, shape: slices.Slice) -> None:
    """Checks where node pools are created."""
    last_pool = f"{options.name}-{options.num_slices - 1}"
    slices.check_name("node pool", last_pool, MAX_NODE_POOL_LENGTH)
    slices.check_project(options.project)
    if not options.cluster:
        raise slices.LaunchError(
            "--cluster is missing. Give the name of the cluster, as in `gcloud container clusters list`"
        )
    slices.check_name("--cluster", options.cluster, MAX_NODE_POOL_LENGTH)
    slices.check_zone(options.zone, shape.generation, options.unlisted_zone)
    region = options.zone.rpartition("-")[0]
    if options.location not in (None, region, options.zone):
        raise slices.LaunchError(
            f"--location={options.location}: --zone={options.zone} is not part of it. Give the location of the "
            f"cluster, which is {region} or {options.zone}."
        )


def _check_run(options: argparse.Namespace, command: list[str]) -> None:
    """Checks the pods and their command."""
    jobs.check_command(command, options.local_model_dir)
    if not re.fullmatch(r"[a-z0-9][a-z0-9._/:-]*[a-z0-9]([:@][A-Za-z0-9._:-]+)?", options.image or ""):
        raise slices.LaunchError(
            f"--image={options.image} is not an image name. Give the image that launch/docker.sh pushed, such as "
            "registry.example.com/images/t5x_like:first"
        )
    if options.queue:
        slices.check_name("--queue", options.queue, MAX_KUBERNETES_LENGTH)
    if options.service_account:
        slices.check_name("--service_account", options.service_account, MAX_KUBERNETES_LENGTH)
    if options.host_network and options.service_account:
        raise slices.LaunchError(
            f"--service_account={options.service_account} has no effect with --host_network, because Workload Identity "
            "does not work there: pods get the credentials of the node. Remove one of them."
        )
    jobs.check_slices(command, options.num_slices)
    jobs.environment(options.env)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    actions = ("nodes", "apply", "print", "status", "logs", "delete")
    parser.add_argument("action", choices=actions, help="what to do, see above")
    parser.add_argument("name", metavar="NAME", help="name of the JobSet and prefix of its node pools")
    parser.add_argument("--dry_run", action="store_true", help="print the commands instead of running them")
    parser.add_argument("--namespace", help="Kubernetes namespace (default: the namespace of kubectl's context)")
    shape = parser.add_argument_group("machines, for nodes, apply and print")
    shape.add_argument("--topology", help="the slice as in `t5x_like plan`, such as v5e:4x4")
    shape.add_argument("--type", help="alternatively the slice as in the TPU API, such as v5litepod-16")
    shape.add_argument("--num_slices", type=int, default=1, help="number of slices (default: %(default)s)")
    shape.add_argument(
        "--machine_type",
        help="machine type of the nodes. Needed only for 2x4 slices of v5e and v6e on one VM: ct5lp-hightpu-8t, "
        "ct6e-standard-8t (default: VMs of 4 chips)",
    )
    shape.add_argument("--gpus", metavar="ACCELERATOR:N", help="GPUs per node instead of TPUs, nvidia-h100-80gb:8")
    shape.add_argument("--nodes", type=int, help="with --gpus: number of nodes (default: 1)")
    shape.add_argument("--spot", action="store_true", help="use spot nodes")
    shape.add_argument("--flex_start", action="store_true", help="use flex-start nodes")
    shape.add_argument("--reservation", metavar="NAME[/…]", help="use nodes of a reservation, or of a block of it")
    shape.add_argument("--reservation_project", metavar="PROJECT", help="project of a shared reservation")
    shape.add_argument(
        "--grace",
        type=int,
        help=f"seconds to save a checkpoint before a pod is killed (default: {gke_manifest.GRACE_SECONDS}; on spot "
        f"nodes {gke_manifest.SPOT_GRACE_SECONDS}, and at most {MAX_SPOT_GRACE_SECONDS} with nodes that have it)",
    )
    cost.add_options(shape)
    pools = parser.add_argument_group("node pools, for nodes")
    pools.add_argument("--cluster", metavar="NAME", help="name of the cluster")
    pools.add_argument("--location", help="region or zone of the cluster (default: the region of --zone)")
    pools.add_argument("--zone", help="zone of the nodes, such as us-west4-a")
    pools.add_argument(
        "--unlisted_zone", action="store_true", help="accept a zone that launch/generations.py does not list"
    )
    pools.add_argument("--project", help="Google Cloud project (default: gcloud's)")
    pools.add_argument("--max_run_duration", help="time after which GKE deletes the nodes, such as 172800s")
    pools.add_argument("--delete", action="store_true", help="print the commands that delete the node pools")
    _add_run(parser.add_argument_group("run, for apply and print"))
    return parser


def _add_run(group: argparse._ArgumentGroup) -> None:
    """Adds the options of the pods."""
    group.add_argument("--image", help="image that every pod runs")
    group.add_argument("--queue", metavar="NAME", help="Kueue's LocalQueue that starts the run when there is quota")
    group.add_argument("--service_account", help="Kubernetes service account; needs write access to the bucket")
    group.add_argument(
        "--host_network",
        action="store_true",
        help="use the network of the nodes instead of the pod network. Pods then have the credentials of the nodes",
    )
    for name, default, text in (
        ("max_restarts", protocol.MAX_RESTARTS, "restarts in the pod after crashes without a new checkpoint"),
        ("max_recreations", MAX_RECREATIONS, "restarts of all pods after preemptions"),
    ):
        group.add_argument(
            f"--{name}", type=int, default=default, help=f"maximum number of {text} (default: {default})"
        )
    group.add_argument("--local_model_dir", action="store_true", help="MODEL_DIR is on a mounted file store")
    jobs.add_environment(group)


def main(argv: list[str]) -> int:
    """Runs an action and returns the exit code."""
    arguments, command = jobs.split_command(argv)
    options = jobs.parse_options(make_parser(), arguments)
    try:
        nodes = check(options, command)
        if nodes and options.dry_run:
            print(describe_cost(options, nodes))
        if options.action == "nodes":
            print("\n".join(map(shlex.join, gke_nodes.commands(options, nodes))))
            return 0
        text = json.dumps(gke_manifest.manifest(options, nodes, command), indent=2) + "\n" if nodes else None
        if options.action == "print":
            print(text, end="")
            return 0
        if options.action == "apply" and not options.dry_run:
            print(f"gke.py: {check_command(command, nodes.all_devices * options.num_slices)}", file=sys.stderr)
            check_jobset(kubectl(options))
        return call_kubectl(options, text)
    except slices.LaunchError as error:
        print(f"gke.py: {error}", file=sys.stderr)
        return protocol.USER_ERROR
    except FileNotFoundError as error:
        print(f"gke.py: {error.filename} not found. Install it, or add it to PATH", file=sys.stderr)
        return 1


def describe_cost(options: argparse.Namespace, nodes: gke_nodes.Nodes | gke_nodes.GpuNodes) -> str:
    """Returns comments with the cost of the nodes of all slices."""
    kind = nodes.accelerator if isinstance(nodes, gke_nodes.GpuNodes) else nodes.shape.generation.name
    duration = re.fullmatch(r"([0-9]+)s", options.max_run_duration or "")
    return cost.describe(
        kind, nodes.count * nodes.devices * options.num_slices, options, int(duration[1]) if duration else 0
    )


def check_jobset(kubectl: list[str]) -> None:
    """Checks that the JobSet of the cluster has the fields of the manifest.

    The command reads the schema, for which no permission on another namespace is needed.

    Args:
      kubectl: The words with which calls of kubectl start.

    Raises:
      LaunchError: JobSet is missing or too old, or kubectl cannot reach the cluster.
    """
    field = ["explain", "jobset.spec.failurePolicy.rules", f"--api-version={gke_manifest.API_VERSION}"]
    result = subprocess.run([*kubectl, *field], capture_output=True, text=True)
    if result.returncode:
        raise slices.LaunchError(
            f"kubectl {shlex.join(field)}: {result.stderr.strip()}. The cluster needs JobSet "
            f"{gke_manifest.MIN_JOBSET_VERSION} or later. Install it ({JOBSET_RELEASES}), or correct kubectl's context."
        )


def kubectl(options: argparse.Namespace) -> list[str]:
    """Returns the words with which calls of kubectl start."""
    return ["kubectl", *([f"--namespace={options.namespace}"] if options.namespace else [])]


def call_kubectl(options: argparse.Namespace, text: str | None) -> int:
    """Runs or prints the calls of an action and returns the exit code.

    Args:
      options: The parsed command line.
      text: The manifest, or None.
    """
    pods = f"jobset.sigs.k8s.io/jobset-name={options.name}"
    first_pod = f"{pods},jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0"
    calls = {
        "apply": [["apply", "--filename=-"]],
        "status": [["get", "jobset", options.name], ["get", "pods", f"--selector={pods}"]],
        "logs": [["logs", "--follow", "--tail=50", f"--selector={first_pod}"]],
        "delete": [["delete", "jobset", options.name]],
    }[options.action]
    for words in calls:
        command = [*kubectl(options), *words]
        if options.dry_run:
            print(shlex.join(command) + (f" <<'JSON'\n{text}JSON" if text else ""))
            continue
        exit_code = subprocess.run(command, input=text, text=True).returncode
        if exit_code:
            return exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
