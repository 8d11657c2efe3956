"""The manifest of a run on GKE: a JobSet with one job per slice and one pod per VM.

Sources: jobset.sigs.k8s.io (API v1alpha2; rules of the failure policy since 0.6.0; names of pods); kueue.sigs.k8s.io
(label of the queue); cloud.google.com/kubernetes-engine/docs, pages "Deploy TPU workloads", "Deploy TPU Multislices"
and "Run GPUs". tests/launch/test_gke_manifest.py compares the fields with those that AI-Hypercomputer/xpk sets.

Requires Python 3.10 and only its standard library.
"""

import argparse
import signal

import gke_nodes
import jobs
import protocol

# The first release of JobSet with spec.failurePolicy.rules.
MIN_JOBSET_VERSION = "0.6.0"
API_VERSION = "jobset.x-k8s.io/v1alpha2"
# Paths in the image, see launch/Dockerfile.
SUPERVISE = "/opt/t5x_like/launch/supervise.py"
HOST_SETTINGS = "/opt/t5x_like/launch/host_settings.sh"
PRIVILEGED = {"privileged": True}
RESTART_DELAY_SECONDS = 60  # a start that waits for a lost peer takes five more minutes
# Stopped after a checkpoint; killed, often because memory ran out; terminated before a signal handler was installed.
# The supervisor limits how often a run starts without a new checkpoint.
RESTARTED_CODES = (protocol.PREEMPTED, 128 + signal.SIGKILL, 128 + signal.SIGTERM)
JOB = "slice"
WORKER_PORT, SLICE_PORT, METRICS_PORT = 8471, 8080, 8431  # between workers; between slices; of the TPU runtime
# Seconds to save a checkpoint before a pod is killed; less on spot nodes, see launch/spot_nodes.yaml.
GRACE_SECONDS, SPOT_GRACE_SECONDS = 120, 15
# A pod's own /dev/shm has 64 MiB. Local checkpoints on its disk would soon get it evicted.
SHARED_MEMORY = "shared-memory"


def manifest(options: argparse.Namespace, nodes: gke_nodes.Nodes | gke_nodes.GpuNodes, command: list[str]) -> dict:
    """Returns the manifest of the JobSet.

    On TPUs, the cluster sets the variables through which the pods find each other: TPU_WORKER_ID and
    TPU_WORKER_HOSTNAMES, and MEGASCALE_… for several slices.

    Args:
      options: The parsed command line.
      nodes: The VMs of each slice.
      command: The command that each pod runs.
    """
    # Each job has a node pool of its own, because only the VMs of one node pool are one slice.
    exclusive = {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}}
    return {
        "apiVersion": API_VERSION,
        "kind": "JobSet",
        "metadata": {
            "name": options.name,
            **({"namespace": options.namespace} if options.namespace else {}),
            **({"labels": {"kueue.x-k8s.io/queue-name": options.queue}} if options.queue else {}),
            **(exclusive if isinstance(nodes, gke_nodes.Nodes) else {}),
        },
        "spec": {
            "failurePolicy": {
                "maxRestarts": options.max_recreations,
                "rules": [
                    {"name": "failedCommand", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
                ],
            },
            "replicatedJobs": [
                {
                    "name": JOB,
                    "replicas": options.num_slices,
                    "template": {"spec": _job_spec(options, nodes, command)},
                }
            ],
        },
    }


def _job_spec(options: argparse.Namespace, nodes: gke_nodes.Nodes | gke_nodes.GpuNodes, command: list[str]) -> dict:
    """Returns the job of one slice."""
    return {
        "parallelism": nodes.count,
        "completions": nodes.count,
        "backoffLimit": 0,
        # The first matching rule applies. A pod that the cluster evicts restarts all pods, whatever exit code its
        # process returned while its peers were terminated as well. Other failures have already been retried in the
        # pod, so they would fail again in a new one.
        "podFailurePolicy": {
            "rules": [
                {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": list(RESTARTED_CODES)}},
            ]
        },
        "template": {"spec": _pod_spec(options, nodes, command)},
    }


def _pod_spec(options: argparse.Namespace, nodes: gke_nodes.Nodes | gke_nodes.GpuNodes, command: list[str]) -> dict:
    """Returns the pod of one VM."""
    tolerated = [nodes.resource, *([gke_nodes.SPOT_LABEL] if options.spot else [])]
    host_settings = {
        "name": "host-settings",
        "image": options.image,
        "imagePullPolicy": "Always",
        "securityContext": PRIVILEGED,  # to change settings of the node's kernel and of the pod's network
        "command": [HOST_SETTINGS, str(options.num_slices)],
    }
    return {
        "restartPolicy": "Never",  # a single restarted pod would wait for the others until it times out
        "terminationGracePeriodSeconds": options.grace or (SPOT_GRACE_SECONDS if options.spot else GRACE_SECONDS),
        "nodeSelector": gke_nodes.selector(options, nodes),
        "tolerations": [{"key": key, "operator": "Exists"} for key in tolerated],
        # Pods on the network of the VM get the credentials of the VM: Workload Identity does not work for them.
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if options.host_network else {}),
        **({"serviceAccountName": options.service_account} if options.service_account else {}),
        **({"initContainers": [host_settings]} if isinstance(nodes, gke_nodes.Nodes) else {}),
        "containers": [_container(options, nodes, command)],
        "volumes": [{"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory"}}],
    }


def _container(options: argparse.Namespace, nodes: gke_nodes.Nodes | gke_nodes.GpuNodes, command: list[str]) -> dict:
    """Returns the container that runs the command under its supervisor."""
    is_tpu = isinstance(nodes, gke_nodes.Nodes)
    given = nodes.platforms | jobs.environment(options.env)
    variables = [{"name": name, "value": _escape(value)} for name, value in given.items()]
    if not is_tpu and nodes.count > 1:
        variables += _process_variables(options.name, nodes.count)
    run = jobs.run_directory(command)
    ports = (WORKER_PORT, SLICE_PORT, METRICS_PORT) if is_tpu else (gke_nodes.COORDINATOR_PORT,)
    return {
        "name": "t5x-like",
        "image": options.image,
        "imagePullPolicy": "Always",  # otherwise a node reuses its copy after a new push to the same tag
        # For the devices of the TPU, and to lock the memory that it reads.
        **({"securityContext": PRIVILEGED} if is_tpu else {}),
        "command": [
            *("python", SUPERVISE, "run", f"--max_restarts={options.max_restarts}"),
            *([f"--run={_escape(run)}"] if run else []),
            *(f"--delay={RESTART_DELAY_SECONDS}", "--on_preempted=exit", "--"),
        ],
        "args": [_escape(word) for word in command],
        "env": variables,
        "ports": [{"containerPort": port} for port in ports],
        "resources": {"limits": {nodes.resource: nodes.devices}},
        "volumeMounts": [{"name": SHARED_MEMORY, "mountPath": "/dev/shm"}],
    }


def _process_variables(name: str, count: int) -> list[dict]:
    """Returns the variables through which the processes of GPUs find each other: one process per VM."""
    coordinator = f"{name}-{JOB}-0-0.{name}:{gke_nodes.COORDINATOR_PORT}"
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    return [
        {"name": protocol.COORDINATOR, "value": coordinator},
        {"name": protocol.NUM_PROCESSES, "value": str(count)},
        {"name": protocol.PROCESS_ID, "valueFrom": index},
    ]


def _escape(text: str) -> str:
    """Escapes text that Kubernetes would expand: it replaces `$(NAME)` by a variable and `$$` by `$`."""
    return text.replace("$", "$$")
