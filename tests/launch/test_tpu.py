"""Tests for launch/tpu.py with a fake cloud: order of the calls, and recreation after preemptions."""

import shlex
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    from generations import GENERATIONS
finally:
    sys.path.pop(0)

SLICE = ["--topology=v5e:4x4", "--zone=us-west4-a"]
ZONE = ["--zone=us-west4-a"]
ACTIONS = ("create", "describe", "scp", "ssh", "delete")
COMMAND = ["--", "t5x_like", "train", "--gin.MODEL_DIR=gs://my-bucket/runs/first", "--gin.NAME=two words"]
DCN = "--gin.DCN={'data': 2}"
QUICK = "--poll_seconds=0.2"


def test_train_creates_sets_up_and_follows(cloud):
    cloud.set(plan=[["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]], outcomes=[0])
    result = cloud.tpu("train", "first", *SLICE, "--spot", QUICK, *COMMAND)
    assert "the job is done" in result.stderr and "training: 0" in result.stdout
    assert "still exists and incurs costs" in result.stderr
    states = [line.split(": ")[-1] for line in result.stderr.splitlines() if line.startswith("tpu.py: first: ")]
    assert states[:4] == ["absent", "WAITING_FOR_RESOURCES", "PROVISIONING", "ready"]
    calls = cloud.calls()
    create = next(words for words in calls if "create" in words)
    assert create == [
        *("compute", "tpus", "queued-resources", "create", "first"),
        *("--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite", "--node-id=first", "--spot"),
        *("--quiet", "--zone=us-west4-a"),
    ]
    home, directory, arguments = cloud.runs()[0]
    assert directory == f"{home}/t5x_like"
    assert arguments == COMMAND[2:]
    assert (cloud.home("first-w0") / "t5x_like/constraints.txt").exists()


@pytest.mark.parametrize(
    ("generation", "backend"), [(name, backend) for name, each in GENERATIONS.items() for backend in each.backends]
)
def test_train_on_every_generation_and_backend(cloud, generation, backend):
    cloud.set(plan=[["ACTIVE"], ["ACTIVE"]], outcomes=["preempt", 0])
    found = GENERATIONS[generation]
    topology = f"--topology={generation}:{'x'.join(map(str, found.shapes[-1]))}"
    place = [f"--zone={found.zones[0]}", "--project=my-project", f"--backend={backend}"]
    result = cloud.tpu("train", "first", topology, *place, "--spot", "--delete_when_done", QUICK, *COMMAND)
    assert "the job is done" in result.stderr and len(cloud.runs()) == 2
    assert cloud.state()["resources"] == {}
    words = [word for words in cloud.calls() for word in words]
    if backend == "queued":
        assert f"--runtime-version={found.runtime_version}" in words
        assert f"--accelerator-type={found.type_prefix}-" in " ".join(words)
    else:
        assert f"--image-family={found.image_family}" in words
        assert f"--machine-type={found.machine_type.format(chips=4)}" in words


def test_preempted_tpu_is_recreated_and_command_restarted(cloud):
    cloud.set(plan=[["ACTIVE"], ["PROVISIONING", "ACTIVE"]], outcomes=["preempt", 0])
    result = cloud.tpu("train", "first", *SLICE, "--spot", QUICK, *COMMAND)
    assert "first: SUSPENDING; recreating it (1 of 100)" in result.stderr
    actions = cloud.actions()
    assert [actions.count(action) for action in ("create", "delete", "scp")] == [2, 1, 2]
    assert [arguments for _, _, arguments in cloud.runs()] == [COMMAND[2:], COMMAND[2:]]


VARIABLES = {"LIBTPU_INIT_ARGS": "--xla_a=true --xla_b='x y'", "HF_HOME": '$HOME/a "b"; exit 9', "EMPTY": ""}


def test_every_start_gets_environment_variables(cloud):
    cloud.set(plan=[["ACTIVE"], ["ACTIVE"]], outcomes=["preempt", 0])
    options = [f"--env={name}={value}" for name, value in VARIABLES.items()]
    cloud.tpu("train", "first", *SLICE, QUICK, *options, *COMMAND)
    seen = [{name: start.get(name) for name in VARIABLES} for start in cloud.environments()]
    assert seen == [VARIABLES, VARIABLES]


def test_dry_run_shows_environment_variables_in_each_start(cloud):
    options = [f"--env={name}={value}" for name, value in VARIABLES.items()]
    lines = cloud.tpu("train", "first", *SLICE, "--dry_run", *options, *COMMAND).stdout.splitlines()
    starts = [shlex.split(line) for line in lines if "supervise.py start" in line]
    assert len(starts) == 2, "the first start, and the one after a preemption"
    for words in starts:
        remote = shlex.split(next(word for word in words if word.startswith("--command=")).partition("=")[2])
        assert [f"{name}={value}" for name, value in VARIABLES.items()] == remote[remote.index("env") + 1 :][:3]


def test_preempted_slice_of_active_resource_recreates_all(cloud):
    resource = {"states": ["ACTIVE"], "nodes": ["first-0", "first-1"]}
    cloud.set(plan=[["ACTIVE"]], outcomes=[0], nodes={"first-1": "PREEMPTED"}, resources={"first": resource})
    result = cloud.tpu("train", "first", *SLICE, "--num_slices=2", QUICK, *COMMAND, DCN)
    assert "first: first-1 is PREEMPTED" in result.stderr
    assert cloud.actions()[:4] == ["describe", "describe", "describe", "delete"]
    assert sorted(home.rpartition("/")[2] for home, _, _ in cloud.runs()) == ["first-0-w0", "first-1-w0"]


def test_recreations_are_limited(cloud):
    cloud.set(plan=[["ACTIVE"], ["ACTIVE"]], outcomes=["preempt", "preempt"])
    result = cloud.tpu("train", "first", *SLICE, "--max_recreations=1", QUICK, *COMMAND, code=1)
    assert "Stopped after 1 recreations (--max_recreations). Raise the limit" in result.stderr


def test_user_error_is_not_retried(cloud):
    cloud.set(plan=[["ACTIVE"]], outcomes=[2])
    result = cloud.tpu("train", "first", *SLICE, "--delete_when_done", QUICK, *COMMAND, code=2)
    assert "exit code 2, an error in its arguments" in result.stderr
    assert "first is deleted" in result.stderr and cloud.state()["resources"] == {} and len(cloud.runs()) == 1
    logs = list((cloud.directory / "buckets/my-bucket/runs/first/logs").glob("*/0/*/00000.log"))
    assert [log.read_text().count("training: 2") for log in logs] == [1]


def test_second_call_continues_an_interrupted_one(cloud):
    cloud.set(plan=[["ACTIVE"]], outcomes=[0])
    cloud.tpu("create", "first", *SLICE, QUICK)
    assert cloud.actions() == ["create", "describe", "describe"]
    cloud.tpu("train", "first", *SLICE, "--delete_when_done", QUICK, *COMMAND)
    actions = cloud.actions()
    assert "create" not in actions and actions[-2:] == ["delete", "describe"]
    assert cloud.state()["resources"] == {}


def test_steps_work_individually(cloud):
    cloud.set(plan=[["ACTIVE"]], outcomes=[0], workers=2)
    cloud.tpu("create", "first", *SLICE, QUICK)
    status = cloud.tpu("status", "first", *ZONE).stdout
    assert status.startswith("first: ready\n") and status.count(": absent, 0 restarts") == 2
    assert status.endswith("no job\n")
    cloud.tpu("copy", "first", *ZONE)
    assert not list(cloud.home("first-w1").glob("t5x_like/.git*"))
    cloud.tpu("install", "first", *ZONE)
    assert [line.split()[1] for line in (cloud.directory / "installs").read_text().splitlines()] == ["venv", "pip"] * 2
    cloud.set(workers=1)
    cloud.tpu("start", "first", *ZONE, *COMMAND)
    assert "training: 0" in cloud.tpu("logs", "first", *ZONE).stdout
    status = cloud.tpu("status", "first", *ZONE).stdout
    assert ": finished, 0 restarts, exit code 0" in status and "the job is done" in status
    assert "gs://my-bucket/runs/first: no step recorded yet" in status
    copied = cloud.tpu("logs", "first", *ZONE, "--model_dir=gs://my-bucket/runs/first").stdout
    assert "training: 0" in copied and "the job is done" in copied
    missing = cloud.tpu("logs", "first", *ZONE, "--model_dir=gs://my-bucket/runs/first", "--worker=1", code=1).stderr
    assert "the log of worker 1 not found; the newest job has 1 logs" in missing
    assert "no running job found" in cloud.tpu("stop", "first", *ZONE).stdout
    cloud.tpu("delete", "first", *ZONE)
    assert cloud.state()["resources"] == {}
    assert cloud.tpu("status", "first", *ZONE).stdout.startswith("first: absent\n")
    absent = cloud.tpu("delete", "first", *ZONE, code=1).stderr
    assert "did not delete first: not found. Check --zone, --project and --backend." in absent


def test_copy_includes_uncommitted_and_excludes_ignored_files(cloud):
    cloud.set(resources={"first": {"states": ["ACTIVE"], "nodes": ["first"]}})
    cloud.home("first-w0").mkdir(parents=True)
    (cloud.home("first-w0") / "t5x_like").mkdir()
    (cloud.home("first-w0") / "t5x_like/stale.py").touch()
    (cloud.checkout / ".gitignore").write_text("runs/\n")
    (cloud.checkout / "runs").mkdir()
    (cloud.checkout / "runs/big").write_text("data")
    (cloud.checkout / "my tasks.py").write_text("mine")
    cloud.tpu("copy", "first", *ZONE, "--staging=gs://my-bucket/code")
    code = cloud.home("first-w0") / "t5x_like"
    assert (code / "my tasks.py").read_text() == "mine"
    assert not (code / "runs").exists() and not (code / ".tpu").exists() and not (code / "stale.py").exists()
    assert cloud.actions() == ["cp", "ssh", "cp", "ssh"]  # the workers download the archive; scp is not used


def test_refused_request_is_reported_and_not_repeated(cloud):
    cloud.set(plan=[["WAITING_FOR_RESOURCES", "FAILED"]])
    result = cloud.tpu("train", "first", *SLICE, QUICK, *COMMAND, code=1)
    assert "first was refused: no quota for these chips" in result.stderr
    assert cloud.actions().count("create") == 1


def test_failed_description_does_not_count_as_absent(cloud):
    cloud.set(broken="ERROR: PERMISSION_DENIED: caller does not have permission")
    result = cloud.tpu("train", "first", *SLICE, QUICK, *COMMAND, code=1)
    assert "PERMISSION_DENIED" in result.stderr
    assert "first may exist and incur costs" in result.stderr
    assert cloud.actions() == ["describe", "describe"]  # the second one to find out what remains


def test_failed_installation_exits(cloud):
    cloud.set(plan=[["ACTIVE"]])
    result = cloud.tpu("train", "first", *SLICE, QUICK, *COMMAND, code=1, UV_STATUS="1", RETRY_SECONDS="0")
    assert "installing failed on worker 0 of slice 0; retrying in 0.04 s (3 of 3)" in result.stderr
    assert "installing failed on 1 of 1 workers\nworker 0 of slice 0 (exit code 1):\n" in result.stderr
    assert "    install_worker.sh: attempt 3 of 3 failed" in result.stderr
    assert "what remains: queued resource first. VMs incur costs until `launch/tpu.py delete first" in result.stderr
    assert cloud.runs() == []


def test_unreachable_worker_exits_after_retries(cloud):
    cloud.set(resources={"first": {"states": ["ACTIVE"], "nodes": ["first"]}}, no_ssh=True)
    result = cloud.tpu("train", "first", *SLICE, "--poll_seconds=0.01", *COMMAND, code=1)
    assert "first is ready, but its workers do not answer ssh" in result.stderr
    assert cloud.actions().count("ssh") == 11


def test_job_lost_with_repaired_machine_is_restarted(cloud):
    cloud.set(plan=[["ACTIVE"]], outcomes=[0])
    cloud.tpu("create", "first", *SLICE, QUICK)
    cloud.tpu("copy", "first", *ZONE)
    (cloud.home("first-w0") / "t5x_like_job").mkdir()
    (cloud.home("first-w0") / "t5x_like_job/state.json").write_text('{"state": "running", "pid": 99999999}')
    cloud.calls()
    cloud.tpu("train", "first", *SLICE, QUICK, *COMMAND)
    commands = [word for words in cloud.calls() for word in words if word.startswith("--command=python3")]
    # The other workers may still run their part of the job and wait for the lost one.
    assert "supervise.py stop --grace=30" in commands[1]
    assert len(cloud.runs()) == 1


def test_several_slices_use_one_request_and_one_start_per_slice(cloud):
    result = cloud.tpu(
        "train", "big", "--topology=v4:4x4x16", "--zone=us-central2-b", "--num_slices=2", "--dry_run", *COMMAND, DCN
    )
    create = next(line for line in result.stdout.splitlines() if " create " in line)
    assert "--node-count=2 --node-prefix=big" in create and "--node-id" not in create
    assert "--type=v4 --topology=4x4x16" in create  # v4-512 alone would be 4x8x8
    starts = [line for line in result.stdout.splitlines() if "supervise.py start" in line][:2]
    assert "--worker=all --node=0" in starts[0] and "--worker=all --node=1" in starts[1]
    assert all("host_settings.sh 2" in start for start in starts)


def test_instance_groups_train_on_every_vm(cloud):
    cloud.set(plan=[["ACTIVE"]], outcomes=[0], workers=2)
    options = ["--topology=tpu7x:2x2x2", "--zone=us-central1-c", "--project=my-project", "--delete_when_done"]
    result = cloud.tpu("train", "first", *options, QUICK, *COMMAND)
    assert "training: 0" in result.stdout and "the job is done" in result.stderr
    calls = cloud.calls()
    assert not any("tpus" in words for words in calls)
    assert sorted(home.rpartition("/")[2] for home, _, _ in cloud.runs()) == ["first-w0", "first-w1"]
    deleted = [words[1] for words in calls if "delete" in words]
    assert deleted[-3:] == ["instance-groups", "instance-templates", "resource-policies"]


@pytest.mark.parametrize(
    ("options", "track", "flags"),
    [
        (["--spot"], [], ["--spot"]),
        (["--reserved"], [], ["--reserved"]),
        (["--reservation=mine"], ["alpha"], ["--provisioning-model=reservation-bound", "--reservation=mine"]),
        (
            ["--flex_start", "--max_run_duration=2d"],
            ["alpha"],
            ["--provisioning-model=flex-start", "--max-run-duration=2d"],
        ),
    ],
)
def test_queued_resource_requests_capacity(cloud, options, track, flags):
    line = cloud.tpu("create", "first", *SLICE, *options, "--dry_run").stdout.splitlines()[1]
    words = shlex.split(line)
    expected = ["gcloud", *track, "compute", "tpus", "queued-resources", "create"]
    assert words[: len(expected)] == expected
    assert [word for word in words if word in flags] == flags


def test_dry_run_prints_commands_without_calls(cloud):
    result = cloud.tpu("train", "first", *SLICE, "--spot", "--delete_when_done", "--dry_run", *COMMAND)
    assert cloud.calls() == [] and not (cloud.checkout / ".tpu").exists()
    lines = [line for line in result.stdout.splitlines() if not line.startswith("#")]
    actions = [next((word for word in shlex.split(line) if word in ACTIONS), "git") for line in lines]
    one_tpu = ["create", "describe", "git", "scp", "ssh", "ssh", "ssh", "ssh", "ssh"]  # the last two: follow, status
    assert actions == [*one_tpu, "delete", *one_tpu, "delete"]
    start = next(shlex.split(line) for line in lines if "supervise.py start" in line)
    inner = next(word for word in start if word.startswith("--command=")).partition("=")[2]
    assert shlex.split(inner)[-4:] == COMMAND[1:]


@pytest.mark.parametrize("action", ["wait", "copy", "install", "status", "logs", "stop", "delete"])
def test_every_action_supports_dry_run(cloud, action):
    result = cloud.tpu(action, "first", *ZONE, "--dry_run")
    assert "gcloud compute tpus queued-resources" in result.stdout
    assert cloud.calls() == []


def test_fetch_excludes_checkpoints_by_default(cloud, tmp_path):
    cloud.tpu("fetch", "gs://my-bucket/runs/first", str(tmp_path / "first"))
    assert cloud.calls() == [
        [
            "storage",
            "rsync",
            "--recursive",
            "--exclude=^(checkpoints|compilation_cache)/.*",
            "gs://my-bucket/runs/first",
            f"{tmp_path}/first",
        ]
    ]
    cloud.tpu("fetch", "gs://my-bucket/runs/first", str(tmp_path / "first"), "--checkpoints")
    assert "--exclude=^compilation_cache/.*" in cloud.calls()[0]
