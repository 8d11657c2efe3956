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
    import protocol
    import slices
    import supervise
finally:
    sys.path.pop(0)

IMAGE = "--image=registry.example.com/images/t5x_like:first"
COMMAND = ["t5x_like", "train", "--gin.MODEL_DIR=gs://my-bucket/runs/first", "--gin.TASK=yes", "--gin.N=two words"]
CASES = {
    "v5e_2x4_two_slices_spot": ("--topology=v5e:2x4", "--num_slices=2", "--spot"),
    "v6e_2x4_one_vm_queue": ("--topology=v6e:2x4", "--machine_type=ct6e-standard-8t", "--queue=team"),
    "v5p_4x4x8_reservation": ("--topology=v5p:4x4x8", "--reservation=pool", "--reservation_project=other"),
    "h100_two_nodes": ("--gpus=nvidia-h100-80gb:8", "--nodes=2", "--spot"),
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
# The options of its node pool for tpu7x, 2x2x2, spot (recipes/Cluster_create_for_multi-host_nodepool.md).
XPK_POOL = {
    "--location": "us-central1",
    "--cluster": "golden-cluster",
    "--project": "golden-project",
    "--node-locations": "us-central1-a",
    "--machine-type": "tpu7x-standard-4t",
    "--host-maintenance-interval": "AS_NEEDED",
    "--spot": "",
    "--placement-policy": "tpu7x-16-2x2x2-placement-policy",
    "--enable-gvnic": "",
    "--node-version": "0",
    "--num-nodes": "2",
    "--scopes": "storage-full,gke-default,https://www.googleapis.com/auth/cloud-platform",
    "--max-pods-per-node": "15",
}


def differences() -> list[str]:
    """Returns the documented differences: starts of paths below `spec`, and options."""
    section = (ROOT / "docs/launch.md").read_text().partition("## Compared with xpk")[2]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def test_options_of_node_pools_equal_those_of_xpk_except_documented_ones():
    words = [f"--{name}={XPK_POOL[f'--{name}']}" for name in ("cluster", "project", "location")]
    options = ["--topology=tpu7x:2x2x2", "--zone=us-central1-a", "--unlisted_zone", "--spot", *words]
    parsed = gke.make_parser().parse_args(["nodes", XPK_POOL["--placement-policy"], *options])
    pool = gke_nodes.commands(parsed, gke.check(parsed, []))[-1]
    ours = {name: value for name, _, value in (word.partition("=") for word in pool if word.startswith("--"))}
    different = {name for name in {**XPK_POOL, **ours} if ours.get(name) != XPK_POOL.get(name)}
    assert different == {name for name in differences() if name.startswith("--")}


def test_fields_equal_those_of_xpk_except_documented_ones():
    made = manifest("--topology=v5p:2x2x1")
    ours = flattened({"spec": job(made)})
    missing = object()
    different = [
        path.removeprefix("spec.") for path in {**XPK, **ours} if ours.get(path, missing) != XPK.get(path, missing)
    ]
    documented = tuple(name for name in differences() if not name.startswith("--"))
    assert [path for path in different if not path.startswith(documented)] == []
    assert [start for start in documented if not any(path.startswith(start) for path in different)] == []
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


def test_exhausted_memory_is_restarted_until_the_supervisor_counts_no_progress():
    """The kernel kills the supervisor with its command, so the pod has code 137, like one that was evicted late."""
    made = manifest("--topology=v5e:4x4")
    assert 137 in job(made)["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"]
    assert "--run=gs://my-bucket/runs/first" in container(made)["command"]
    assert supervise.NO_PROGRESS not in gke_manifest.RESTARTED_CODES
    assert protocol.MAX_STARTS < made["spec"]["failurePolicy"]["maxRestarts"]


def test_local_checkpoints_are_in_memory_and_not_on_the_boot_disk():
    made = manifest("--topology=v5e:4x4")
    (volume,) = pod(made)["volumes"]
    assert volume == {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
    assert container(made)["volumeMounts"] == [{"name": "shared-memory", "mountPath": "/dev/shm"}]


@pytest.mark.parametrize(
    ("words", "seconds"), [((), 120), (("--grace=60",), 60), (("--spot",), 15), (("--spot", "--grace=105"), 105)]
)
def test_grace_period_is_the_one_that_the_node_has(words, seconds):
    assert pod(manifest("--topology=v5e:4x4", *words))["terminationGracePeriodSeconds"] == seconds


def test_gpu_pods_find_each_other_and_use_the_driver():
    made = manifest("--gpus=nvidia-h100-80gb:8", "--nodes=4")
    assert job(made)["parallelism"] == job(made)["completions"] == 4
    assert "annotations" not in made["metadata"] and "initContainers" not in pod(made)
    assert pod(made)["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert pod(made)["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert container(made)["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    variables = {each["name"]: each for each in container(made)["env"]}
    assert variables["JAX_PLATFORMS"]["value"] == "cuda,cpu"
    assert variables["T5X_LIKE_COORDINATOR"]["value"] == "first-slice-0-0.first:8476"
    assert variables["T5X_LIKE_NUM_PROCESSES"]["value"] == "4"
    path = variables["T5X_LIKE_PROCESS_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    alone = container(manifest("--gpus=nvidia-l4:1"))
    assert {each["name"] for each in alone["env"]} == {"JAX_PLATFORMS", "LD_LIBRARY_PATH"}


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
        {"name": "JAX_PLATFORMS", "value": "tpu,cpu"},
        {"name": "LIBTPU_INIT_ARGS", "value": "--a=true --b"},
        {"name": "QUOTED", "value": "'$$(HOSTNAME) $$$$x: #\""},
        {"name": "EMPTY", "value": ""},
    ]
    assert made["args"][-1] == "--gin.A=$$(B)"


def commands(*words: str) -> list[list[str]]:
    options = gke.make_parser().parse_args(["nodes", "first", "--cluster=c", *words])
    return gke_nodes.commands(options, gke.check(options, []))


def test_node_pools_of_tpu7x_use_a_workload_policy():
    words = ("--topology=tpu7x:2x2x2", "--zone=us-central1-c", "--reservation=r1", "--reservation_project=other")
    policy, pool = commands(*words)
    assert " ".join(policy) == (
        "gcloud compute resource-policies create workload-policy first --region=us-central1 --type=HIGH_THROUGHPUT "
        "--accelerator-topology=2x2x2"
    )
    assert {"--placement-policy=first", "--machine-type=tpu7x-standard-4t", "--num-nodes=2"} <= set(pool)
    assert {"--reservation-affinity=specific", "--reservation=projects/other/reservations/r1"} <= set(pool)
    assert not any(word.startswith(("--tpu-topology", "--placement-type")) for word in pool)
    pools, policy = commands(*words, "--delete")
    assert pools[:5] == ["gcloud", "container", "node-pools", "delete", "first-0"] and "--async" not in pools
    assert policy[:5] == ["gcloud", "compute", "resource-policies", "delete", "first"] and policy[-1] == "--quiet"


@pytest.mark.parametrize("topology", ["tpu7x:2x2x1", "v6e:2x4"])
def test_node_pools_of_one_vm_have_no_placement(topology):
    words = ("--machine_type=ct6e-standard-8t", "--zone=us-east5-a") if topology == "v6e:2x4" else ()
    (pool,) = commands(f"--topology={topology}", "--zone=us-central1-c", *words)
    assert "--num-nodes=1" in pool
    assert not any("topology" in word or "placement" in word for word in pool)


# What xpk adds for each kind of capacity (core/capacity.py and the dry run of `cluster create`).
@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ((), []),
        (("--spot",), ["--spot"]),
        (("--spot", "--grace=105"), ["--spot", "--system-config-from-file=launch/spot_nodes.yaml"]),
        (
            ("--flex_start",),
            [
                *("--flex-start", "--enable-autoscaling", "--location-policy=ANY", "--reservation-affinity=none"),
                *("--no-enable-autorepair", "--max-nodes=4"),
            ],
        ),
        (
            ("--reservation=pool/reservationBlocks/b1/reservationSubBlocks/s2",),
            [
                "--reservation-affinity=specific",
                "--reservation=pool/reservationBlocks/b1/reservationSubBlocks/s2",
            ],
        ),
        (("--spot", "--max_run_duration=172800s"), ["--spot", "--max-run-duration=172800s"]),
    ],
)
def test_node_pools_are_created_in_parallel_with_the_flags_of_their_capacity(words, flags):
    pools = commands("--topology=v5e:4x4", "--zone=us-west4-a", "--num_slices=2", *words)
    for index, pool in enumerate(pools):
        assert pool[:5] == ["gcloud", "container", "node-pools", "create", f"first-{index}"]
        size = 0 if "--flex_start" in words else 4
        place = ["--cluster=c", "--location=us-west4", "--node-locations=us-west4-a", "--machine-type=ct5lp-hightpu-4t"]
        shape = [f"--num-nodes={size}", "--placement-type=COMPACT", "--tpu-topology=4x4"]
        scopes = "--scopes=https://www.googleapis.com/auth/cloud-platform"
        assert pool[5:] == [*place, *shape, *flags, "--disk-size=200", "--enable-gvnic", scopes, "--async"]


def test_labels_follow_the_capacity():
    flex = pod(manifest("--topology=v5e:4x4", "--flex_start"))["nodeSelector"]
    assert flex["cloud.google.com/gke-flex-start"] == "true"
    block = pod(manifest("--topology=v5e:4x4", "--reservation=pool/reservationBlocks/b1"))["nodeSelector"]
    assert block["cloud.google.com/reservation-name"] == "pool"


def test_settings_of_spot_nodes_give_pods_the_longest_grace_period():
    text = (ROOT / gke_nodes.SPOT_SETTINGS).read_text()
    seconds = {name: int(value) for name, value in re.findall(r"^  (\w+): (\d+)$", text, re.MULTILINE)}
    total = seconds["shutdownGracePeriodSeconds"]
    assert total - seconds["shutdownGracePeriodCriticalPodsSeconds"] == gke.MAX_SPOT_GRACE_SECONDS
