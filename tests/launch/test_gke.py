"""Tests for launch/gke.py: calls of kubectl and gcloud, and invalid arguments."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).resolve().parents[2] / "launch/gke.py"
IMAGE = "--image=registry.example.com/images/t5x_like:first"
COMMAND = ["--", "t5x_like", "train", "--gin.MODEL_DIR=gs://my-bucket/runs/first"]
PLACE = ["--cluster=my-cluster", "--zone=us-west4-a"]
# Logs its arguments, and saves the input of `kubectl apply`. A call whose arguments contain $FAIL fails.
PROGRAM = """#!/usr/bin/env bash
printf '%s\\n' "${0##*/} $*" >>"$LOG"
[[ $* == *apply* ]] && cat >"$LOG.json"
if [[ ${FAIL:-} && $* == *$FAIL* ]]; then echo "error: $FAIL" >&2; exit 3; fi
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


@pytest.fixture
def programs(tmp_path):
    """Returns a function that runs gke.py with a fake kubectl and gcloud, and returns their calls."""
    for name in ("kubectl", "gcloud"):
        (tmp_path / name).write_text(PROGRAM)
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log"

    def run(*words: str, **options) -> list[str]:
        log.write_text("")
        run.stderr = gke(*words, PATH=f"{tmp_path}:/usr/bin:/bin", LOG=str(log), **options).stderr
        return log.read_text().splitlines()

    run.manifest = lambda: json.loads((tmp_path / "log.json").read_text())
    return run


def test_apply_checks_jobset_and_sends_manifest(programs):
    explain = "kubectl explain jobset.spec.failurePolicy.rules --api-version=jobset.x-k8s.io/v1alpha2"
    assert programs("apply", "first", IMAGE, "--topology=v6e:4x4", *COMMAND) == [explain, "kubectl apply --filename=-"]
    assert programs.manifest()["metadata"]["name"] == "first"


def test_apply_without_failure_policy_rules_names_the_jobset_version(programs):
    calls = programs("apply", "first", IMAGE, "--topology=v6e:4x4", *COMMAND, code=2, FAIL="failurePolicy.rules")
    assert not any("apply" in call for call in calls)
    assert "error: failurePolicy.rules. The cluster needs JobSet 0.6.0 or later" in programs.stderr


def test_actions_call_kubectl_in_the_namespace(programs):
    selected = "--selector=jobset.sigs.k8s.io/jobset-name=first"
    calls = [call for action in ("status", "logs", "delete") for call in programs(action, "first", "--namespace=lab")]
    assert calls == [
        "kubectl --namespace=lab get jobset first",
        f"kubectl --namespace=lab get pods {selected}",
        f"kubectl --namespace=lab logs --follow --tail=50 {selected},jobset.sigs.k8s.io/job-index=0,"
        "batch.kubernetes.io/job-completion-index=0",
        "kubectl --namespace=lab delete jobset first",
    ]
    programs("status", "first", code=3, FAIL="get pods")
    assert "kubectl not found" in gke("status", "first", code=1).stderr


def test_nodes_prints_commands_and_calls_nothing(programs):
    words = ("nodes", "first", *PLACE, "--topology=v5e:4x4", "--num_slices=2", "--spot")
    assert programs(*words) == []
    created = gke(*words).stdout.splitlines()
    deleted = gke(*words, "--delete").stdout.splitlines()
    assert [line.split(" --")[0] for line in [*created, *deleted]] == [
        f"gcloud container node-pools {verb} first-{index}" for verb in ("create", "delete") for index in (0, 1)
    ]


