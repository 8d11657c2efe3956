"""Tests for launch/tpu.py with a fake cloud: whole runs on workers that boot, install and end by themselves."""

import json
import signal
import sys
import time
from pathlib import Path

import pytest
from google.cloud import tpu_v2

pytestmark = pytest.mark.full

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    from generations import GENERATIONS
finally:
    sys.path.pop(0)

SLICE = ["--topology=v5e:4x4", "--zone=us-west4-a"]
ZONE = ["--zone=us-west4-a"]
RUN = "gs://my-bucket/runs/first"
JOB = f"{RUN}/launch/first"
COMMAND = ["--", "t5x_like", "train", f"--gin.MODEL_DIR={RUN}", "--gin.NAME=two words"]
DCN = "--gin.DCN={'data': 2}"
QUICK = "--poll_seconds=0.2"


def until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_request_carries_the_job_and_the_workers_run_it_without_ssh(cloud):
    cloud.set(plan=[["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]], outcomes=[0], workers=2)
    (cloud.checkout / "notes.txt").write_text("not committed")
    (cloud.checkout / ".gitignore").write_text("runs/\n")
    (cloud.checkout / "runs").mkdir()
    (cloud.checkout / "runs/large").touch()
    environment = {"LIBTPU_INIT_ARGS": "--xla_a=true --xla_b='x y'", "HF_HOME": '$HOME/a "b"; exit 9', "EMPTY": ""}
    variables = [f"--env={name}={value}" for name, value in environment.items()]
    result = cloud.tpu("train", "first", *SLICE, "--spot", QUICK, *variables, *COMMAND)
    assert "first: the job is done" in result.stderr and "VMs incur costs until" in result.stderr
    states = [line.split(": ")[-1] for line in result.stderr.splitlines() if line.startswith("tpu.py: first: ")]
    assert "ready" in states and cloud.calls() == [], "no call of gcloud, and so no SSH"
    assert sorted(run[0] for run in cloud.runs()) == ["first-w0", "first-w1"]
    for worker, directory, arguments, seen in cloud.runs():
        assert directory == str(cloud.home(worker) / "t5x_like") and arguments == COMMAND[2:]
        assert {name: seen[name] for name in environment} == environment
        assert seen["JAX_PLATFORMS"] == "tpu,cpu" and seen["T5X_LIKE_SUPERVISED"] == "1"
    assert (cloud.home("first-w1") / "t5x_like/notes.txt").exists()
    assert not (cloud.home("first-w1") / "t5x_like/runs").exists()
    stored = json.loads((cloud.bucket(JOB) / "job.json").read_text())
    assert stored["command"] == COMMAND[1:] and stored["commit"]
    logs = cloud.tpu("logs", "first", *ZONE, "--worker=1").stdout
    assert "training: 0" in logs
    assert cloud.tpu("logs", "first", *ZONE, f"--model_dir={RUN}").stdout.count("training: 0") == 1
    status = cloud.tpu("status", "first", *ZONE).stdout
    assert status.startswith("first: ready\n") and "worker 0-1: ended with exit code 0" in status
    assert f"{RUN}: no step recorded yet" in status
    missing = cloud.tpu("logs", "first", *ZONE, "--worker=7", code=1).stderr
    assert f"{JOB}/logs/0-7: no log found" in missing


@pytest.mark.parametrize("generation", [name for name, each in GENERATIONS.items() if each.runtime_version])
def test_every_generation_of_the_api_is_requested(cloud, generation):
    found = GENERATIONS[generation]
    topology = f"--topology={generation}:{'x'.join(map(str, found.shapes[-1]))}"
    words = ["train", "first", topology, f"--zone={found.zones[0]}", "--dry_run", *COMMAND]
    shown = cloud.tpu(*words).stdout
    request = json.loads(shown[shown.index("\n{") : shown.index("\n}") + 2])
    (spec,) = request["tpu"]["nodeSpec"]
    assert spec["node"]["runtimeVersion"] == found.runtime_version and cloud.requests == 0
    assert spec["node"]["metadata"]["t5x-like-job"] == JOB
    assert tpu_v2.QueuedResource.from_json(json.dumps(request)).tpu.node_spec[0].node_id == "first"


def test_edited_checkout_is_not_shipped_by_a_recovery(cloud):
    cloud.set(plan=[["ACTIVE"], ["PROVISIONING", "ACTIVE"]], outcomes=["preempt", 0])
    (cloud.checkout / "version.py").write_text("1")
    process = cloud.start("train", "first", *SLICE, "--spot", "--delete_when_done", QUICK, *COMMAND)
    until(cloud.runs)
    (cloud.checkout / "version.py").write_text("2")
    until(lambda: len(cloud.runs()) == 2)
    assert (cloud.home("first-w0") / "t5x_like/version.py").read_text() == "1"
    log = cloud.wait(process).stderr
    assert "first: SUSPENDED; creating it again in 0.2 s (1 of 100)" in log
    assert "first is deleted and incurs no more costs" in log and cloud.resources == {}
    assert cloud.changes == ["create", "delete", "create", "delete"]
    assert len(list((cloud.bucket(JOB)).glob("code-*"))) == 1


@pytest.mark.full
def test_second_call_continues_with_the_stored_code_unless_told_to_repack(cloud):
    cloud.set(plan=[["ACTIVE"]], outcomes=["wait", "wait"])
    first = cloud.start("train", "first", *SLICE, QUICK, *COMMAND)
    until(cloud.runs)
    first.kill()
    first.communicate()
    (cloud.checkout / "version.py").write_text("2")
    second = cloud.start("train", "first", *SLICE, QUICK, *COMMAND)
    lines = iter(second.stderr.readline, "")
    assert any("this checkout differs from it. --repack replaces the code" in line for line in lines)
    assert any("first: ready" in line for line in lines)
    second.kill()
    second.communicate()
    assert len(cloud.runs()) == 1
    third = cloud.start("train", "first", *SLICE, QUICK, "--repack", *COMMAND)
    until(lambda: len(cloud.runs()) == 2)
    assert (cloud.home("first-w0") / "t5x_like/version.py").exists()
    cloud.tpu("stop", "first", *ZONE)
    log = cloud.wait(third, code=75).stderr
    assert "first: the job was stopped, on request or" in log and "what remains: first" in log
    assert len(cloud.resources) == 1


def test_failure_on_one_worker_ends_the_others_and_deletes_on_request(cloud):
    cloud.set(plan=[["ACTIVE"]], outcomes=[2], workers=2)
    worker = cloud.directory / "bin/fake_t5x_like"
    worker.write_text(worker.read_text().replace("outcome = 0\n", "outcome = 'wait'\n", 1))
    result = cloud.tpu("train", "first", *SLICE, "--delete_when_done", QUICK, *COMMAND, code=2)
    assert "the job failed: exit code 2 on worker 0-0" in result.stderr
    assert "first is deleted" in result.stderr and cloud.resources == {}
    (log,) = (cloud.bucket(JOB) / "logs/0-0").glob("*.log")
    assert "training: 2" in log.read_text()


@pytest.mark.full
def test_workers_end_an_unattended_job_and_delete_the_tpu(cloud):
    """The watcher is gone when the job fails: the other worker stops by itself, and the first one deletes the TPU."""
    cloud.set(plan=[["ACTIVE"]], outcomes=["wait"], workers=2)
    worker = cloud.directory / "bin/fake_t5x_like"
    worker.write_text(worker.read_text().replace("outcome = 0\n", "outcome = 'wait'\n", 1))
    process = cloud.start("train", "first", *SLICE, "--delete_when_done", QUICK, *COMMAND)
    until(lambda: len(cloud.runs()) == 2)
    process.kill()
    process.communicate()
    file = cloud.bucket(JOB) / "job.json"
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({**stored, "delete_seconds": 0}))
    ends = cloud.bucket(JOB) / "ends" / stored["id"]
    ends.mkdir(parents=True)
    (ends / "0-1.json").write_text(json.dumps({"worker": "0-1", "exit_code": 1}) + "\n")
    until(lambda: cloud.resources == {})
    assert json.loads((ends / "0-0.json").read_text())["exit_code"] == 1


@pytest.mark.full
def test_tpu_over_its_time_is_deleted(cloud):
    cloud.set(plan=[["ACTIVE"]], outcomes=["wait"])
    result = cloud.tpu("train", "first", *SLICE, "--spot", "--max_run_duration=1s", QUICK, *COMMAND, code=75)
    assert "the job was stopped, on request or after --max_run_duration" in result.stderr
    assert "first is deleted" in result.stderr and cloud.resources == {}


@pytest.mark.full
def test_killed_supervisor_is_started_again(cloud):
    cloud.set(plan=[["ACTIVE"]], outcomes=["kill", 0])
    result = cloud.tpu("train", "first", *SLICE, QUICK, *COMMAND)
    assert "the job is done" in result.stderr and len(cloud.runs()) == 2


@pytest.mark.full
def test_worker_that_cannot_install_ends_the_job(cloud):
    cloud.set(plan=[["ACTIVE"]])
    script = cloud.checkout / "launch/install_worker.sh"
    script.write_text("#!/usr/bin/env bash\necho 'OSError: No space left on device' >&2\nexit 1\n")
    result = cloud.tpu("train", "first", *SLICE, QUICK, *COMMAND, code=1)
    assert "the job failed: exit code 1 on worker 0-0. `tpu.py logs` shows the output" in result.stderr
    assert "No space left on device" in cloud.tpu("logs", "first", *ZONE).stdout


@pytest.mark.full
def test_damaged_archive_is_not_run(cloud):
    cloud.set(plan=[["ACTIVE"]])
    process = cloud.start("train", "first", *SLICE, QUICK, *COMMAND)
    directory = cloud.bucket(JOB)
    until(lambda: list(directory.glob("code-*.gz")))
    (code,) = directory.glob("code-*.gz")
    code.write_bytes(code.read_bytes()[:-1] + b"x")
    boot = cloud.home("first-w0") / "boot"
    until(lambda: boot.exists() and "does not have its SHA-256" in boot.read_text())
    process.kill()
    process.communicate()
    assert cloud.runs() == []


def test_deletion_ends_a_watching_call(cloud):
    cloud.set(plan=[["ACTIVE"]], outcomes=["wait"])
    process = cloud.start("train", "first", *SLICE, QUICK, *COMMAND)
    until(cloud.runs)
    cloud.tpu("delete", "first", *ZONE)
    cloud.wait(process, code=75)
    assert cloud.changes == ["create", "delete"]
    until(lambda: cloud.tpu("status", "first", *ZONE).stdout.startswith("first: absent\n"))
    absent = cloud.tpu("delete", "first", *ZONE, code=1).stderr
    assert "first not found. Check --zone and --project." in absent


@pytest.mark.parametrize("action", ["status", "logs", "stop", "delete"])
def test_every_action_supports_dry_run(cloud, action):
    result = cloud.tpu(action, "first", *ZONE, "--dry_run")
    assert "GET https://tpu.googleapis.com/v2/projects/PROJECT/locations/us-west4-a/queuedRes" in result.stdout
    assert cloud.requests == 0


@pytest.mark.full
def test_interrupted_watcher_leaves_the_job_to_the_next_one_at_once(cloud):
    cloud.set(plan=[["ACTIVE"]], outcomes=["wait"])
    process = cloud.start("train", "first", *SLICE, QUICK, *COMMAND)
    until(cloud.runs)
    process.send_signal(signal.SIGINT)
    cloud.wait(process, code=130)
    claim = json.loads((cloud.bucket(JOB) / "watcher.json").read_text())
    assert claim["count"] == -1 and len(cloud.resources) == 1


def test_fetch_excludes_checkpoints_by_default(cloud, tmp_path):
    cloud.tpu("fetch", RUN, str(tmp_path / "first"))
    words = ["storage", "rsync", "--recursive", "--exclude=^(checkpoints|compilation_cache)/.*", RUN]
    assert cloud.calls() == [[*words, f"{tmp_path}/first"]]
    cloud.tpu("fetch", RUN, str(tmp_path / "first"), "--checkpoints")
    assert "--exclude=^compilation_cache/.*" in cloud.calls()[0]
