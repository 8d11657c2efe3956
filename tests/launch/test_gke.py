"""Tests for launch/gke.py: fields of the manifest, calls of kubectl, and invalid arguments."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "launch/gke.py"
DISTRIBUTED = SCRIPT.parents[1] / "t5x_like/runtime/distributed.py"
IMAGE = "--image=registry.example.com/images/t5x_like:first"
COMMAND = [
    "--",
    "t5x_like",
    "train",
    "--gin.MODEL_DIR=gs://my-bucket/runs/first",
    "--gin.TASK=yes",
    "--gin.N=two words",
]
# Logs its arguments and saves its input.
KUBECTL = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$LOG"
[ "$1" = apply ] && cat >"$LOG.json"
exit "${STATUS:-0}"
"""


def gke(*words: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess:
    result = subprocess.run(
        [sys.executable, SCRIPT, *words],
        env={"PATH": "/nowhere", "VENV": "/no/such/environment", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == code, result.stderr
    return result


def manifest(*words: str, more: tuple[str, ...] = ()) -> dict:
    return json.loads(gke("print", "first", IMAGE, *words, *COMMAND, *more).stdout)


def test_manifest_has_one_job_per_slice_and_one_pod_per_vm():
    spec = manifest("--topology=v5e:4x4", "--num_slices=3", more=("--gin.DCN={'data': 3}",))["spec"]
    (replicated,) = spec["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (replicated["replicas"], job["parallelism"], job["completions"]) == (3, 4, 4)
    pod = job["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert pod["containers"][0]["resources"] == {"limits": {"google.com/tpu": 4}}
    assert pod["hostNetwork"] is True


@pytest.mark.parametrize("topology", ["v5p:4x4x8", "v4:2x2x1", "v5p:2x2x2", "v5e:4x8"])
def test_topology_matches_node_label(topology):
    pod = manifest(f"--topology={topology}")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == topology.partition(":")[2]


def test_container_gets_command_unchanged():
    pod = manifest("--type=v5litepod-8")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["args"] == COMMAND[1:]
    assert container["command"][1:3] == ["/opt/t5x_like/launch/supervise.py", "run"]
    assert container["command"][-2:] == ["--on_preempted=exit", "--"]
    assert container["resources"] == {"limits": {"google.com/tpu": 8}}
    assert "hostNetwork" not in pod


def test_container_gets_environment_variables():
    definitions = ("--env=LIBTPU_INIT_ARGS=--a=true --b", "--env=QUOTED='$(HOSTNAME) $$x: #\"", "--env=EMPTY=")
    pod = manifest("--topology=v5e:4x4", *definitions)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"][
        "spec"
    ]
    # Kubernetes replaces $$ by $, and would expand $(NAME) without the escape.
    assert pod["containers"][0]["env"] == [
        {"name": "LIBTPU_INIT_ARGS", "value": "--a=true --b"},
        {"name": "QUOTED", "value": "'$$(HOSTNAME) $$$$x: #\""},
        {"name": "EMPTY", "value": ""},
    ]
    assert (
        "env"
        not in manifest("--topology=v5e:4x4")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
            "containers"
        ][0]
    )


def test_variable_references_in_command_are_escaped():
    pod = manifest("--topology=v5e:4x4", more=("--gin.A=$(B)",))["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert pod["template"]["spec"]["containers"][0]["args"][-1] == "--gin.A=$$(B)"


def test_image_pull_policy_is_always():
    pod = manifest("--topology=v5e:4x4")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["imagePullPolicy"] == "Always"


def test_preemption_restarts_all_pods_and_failure_does_not():
    spec = manifest("--topology=v4:2x2x2", "--spot", "--max_recreations=7")["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    # Evicted pods restart the whole set, whatever their exit code, as do lost nodes and the listed exit codes. Other
    # exit codes fail the job permanently.
    assert job["podFailurePolicy"]["rules"] == [
        {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [75, 137, 143]}},
    ]
    assert spec["failurePolicy"]["maxRestarts"] == 7
    assert spec["failurePolicy"]["rules"] == [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]
    assert job["backoffLimit"] == 0 and job["template"]["spec"]["restartPolicy"] == "Never"
    assert job["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-spot"] == "true"


def test_restarts_outlast_the_recovery_of_a_lost_node():
    pod = manifest("--topology=v5e:4x4")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    words = dict(word[2:].split("=") for word in pod["containers"][0]["command"] if "=" in word)
    arrival = int(re.search(r"^ARRIVAL_SECONDS = (\d+)", DISTRIBUTED.read_text(), re.MULTILINE)[1])
    # A node without a heartbeat is repaired after ten minutes, and its pods are given up after at most an hour.
    assert int(words["max_restarts"]) * (int(words["delay"]) + arrival) >= 70 * 60
    assert int(words["max_restarts"]) * int(words["delay"]) >= 10 * 60  # even if each start fails immediately


def test_kubectl_gets_manifest_and_arguments(tmp_path):
    log = tmp_path / "log"
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LOG": str(log)}
    gke("apply", "first", IMAGE, "--topology=v6e:4x4", *COMMAND, **environment)
    assert log.read_text() == "apply --filename=-\n"
    assert json.loads((tmp_path / "log.json").read_text())["metadata"]["name"] == "first"
    for action in ("status", "logs", "delete"):
        gke(action, "first", "--namespace=research", **environment)
    calls = log.read_text().splitlines()[1:]
    assert calls[0] == "--namespace=research get jobset first"
    assert calls[1] == "--namespace=research get pods --selector=jobset.sigs.k8s.io/jobset-name=first"
    assert calls[2].startswith("--namespace=research logs --follow") and calls[2].endswith("job-completion-index=0")
    assert calls[3] == "--namespace=research delete jobset first"
    gke("status", "first", code=3, STATUS="3", **environment)
    assert "kubectl not found" in gke("status", "first", code=1).stderr


def test_dry_run_prints_command_with_manifest():
    lines = gke("apply", "first", IMAGE, "--topology=v5e:4x4", "--dry_run", *COMMAND).stdout.splitlines()
    assert lines[0] == "kubectl apply --filename=- <<'JSON'" and lines[-1] == "JSON"
    assert json.loads("\n".join(lines[1:-1]))["kind"] == "JobSet"


@pytest.mark.parametrize(
    "text", ["yes", "null", "1e3", "a: b", "x #y", "", "0x1f", "~", "- a", "plain", "é", "2x2", "12:30"]
)
def test_manifest_preserves_arguments(text):
    printed = gke("print", "first", IMAGE, "--topology=v5e:4x4", *COMMAND, text).stdout
    loaded = json.loads(printed)
    args = loaded["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-1] == text, args[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["apply", "First", IMAGE, "--topology=v5e:4x4", *COMMAND], "job name 'First'"),
        (["apply", "first", "--topology=v5e:4x4", *COMMAND], "--image=None is not an image name"),
        (["apply", "first", "--image=Up:1", "--topology=v5e:4x4", *COMMAND], "--image=Up:1"),
        (["apply", "first", IMAGE, *COMMAND], "no slice given"),
        (["apply", "first", IMAGE, "--topology=v5e:2x4", "--num_slices=2", *COMMAND], "only slices of several VMs"),
        (["apply", "first", IMAGE, "--topology=v5e:4x4", "--", "t5x_like", "train"], "without --gin.MODEL_DIR"),
        (["apply", "first", IMAGE, "--topology=v5e:4x4", "--num_slices=2", *COMMAND], "Add --gin.DCN=\"{'data': 2}\""),
        (["print", "first", IMAGE, "--topology=v5p:8x4x4", *COMMAND], "Write --topology=v5p:4x4x8"),
        (["apply", "first", IMAGE, "--type=v4-512", "--topology=16x4x4", *COMMAND], "Write --topology=v4:4x4x16"),
        (
            ["apply", "first", IMAGE, "--topology=v5e:4x4", "--grace=-3", *COMMAND],
            "--grace=-3: below the minimum. Give at least 0",
        ),
        (
            ["apply", "first", IMAGE, "--topology=v5e:4x4", "--max_restarts=-1", *COMMAND],
            "--max_restarts=-1: below the minimum. Give at least 0",
        ),
        (["apply", "first", IMAGE, "--topology=v5e:4x4", "--env=A", *COMMAND], "--env=A: not NAME=VALUE"),
        (["delete", "first", "--namespace=No"], "--namespace 'No'"),
    ],
)
def test_invalid_arguments_exit_before_kubectl_is_called(words, message):
    assert message in gke(*words, code=2).stderr