def test_dry_run_prints_command_with_manifest():
    words = ["--topology=v5e:4x4", "--num_slices=2", "--dry_run"]
    command = [*COMMAND, "--gin.DCN={'data': 2}"]
    cost, run, *lines = gke("apply", "first", IMAGE, *words, "--hours=2", *command).stdout.splitlines()
    assert cost.startswith("# cost per hour: 38.40 USD (32 v5e at 1.20 USD") and run.startswith(
        "# cost of the run: 76.80"
    )
    assert lines[0] == "kubectl apply --filename=- <<'JSON'" and lines[-1] == "JSON"
    assert json.loads("\n".join(lines[1:-1]))["kind"] == "JobSet"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["apply", "First", IMAGE, "--topology=v5e:4x4", *COMMAND], "job name 'First'"),
        (["apply", "first", "--topology=v5e:4x4", *COMMAND], "--image=None is not an image name"),
        (["apply", "first", "--image=Up:1", "--topology=v5e:4x4", *COMMAND], "--image=Up:1"),
        (["apply", "first", IMAGE, *COMMAND], "no slice given"),
        (["apply", "first", IMAGE, "--topology=v5e:4x4", "--", "t5x_like", "train"], "without --gin.MODEL_DIR"),
        (["apply", "first", IMAGE, "--topology=v5e:4x4", "--num_slices=2", *COMMAND], "Add --gin.DCN=\"{'data': 2}\""),
        (["print", "first", IMAGE, "--topology=v5p:8x4x4", *COMMAND], "Write --topology=v5p:4x4x8"),
        (["apply", "first", IMAGE, "--type=v4-512", "--topology=16x4x4", *COMMAND], "Write --topology=v4:4x4x16"),
        (
            ["apply", "first", IMAGE, "--topology=v5e:4x4", "--grace=-3", *COMMAND],
            "--grace=-3: below the minimum. Give at least 1",
        ),
        (
            ["apply", "first", IMAGE, "--topology=v5e:4x4", "--max_restarts=-1", *COMMAND],
            "--max_restarts=-1: below the minimum. Give at least 0",
        ),
        (["apply", "first", IMAGE, "--topology=v5e:4x4", "--env=A", *COMMAND], "--env=A: not NAME=VALUE"),
        (["delete", "first", "--namespace=No"], "--namespace 'No'"),
        (["print", "first", IMAGE, "--topology=v5e:4x4", "--queue=A_b", *COMMAND], "--queue 'A_b'"),
        (
            ["print", "first", IMAGE, "--topology=v6e:2x2", "--num_slices=2", *COMMAND],
            "v6e:2x2 has one VM (ct6e-standard-4t). Choose a larger topology.",
        ),
        (
            [
                "print",
                "first",
                IMAGE,
                "--topology=v5e:2x4",
                "--machine_type=ct5lp-hightpu-8t",
                "--num_slices=2",
                *COMMAND,
            ],
            "Choose a larger topology or --machine_type=ct5lp-hightpu-4t.",
        ),
        (
            ["print", "first", IMAGE, "--topology=v5e:4x4", "--machine_type=ct5lp-hightpu-8t", *COMMAND],
            "Available: ct5lp-hightpu-4t (4 VMs)",
        ),
        (
            ["print", "first", IMAGE, "--topology=v5e:2x4", "--machine_type=ct6e-standard-4t", *COMMAND],
            "Available: ct5lp-hightpu-4t (2 VMs), ct5lp-hightpu-8t (1 VM)",
        ),
        (
            ["print", "first", IMAGE, "--topology=v5e:4x4", "--spot", "--reservation=r1", *COMMAND],
            "--spot and --reservation exclude each other",
        ),
        (
            ["print", "first", IMAGE, "--topology=v5e:4x4", "--reservation=projects/p/reservations/r", *COMMAND],
            "--reservation=projects/p/reservations/r is not a name. Give the name, if needed with a block",
        ),
        (
            ["print", "first", IMAGE, "--topology=v5e:4x4", "--reservation_project=other", *COMMAND],
            "without --reservation. Add --reservation=NAME",
        ),
        (
            ["print", "first", IMAGE, "--topology=v5e:4x4", "--host_network", "--service_account=a", *COMMAND],
            "has no effect with --host_network",
        ),
        (["print", "first", IMAGE, "--topology=v5e:4x4", "--service_account=A", *COMMAND], "--service_account 'A'"),
        (["nodes", "first", "--zone=us-west4-a", "--topology=v5e:4x4"], "--cluster is missing"),
        (["nodes", "first", "--cluster=c", "--topology=v5e:4x4"], "--zone is missing"),
        (["nodes", "first", "--cluster=c", "--zone=us-west4-c", "--topology=v5e:4x4"], "did you mean us-west4-"),
        (
            ["nodes", "first", *PLACE, "--location=us-east5", "--topology=v5e:4x4"],
            "--location=us-east5: --zone=us-west4-a is not part of it",
        ),
        (["nodes", 40 * "a", *PLACE, "--topology=v5e:4x4"], "node pool"),
        (["nodes", "first", *PLACE, "--gpus=nvidia-l4:1"], "nodes prints commands for TPUs. docs/gke.md shows"),
        (["print", "first", IMAGE, "--gpus=h100", *COMMAND], "--gpus=h100: not an accelerator and a number per node"),
        (["print", "first", IMAGE, "--gpus=nvidia-l4:1", "--topology=v5e:4x4", *COMMAND], "--gpus and --topology excl"),
        (["print", "first", IMAGE, "--gpus=nvidia-l4:1", "--num_slices=2", *COMMAND], "Give --nodes, the number of"),
        (["print", "first", IMAGE, "--topology=v5e:4x4", "--nodes=2", *COMMAND], "--nodes=2 is for --gpus"),
        (
            ["print", "first", IMAGE, "--topology=v5e:4x4", "--spot", "--grace=120", *COMMAND],
            "--grace=120: GKE gives pods on spot nodes 15 s, and at most 105 s from version 1.35.0-gke.1171000 on.",
        ),
        (["print", "first", IMAGE, "--topology=v5e:4x4", "--spot", "--flex_start", *COMMAND], "exclude each other"),
    ],
)
def test_invalid_arguments_exit_before_a_cloud_is_called(words, message):
    assert message in gke(*words, code=2).stderr
