#!/usr/bin/env python3
"""Trains on TPU slices of a GKE cluster, as a JobSet: one job a slice, one pod a VM.

    launch/gke.py apply NAME --image=IMAGE --topology=v5e:4x4 -- t5x_like train --gin.MODEL_DIR=gs://…
    launch/gke.py print …        the manifest alone
    launch/gke.py status NAME
    launch/gke.py logs NAME      the first worker's output as it comes
    launch/gke.py delete NAME

The cluster needs the JobSet controller and a pool of nodes with such a slice for each of --num_slices. Each pod runs
the command under launch/supervise.py, which restarts it after a crash; the cluster starts all pods again when one of
them was preempted, and fails the job when one gave up or reports a mistake of the user's. --dry_run prints the kubectl
command.

Needs kubectl, and Python 3.10 or later without any package. The image: launch/docker.sh.
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

LONGEST_NAME = 40  # of the 63 characters of a pod's name; JobSet adds the job, the index and a suffix
SUPERVISE = "/opt/t5x_like/launch/supervise.py"  # as launch/Dockerfile lays it out
# A lost peer costs the others a start each time that they look for it in vain, and its node may be gone for an hour
# before the cluster gives it up: ten minutes without a sign of life, then as long as its pods are waited for.
RESTARTS, PAUSE = 20, 60  # times; seconds before each. A start that waits for a peer takes five minutes more
# Stopped after a checkpoint; killed; terminated before the signal handler was installed.
PREEMPTED_CODES = (protocol.PREEMPTED, 128 + signal.SIGKILL, 128 + signal.SIGTERM)
JOB = "slice"


def manifest(options: argparse.Namespace, shape: slices.Slice, command: list[str]) -> dict:
    """The JobSet.

    Sources: jobset.sigs.k8s.io (API v1alpha2), cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice. The
    cluster itself tells the pods of each other: TPU_WORKER_ID and TPU_WORKER_HOSTNAMES, and MEGASCALE_… where there are
    several slices.

    Args:
      options: of the command line.
      shape: of each slice.
      command: what each pod runs.

    Returns:
      The manifest, to be written as JSON.
    """
    spot = "cloud.google.com/gke-spot"
    selector = {
        "cloud.google.com/gke-tpu-accelerator": shape.generation.gke_accelerator,
        "cloud.google.com/gke-tpu-topology": shape.topology,
        **({spot: "true"} if options.spot else {}),
    }
    variables = [{"name": name, "value": _literal(value)} for name, value in jobs.environment(options.env).items()]
    container = {
        "name": "t5x-like",
        "image": options.image,
        "imagePullPolicy": "Always",  # a tag that was pushed again would be taken from the node's disk otherwise
        "command": [
            *("python", SUPERVISE, "run", f"--max_restarts={options.max_restarts}", f"--delay={PAUSE}"),
            *("--on_preempted=exit", "--"),
        ],
        "args": [_literal(word) for word in command],
        **({"env": variables} if variables else {}),
        # Workers find each other on 8471, slices on 8080, and 8431 offers the runtime's metrics.
        "ports": [{"containerPort": port} for port in (8471, 8080, 8431)],
        "resources": {"limits": {"google.com/tpu": shape.chips_per_vm}},
    }
    pod = {
        "restartPolicy": "Never",  # a pod that is started again alone would wait for the others in vain
        "terminationGracePeriodSeconds": options.grace,
        "nodeSelector": selector,
        "tolerations": [
            {"key": key, "operator": "Exists"} for key in ("google.com/tpu", *((spot,) if options.spot else ()))
        ],
        # Recommended for several slices: their traffic then takes no detour through the pods' network.
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if options.num_slices > 1 else {}),
        **({"serviceAccountName": options.service_account} if options.service_account else {}),
        "containers": [container],
    }
    job = {
        "parallelism": shape.vms,
        "completions": shape.vms,
        "backoffLimit": 0,
        # The first rule that fits decides. A pod that the cluster evicts starts all again, whatever its process said
        # while its peers went too. A crash has been tried again in its pod: it would come again in a new one.
        "podFailurePolicy": {
            "rules": [
                {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": list(PREEMPTED_CODES)}},
            ]
        },
        "template": {"spec": pod},
    }
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
            "replicatedJobs": [{"name": JOB, "replicas": options.num_slices, "template": {"spec": job}}],
        },
    }


def _literal(text: str) -> str:
    """Escapes text that Kubernetes would expand: it replaces `$(NAME)` by a variable and `$$` by `$`."""
    return text.replace("$", "$$")


def check(options: argparse.Namespace, command: list[str]) -> slices.Slice | None:
    """Refuses what cannot work, before kubectl is called.

    Returns:
      The shape of each slice, where the action is about a manifest.

    Raises:
      LaunchError: a name, an image, a shape or the command is wrong.
    """
    slices.check_name("the job's name", options.name, LONGEST_NAME)
    if options.namespace:
        slices.check_name("--namespace", options.namespace, 63)
    if options.action not in ("apply", "print"):
        return None
    jobs.check_command(command, options.local_model_dir)
    if not re.fullmatch(r"[a-z0-9][a-z0-9._/:-]*[a-z0-9]([:@][A-Za-z0-9._:-]+)?", options.image or ""):
        raise slices.LaunchError(
            f"--image={options.image}: name the image that launch/docker.sh pushed, such as "
            "registry.example.com/images/t5x_like:first"
        )
    shape = slices.parse_slice(options.type, options.topology)
    ascending = slices.Slice(shape.generation, tuple(sorted(shape.sides)))
    if shape.sides not in slices.BELOW_A_CUBE and shape != ascending:
        raise slices.LaunchError(
            f"--topology={options.topology}: no node has the label {shape.topology}, since GKE names the shorter "
            f"sides first: write --topology={shape.generation.name}:{ascending.topology}"
        )
    slices.check_least(options, {"num_slices": 1, "max_restarts": 0, "max_recreations": 0, "grace": 0})
    if options.num_slices > 1 and shape.vms == 1:
        raise slices.LaunchError(
            f"--num_slices={options.num_slices}: GKE joins slices of several VMs only, and {shape} is one"
        )
    jobs.check_slices(command, options.num_slices)
    jobs.environment(options.env)
    return shape


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("action", choices=("apply", "print", "status", "logs", "delete"))
    made.add_argument("name", metavar="NAME")
    made.add_argument("--image", help="that every pod runs")
    made.add_argument("--topology", help="the slice as `t5x_like plan` takes it, such as v5e:4x4")
    made.add_argument("--type", help="or as the TPU API names it, such as v5litepod-16")
    made.add_argument("--num_slices", type=int, default=1)
    made.add_argument("--spot", action="store_true", help="on a pool of spot nodes")
    made.add_argument("--namespace")
    made.add_argument("--service_account", help="of Kubernetes; it must be able to write the bucket")
    made.add_argument(
        "--max_restarts",
        type=int,
        default=RESTARTS,
        help="of a pod's command after crashes, its peers' too (default: 20)",
    )
    made.add_argument("--max_recreations", type=int, default=1000, help="of all pods after preemptions (default: 1000)")
    made.add_argument("--grace", type=int, default=120, help="seconds to save in before a pod is killed (default: 120)")
    made.add_argument("--local_model_dir", action="store_true", help="MODEL_DIR is a mounted file store")
    jobs.add_environment(made)
    made.add_argument("--dry_run", action="store_true", help="print the command instead of running it")
    return made


def main(argv: list[str]) -> int:
    words, command = jobs.split_command(argv)
    options = parser().parse_args(words)
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
    words = ["kubectl", *([f"--namespace={options.namespace}"] if options.namespace else [])]
    try:
        for action in actions(options.action, options.name):
            if options.dry_run:
                print(shlex.join([*words, *action]) + (f" <<'JSON'\n{text}JSON" if text else ""))
                continue
            code = subprocess.run([*words, *action], input=text, text=True).returncode
            if code:
                return code
    except FileNotFoundError:
        print("gke.py: kubectl is not installed, or not on PATH", file=sys.stderr)
        return 1
    return 0


def actions(action: str, name: str) -> list[list[str]]:
    """What kubectl is called with, one call after the other."""
    pods = f"jobset.sigs.k8s.io/jobset-name={name}"
    first = f"{pods},jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0"
    return {
        "apply": [["apply", "--filename=-"]],
        "status": [["get", "jobset", name], ["get", "pods", f"--selector={pods}"]],
        "logs": [["logs", "--follow", "--tail=50", f"--selector={first}"]],
        "delete": [["delete", "jobset", name]],
    }[action]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
