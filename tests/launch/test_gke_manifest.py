"""Tests for the manifests of launch/gke.py: fields, published schemas, goldens, and the fields that xpk sets.

`T5X_LIKE_UPDATE_GOLDENS=1 pytest tests/launch/test_gke_manifest.py` updates the goldens.
"""

import json
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = Path(__file__).parent / "manifests"
sys.path.insert(0, str(ROOT / "launch"))
try:
    import gke
    import gke_manifest
    import gke_nodes
    import slices
finally:
    sys.path.pop(0)

IMAGE = "--image=registry.example.com/images/t5x_like:first"
COMMAND = ["t5x_like", "train", "--gin.MODEL_DIR=gs://my-bucket/runs/first", "--gin.TASK=yes", "--gin.N=two words"]
CASES = {
    "v5e_2x4_two_slices_spot": ("--topology=v5e:2x4", "--num_slices=2", "--spot"),
    "v6e_2x4_one_vm_queue": ("--topology=v6e:2x4", "--machine_type=ct6e-standard-8t", "--queue=team"),
    "v5p_4x4x8_reservation": ("--topology=v5p:4x4x8", "--reservation=pool", "--reservation_project=other"),
    "tpu7x_4x4x4_service_account": ("--topology=tpu7x:4x4x4", "--service_account=trainer", "--env=A=b"),
}


def manifest(*words: str, more: tuple[str, ...] = ()) -> dict:
    options = gke.make_parser().parse_args(["print", "first", IMAGE, *words])
    dcn = [f"--gin.DCN={{'data': {options.num_slices}}}"] if options.num_slices > 1 else []
    command = [*COMMAND, *dcn, *more]
    return gke_manifest.manifest(options, gke.check(options, command), command)


