#!/usr/bin/env python3
"""Trains on TPU slices of a GKE cluster, as a JobSet with one job per slice and one pod per VM.

    launch/gke.py apply NAME --image=IMAGE --topology=v5e:4x4 -- t5x_like train --gin.MODEL_DIR=gs://…
    launch/gke.py print …        print the manifest only
    launch/gke.py status NAME
    launch/gke.py logs NAME      follow the first worker's output
    launch/gke.py delete NAME

The cluster needs the JobSet controller and one node pool per slice (--num_slices) with the given topology. Each pod
runs the command under launch/supervise.py, which restarts it after a crash. The cluster restarts all pods after a
preemption, and fails the job when a pod has used up its restarts or reports a user error. --dry_run prints the kubectl
command.

Requires kubectl and Python 3.10 or later, without other packages. launch/docker.sh builds the image.
"""

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys

import jobs
import protocol
import slices
from check_command import check_command

# Kubernetes allows 63 characters for the name of a pod. JobSet appends the job, the index and a suffix.
MAX_NAME_LENGTH = 40
MAX_NAMESPACE_LENGTH = 63
SUPERVISE = "/opt/t5x_like/launch/supervise.py"  # path in the image, see launch/Dockerfile
# Each start that times out while it waits for a lost peer uses up a restart. The cluster may need more than an hour to
# give up the node of the peer: ten minutes without a heartbeat, and then until the pods of the node have terminated.
MAX_RESTARTS = 20
RESTART_DELAY_SECONDS = 60  # a start that waits for a lost peer takes five more minutes
MAX_RECREATIONS = 1000
GRACE_SECONDS = 120
# Stopped after a checkpoint; killed; terminated before a signal handler was installed.
PREEMPTED_CODES = (protocol.PREEMPTED, 128 + signal.SIGKILL, 128 + signal.SIGTERM)
JOB = "slice"
WORKER_PORT, SLICE_PORT, METRICS_PORT = 8471, 8080, 8431  # between workers; between slices; of the TPU runtime
ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
SPOT_LABEL = "cloud.google.com/gke-spot"
TPU_RESOURCE = "google.com/tpu"


def manifest(options: argparse.Namespace, shape: slices.Slice, command: list[str]) -> dict:
    """Returns the manifest of the JobSet.

    Sources: jobset.sigs.k8s.io (API v1alpha2), cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice. The
    cluster sets the variables through which the pods find each other: TPU_WORKER_ID and TPU_WORKER_HOSTNAMES, and
    MEGASCALE_… for several slices.

    Args:
      options: The parsed command line.
      shape: The shape of each slice.
      command: The command that each pod runs.
    """
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": options.name,
            **({"namespace": options.namespace} if options.namespace else {}),
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": {
                "maxRestarts": options.max_recreations,
                "rules": [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
            },
            "replicatedJobs": [
                {
                    "name": JOB,
                    "replicas": options.num_slices,
                    "template": {"spec": _job_spec(options, shape, command)},
                }
            ],
        },
    }


def _job_spec(options: argparse.Namespace, shape: slices.Slice, command: list[str]) -> dict:
    """Returns the job of one slice."""
    return {
        "parallelism": shape.vms,
        "completions": shape.vms,
        "backoffLimit": 0,
        # The first matching rule applies. A pod that the cluster evicts restarts all pods, whatever exit code its
        # process returned while its peers were terminated as well. Other failures have already been retried in the
        # pod, so they would fail again in a new one.
        "podFailurePolicy": {
            "rules": [
                {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": list(PREEMPTED_CODES)}},
            ]
        },
        "template": {"spec": _pod_spec(options, shape, command)},
    }


def _pod_spec(options: argparse.Namespace, shape: slices.Slice, command: list[str]) -> dict:
    """Returns the pod of one VM."""
    selector = {ACCELERATOR_LABEL: shape.generation.gke_accelerator, TOPOLOGY_LABEL: shape.topology}
    tolerated = [TPU_RESOURCE]
    if options.spot:
        selector[SPOT_LABEL] = "true"
        tolerated.append(SPOT_LABEL)
    return {
        "restartPolicy": "Never",  # a single restarted pod would wait for the others until it times out
        "terminationGracePeriodSeconds": options.grace,
        "nodeSelector": selector,
        "tolerations": [{"key": key, "operator": "Exists"} for key in tolerated],
        # Recommended for several slices, because their traffic then bypasses the pod network.
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if options.num_slices > 1 else {}),
        **({"serviceAccountName": options.service_account} if options.service_account else {}),
        "containers": [_container(options, shape, command)],
    }


def _container(options: argparse.Namespace, shape: slices.Slice, command: list[str]) -> dict:
    """Returns the container that runs the command under its supervisor."""
    variables = [{"name": name, "value": _escape(value)} for name, value in jobs.environment(options.env).items()]
    return {
        "name": "t5x-like",
        "image": options.image,
        "imagePullPolicy": "Always",  # otherwise a node reuses its copy after a new push to the same tag
        "command": [
            *("python", SUPERVISE, "run", f"--max_restarts={options.max_restarts}"),
            *(f"--delay={RESTART_DELAY_SECONDS}", "--on_preempted=exit", "--"),
        ],
        "args": [_escape(word) for word in command],
        **({"env": variables} if variables else {}),
        "ports": [{"containerPort": port} for port in (WORKER_PORT, SLICE_PORT, METRICS_PORT)],
        "resources": {"limits": {TPU_RESOURCE: shape.chips_per_vm}},
    }