def job(manifest: dict) -> dict:
    (replicated,) = manifest["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def pod(manifest: dict) -> dict:
    return job(manifest)["template"]["spec"]


def container(manifest: dict) -> dict:
    (only,) = pod(manifest)["containers"]
    return only


def flattened(value, path: str = "") -> dict:
    """Returns the leaves of nested dicts and lists by path, such as `a.b[0]`."""
    if isinstance(value, dict):
        return {key: leaf for name, each in value.items() for key, leaf in flattened(each, f"{path}.{name}").items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        pairs = enumerate(value)
        return {key: leaf for index, each in pairs for key, leaf in flattened(each, f"{path}[{index}]").items()}
    return {path.removeprefix("."): value}


@pytest.mark.parametrize("name", CASES)
def test_manifest_equals_golden(name):
    text = json.dumps(manifest(*CASES[name]), indent=2) + "\n"
    golden = GOLDENS / f"{name}.json"
    if os.environ.get("T5X_LIKE_UPDATE_GOLDENS"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("name", CASES)
def test_manifest_has_only_fields_of_the_published_schemas(name):
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api (extra `test`) not found")
    made = manifest(*CASES[name])
    # The models raise an error for wrong types and missing fields, and drop unknown fields.
    job_set = models.JobsetV1alpha2JobSet.from_dict(made)
    known = flattened(job_set.to_dict())
    assert {path: known.get(path) for path in flattened(made)} == flattened(made)


def test_schema_rejects_wrong_fields():
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api (extra `test`) not found")
    made = manifest("--topology=v5e:4x4")
    container(made)["imagePullPolice"] = "Always"
    assert "imagePullPolice" not in json.dumps(models.JobsetV1alpha2JobSet.from_dict(made).to_dict())
    job(made)["parallelism"] = "four"
    with pytest.raises(ValueError, match="parallelism"):
        models.JobsetV1alpha2JobSet.from_dict(made)


# VMs per slice, chips per VM, value of the accelerator label and machine type. Source: the tables of xpk
# (core/system_characteristics.py) and, for one VM of 8 chips, of AXLearn (cloud/gcp/system_characteristics.py).
@pytest.mark.parametrize(
    ("topology", "words", "vms", "chips", "accelerator", "machine_type"),
    [
        ("v4:2x2x1", (), 1, 4, "tpu-v4-podslice", "ct4p-hightpu-4t"),
        ("v4:2x2x4", (), 4, 4, "tpu-v4-podslice", "ct4p-hightpu-4t"),
        ("v5e:2x4", (), 2, 4, "tpu-v5-lite-podslice", "ct5lp-hightpu-4t"),
        ("v5e:16x16", (), 64, 4, "tpu-v5-lite-podslice", "ct5lp-hightpu-4t"),
        ("v5p:2x2x1", (), 1, 4, "tpu-v5p-slice", "ct5p-hightpu-4t"),
        ("v5p:2x2x2", (), 2, 4, "tpu-v5p-slice", "ct5p-hightpu-4t"),
        ("v6e:1x1", (), 1, 1, "tpu-v6e-slice", "ct6e-standard-1t"),
        ("v6e:2x2", (), 1, 4, "tpu-v6e-slice", "ct6e-standard-4t"),
        ("v6e:2x4", (), 2, 4, "tpu-v6e-slice", "ct6e-standard-4t"),
        ("v6e:2x4", ("--machine_type=ct6e-standard-8t",), 1, 8, "tpu-v6e-slice", "ct6e-standard-8t"),
        ("tpu7x:2x2x1", (), 1, 4, "tpu7x", "tpu7x-standard-4t"),
        ("tpu7x:2x2x2", (), 2, 4, "tpu7x", "tpu7x-standard-4t"),
        ("tpu7x:4x4x4", (), 16, 4, "tpu7x", "tpu7x-standard-4t"),
    ],
)
def test_pods_match_the_nodes_of_the_slice(topology, words, vms, chips, accelerator, machine_type):
    made = manifest(f"--topology={topology}", *words)
    assert (job(made)["parallelism"], job(made)["completions"]) == (vms, vms)
    assert container(made)["resources"] == {"limits": {"google.com/tpu": chips}}
    labels = pod(made)["nodeSelector"]
    assert labels.pop(gke_nodes.MACHINE_TYPE_LABEL, None) == (machine_type if topology.endswith(":2x4") else None)
    assert labels == {gke_nodes.ACCELERATOR_LABEL: accelerator, gke_nodes.TOPOLOGY_LABEL: topology.partition(":")[2]}
    shape = slices.parse_slice(None, topology)
    assert gke_nodes.find_nodes(shape, machine_type).machine_type == machine_type


# What xpk sets for one v5p slice of 2x2x1 (recipes/Workload_create.md, a dry run in its repository), below the template
# of the only replicated job.
XPK = {
    "spec.parallelism": 1,
    "spec.completions": 1,
    "spec.backoffLimit": 0,
    "spec.podFailurePolicy.rules[0].action": "FailJob",
    "spec.podFailurePolicy.rules[0].onPodConditions": [],
    "spec.podFailurePolicy.rules[0].onExitCodes.containerName": "jax-tpu",
    "spec.podFailurePolicy.rules[0].onExitCodes.operator": "NotIn",
    "spec.podFailurePolicy.rules[0].onExitCodes.values": [42, *range(127, 256)],
    "spec.template.metadata.labels.xpk.google.com/workload": "golden-workload",
    "spec.template.spec.schedulerName": "default-scheduler",
    "spec.template.spec.imagePullSecrets[0].name": "None",
    "spec.template.spec.restartPolicy": "Never",
    "spec.template.spec.nodeSelector.cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
    "spec.template.spec.nodeSelector.cloud.google.com/gke-tpu-topology": "2x2x1",
    "spec.template.spec.priorityClassName": "medium",
    "spec.template.spec.hostNetwork": True,
    "spec.template.spec.dnsPolicy": "ClusterFirstWithHostNet",
    "spec.template.spec.terminationGracePeriodSeconds": 30,
    "spec.template.spec.containers[0].name": "jax-tpu",
    "spec.template.spec.containers[0].image": "gcr.io/golden-project/dry-run-runner:prefix-current",
    "spec.template.spec.containers[0].securityContext.privileged": True,
    "spec.template.spec.containers[0].command": ["bash", "-c"],
    "spec.template.spec.containers[0].resources.limits.google.com/tpu": 4,
    "spec.template.spec.containers[0].volumeMounts[0].mountPath": "/dev/shm",
    "spec.template.spec.containers[0].volumeMounts[0].name": "dshm-2",
    "spec.template.spec.tolerations[0].operator": "Exists",
    "spec.template.spec.tolerations[0].key": "google.com/tpu",
    "spec.template.spec.volumes[0].emptyDir.medium": "Memory",
    "spec.template.spec.volumes[0].name": "dshm-2",
}
# Why a field differs from xpk's, by the start of its path below `spec`.
DIFFERENCES = {
    "podFailurePolicy.rules": "evicted pods restart the run whatever their exit code, and 75 is a saved checkpoint",
    "template.metadata.labels": "a label of xpk",
    "template.spec.schedulerName": "Kubernetes' default",
    "template.spec.imagePullSecrets": "the nodes' service account reads the registry",
    "template.spec.priorityClassName": "a class that xpk creates in its clusters",
    "template.spec.hostNetwork": "only with --host_network, because it disables Workload Identity",
    "template.spec.dnsPolicy": "belongs to hostNetwork",
    "template.spec.terminationGracePeriodSeconds": "two minutes to save a checkpoint",
    "template.spec.initContainers": "hugepages and TCP settings, as launch/tpu.py makes them",
    "template.spec.containers[0].name": "the name of the program",
    "template.spec.containers[0].image": "the image of the user",
    "template.spec.containers[0].imagePullPolicy": "a new push to the same tag takes effect",
    "template.spec.containers[0].command": "the supervisor, without a shell",
    "template.spec.containers[0].args": "the command, without a shell",
    "template.spec.containers[0].ports": "as in GKE's documentation",
    "template.spec.containers[0].volumeMounts": "no processes that share memory",
    "template.spec.volumes": "no processes that share memory",
}


def test_fields_equal_those_of_xpk_except_listed_ones():
    made = manifest("--topology=v5p:2x2x1")
    ours = flattened({"spec": job(made)})
    missing = object()
    different = [
        path.removeprefix("spec.") for path in {**XPK, **ours} if ours.get(path, missing) != XPK.get(path, missing)
    ]
    assert [path for path in different if not path.startswith(tuple(DIFFERENCES))] == []
    assert [start for start in DIFFERENCES if not any(path.startswith(start) for path in different)] == []
    assert made["apiVersion"] == "jobset.x-k8s.io/v1alpha2" and made["kind"] == "JobSet"
    assert made["metadata"]["annotations"] == {
        "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
    }
    # The schema requires a name. xpk leaves it to the webhook of JobSet.
    rule = {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    assert made["spec"]["failurePolicy"]["rules"] == [{"name": "failedCommand", **rule}]
    queued = manifest("--topology=v5p:2x2x1", "--queue=multislice-queue")
    assert queued["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "multislice-queue"}


def test_scripts_of_the_pod_are_in_the_image():
    made = pod(manifest("--topology=v5e:2x4", "--num_slices=2"))
    (first,) = made["initContainers"]
    assert first["command"] == ["/opt/t5x_like/launch/host_settings.sh", "2"]
    assert first["securityContext"] == made["containers"][0]["securityContext"] == {"privileged": True}
    scripts = [first["command"][0], made["containers"][0]["command"][1]]
    paths = [ROOT / Path(script).relative_to("/opt/t5x_like") for script in scripts]
    assert paths[1].is_file() and os.access(paths[0], os.X_OK)
    assert "WORKDIR /opt/t5x_like" in (ROOT / "launch/Dockerfile").read_text()


def test_host_network_only_on_request():
    two_slices = ("--topology=v5e:2x4", "--num_slices=2")
    assert not {"hostNetwork", "dnsPolicy"} & set(pod(manifest(*two_slices)))
    shared = pod(manifest(*two_slices, "--host_network"))
    assert (shared["hostNetwork"], shared["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_evicted_pods_restart_the_run_and_failed_ones_do_not():
    made = manifest("--topology=v4:2x2x2", "--max_recreations=7")
    # Evicted pods restart the whole set, whatever their exit code, as do lost nodes and the listed exit codes. Other
    # exit codes fail the job permanently.
    assert job(made)["podFailurePolicy"]["rules"] == [
        {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [75, 137, 143]}},
    ]
    assert made["spec"]["failurePolicy"]["maxRestarts"] == 7


def test_restarts_outlast_the_recovery_of_a_lost_node():
    words = dict(word[2:].split("=") for word in container(manifest("--topology=v5e:4x4"))["command"] if "=" in word)
    distributed = (ROOT / "t5x_like/runtime/distributed.py").read_text()
    arrival = int(re.search(r"^ARRIVAL_SECONDS = (\d+)", distributed, re.MULTILINE)[1])
    # A node without a heartbeat is repaired after ten minutes, and its pods are given up after at most an hour.
    assert int(words["max_restarts"]) * (int(words["delay"]) + arrival) >= 70 * 60
    assert int(words["max_restarts"]) * int(words["delay"]) >= 10 * 60  # even if each start fails immediately


@pytest.mark.parametrize(
    "text", ["yes", "null", "1e3", "a: b", "x #y", "", "0x1f", "~", "- a", "plain", "é", "2x2", "12:30"]
)
def test_arguments_are_unchanged(text):
    args = container(json.loads(json.dumps(manifest("--topology=v5e:4x4", more=(text,)))))["args"]
    assert args == [*COMMAND, text]


def test_variable_references_are_escaped():
    # Kubernetes replaces $$ by $, and would expand $(NAME) without the escape.
    definitions = ("--env=LIBTPU_INIT_ARGS=--a=true --b", "--env=QUOTED='$(HOSTNAME) $$x: #\"", "--env=EMPTY=")
    made = container(manifest("--topology=v5e:4x4", *definitions, more=("--gin.A=$(B)",)))
    assert made["env"] == [
        {"name": "LIBTPU_INIT_ARGS", "value": "--a=true --b"},
        {"name": "QUOTED", "value": "'$$(HOSTNAME) $$$$x: #\""},
        {"name": "EMPTY", "value": ""},
    ]
    assert made["args"][-1] == "--gin.A=$$(B)"


def resources(*words: str) -> list[gke_nodes.Resource]:
    options = gke.make_parser().parse_args(["create_nodes", "first", "--cluster=c", *words])
    return gke_nodes.resources(options, gke.check(options, []))


def test_node_pools_of_tpu7x_use_a_workload_policy():
    words = ("--topology=tpu7x:2x2x2", "--zone=us-central1-c", "--reservation=r1", "--reservation_project=other")
    policy, pool = resources(*words)
    assert " ".join(policy.create()) == (
        "gcloud compute resource-policies create workload-policy first --region=us-central1 --type=HIGH_THROUGHPUT "
        "--accelerator-topology=2x2x2"
    )
    created = pool.create()
    assert {"--placement-policy=first", "--machine-type=tpu7x-standard-4t", "--num-nodes=2"} <= set(created)
    assert {"--reservation-affinity=specific", "--reservation=projects/other/reservations/r1"} <= set(created)
    assert not any(word.startswith(("--tpu-topology", "--placement-type")) for word in created)
    assert policy.delete()[-1] == "--quiet"


@pytest.mark.parametrize("topology", ["tpu7x:2x2x1", "v6e:2x4"])
def test_node_pools_of_one_vm_have_no_placement(topology):
    words = ("--machine_type=ct6e-standard-8t", "--zone=us-east5-a") if topology == "v6e:2x4" else ()
    (pool,) = resources(f"--topology={topology}", "--zone=us-central1-c", *words)
    assert "--num-nodes=1" in pool.create()
    assert not any("topology" in word or "placement" in word for word in pool.create())