def _escape(text: str) -> str:
    """Escapes text that Kubernetes would expand: it replaces `$(NAME)` by a variable and `$$` by `$`."""
    return text.replace("$", "$$")


def check(options: argparse.Namespace, command: list[str]) -> slices.Slice | None:
    """Checks the request before kubectl is called.

    Args:
      options: The parsed command line.
      command: The command after `--`.

    Returns:
      The shape of each slice, or None if the action does not write a manifest.

    Raises:
      LaunchError: A name, the image, the shape or the command is invalid.
    """
    slices.check_name("job name", options.name, MAX_NAME_LENGTH)
    if options.namespace:
        slices.check_name("--namespace", options.namespace, MAX_NAMESPACE_LENGTH)
    if options.action not in ("apply", "print"):
        return None
    jobs.check_command(command, options.local_model_dir)
    if not re.fullmatch(r"[a-z0-9][a-z0-9._/:-]*[a-z0-9]([:@][A-Za-z0-9._:-]+)?", options.image or ""):
        raise slices.LaunchError(
            f"--image={options.image} is not an image name. Give the image that launch/docker.sh pushed, such as "
            "registry.example.com/images/t5x_like:first"
        )
    shape = slices.parse_slice(options.type, options.topology)
    ascending = slices.Slice(shape.generation, tuple(sorted(shape.sides)))
    if shape.sides not in slices.SMALL_SHAPES_3D and shape != ascending:
        raise slices.LaunchError(
            f"--topology={options.topology}: GKE nodes are not labeled {shape.topology}, because GKE lists shorter "
            f"sides first. Write --topology={shape.generation.name}:{ascending.topology}"
        )
    slices.check_minimums(options, {"num_slices": 1, "max_restarts": 0, "max_recreations": 0, "grace": 0})
    if options.num_slices > 1 and shape.vms == 1:
        raise slices.LaunchError(
            f"--num_slices={options.num_slices}: GKE connects only slices of several VMs, and {shape} has one VM. "
            "Choose a larger topology."
        )
    jobs.check_slices(command, options.num_slices)
    jobs.environment(options.env)
    return shape


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("action", choices=("apply", "print", "status", "logs", "delete"), help="what to do, see above")
    parser.add_argument("name", metavar="NAME", help="name of the JobSet")
    parser.add_argument("--image", help="image that every pod runs")
    parser.add_argument("--topology", help="the slice as in `t5x_like plan`, such as v5e:4x4")
    parser.add_argument("--type", help="alternatively the slice as in the TPU API, such as v5litepod-16")
    parser.add_argument("--num_slices", type=int, default=1, help="number of slices (default: %(default)s)")
    parser.add_argument("--spot", action="store_true", help="use a pool of spot nodes")
    parser.add_argument("--namespace", help="Kubernetes namespace (default: the namespace of kubectl's context)")
    parser.add_argument("--service_account", help="Kubernetes service account; needs write access to the bucket")
    parser.add_argument(
        "--max_restarts",
        type=int,
        default=MAX_RESTARTS,
        help="maximum number of restarts in the pod after crashes of the command or its peers (default: %(default)s)",
    )
    parser.add_argument(
        "--max_recreations",
        type=int,
        default=MAX_RECREATIONS,
        help="maximum number of restarts of all pods after preemptions (default: %(default)s)",
    )
    parser.add_argument(
        "--grace",
        type=int,
        default=GRACE_SECONDS,
        help="seconds to save a checkpoint before a pod is killed (default: %(default)s)",
    )
    parser.add_argument("--local_model_dir", action="store_true", help="MODEL_DIR is on a mounted file store")
    jobs.add_environment(parser)
    parser.add_argument("--dry_run", action="store_true", help="print the command instead of running it")
    return parser


def main(argv: list[str]) -> int:
    """Runs an action and returns the exit code."""
    arguments, command = jobs.split_command(argv)
    options = make_parser().parse_args(arguments)
    try:
        shape = check(options, command)
        if options.action == "apply" and not options.dry_run:
            print(f"gke.py: {check_command(command)}", file=sys.stderr)
    except slices.LaunchError as error:
        print(f"gke.py: {error}", file=sys.stderr)
        return protocol.USER_ERROR
    text = json.dumps(manifest(options, shape, command), indent=2) + "\n" if shape else None
    if options.action == "print":
        print(text, end="")
        return 0
    kubectl = ["kubectl", *([f"--namespace={options.namespace}"] if options.namespace else [])]
    try:
        for arguments in kubectl_arguments(options.action, options.name):
            if options.dry_run:
                print(shlex.join([*kubectl, *arguments]) + (f" <<'JSON'\n{text}JSON" if text else ""))
                continue
            exit_code = subprocess.run([*kubectl, *arguments], input=text, text=True).returncode
            if exit_code:
                return exit_code
    except FileNotFoundError:
        print("gke.py: kubectl not found. Install it, or add it to PATH", file=sys.stderr)
        return 1
    return 0


def kubectl_arguments(action: str, name: str) -> list[list[str]]:
    """Returns the arguments of the kubectl calls that an action makes, in order."""
    pods = f"jobset.sigs.k8s.io/jobset-name={name}"
    first_pod = f"{pods},jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0"
    return {
        "apply": [["apply", "--filename=-"]],
        "status": [["get", "jobset", name], ["get", "pods", f"--selector={pods}"]],
        "logs": [["logs", "--follow", "--tail=50", f"--selector={first_pod}"]],
        "delete": [["delete", "jobset", name]],
    }[action]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
