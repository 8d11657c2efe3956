"""Tests for `launch/tpu.py train` against a server with scripted states: what is recreated, what is waited for, and
how it ends. tests/launch/test_watch_faults.py has the faults of the APIs.
"""

import io
import json

import pytest
import scripted_cloud
from google_cloud import failure
from scripted_cloud import DIRECTORY, RUN, ScriptedCloud, train

STATE_LOST = {"first": "PREEMPTED"}


def refused(message: str, code: int = 8, *details: dict) -> tuple[str, dict]:
    return "FAILED", {"code": code, "message": message, "details": list(details)}


QUOTA = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"subject": "project", "description": ""}],
}
CAPACITY = refused('There is no more capacity in the zone "us-west4-a"')
OUTAGE = failure(503, "The service is unavailable")


def test_repair_of_forty_minutes_is_left_to_the_platform():
    cloud = ScriptedCloud("ACTIVE", *[{"first": "REPAIRING"}] * 80, "ACTIVE")
    code, log = train(cloud, "--delete_when_done", "--max_recreations=0")
    assert code == 0 and cloud.clock.seconds >= 40 * 60
    assert "first: first is REPAIRING" in log and cloud.changes == ["create", "delete"], "the deletion at the end"


def test_repair_without_end_is_not_waited_for():
    code, log = train(ScriptedCloud("ACTIVE", [{"first": "REPAIRING"}], "ACTIVE"), "--poll_seconds=300")
    assert code == 0 and "first is REPAIRING for 7500 s; creating it again" in log


def test_lost_slice_of_several_is_waited_for():
    states = [{"first-1": "PREEMPTED"}] * 10 + [{"first-1": "CREATING"}] * 10
    cloud = ScriptedCloud("ACTIVE", *states, "ACTIVE", ends=(0, 0, 0, 0))
    code, log = train(cloud, "--num_slices=2", "--max_recreations=0")
    assert code == 0 and "first: first-1 is PREEMPTED" in log and cloud.changes == ["create"]


@pytest.mark.parametrize(
    "lost",
    ["SUSPENDED", STATE_LOST, {"first": "TERMINATED"}, {"first": "missing"}],
    ids=["resource", "preempted", "stopped", "missing"],
)
def test_tpu_that_is_gone_is_recreated_with_the_stored_code(lost):
    cloud = ScriptedCloud("ACTIVE", [lost], "ACTIVE")
    code, log = train(cloud, "--spot", "--delete_when_done")
    assert code == 0 and "creating it again in 30 s (1 of 100)" in log
    assert cloud.changes == ["create", "delete", "create", "delete"] and len(cloud.codes()) == 1
    assert "first is deleted and incurs no more costs" in log and cloud.stored()["id"] not in log


def test_slice_that_is_not_on_spot_is_left_to_the_platform():
    cloud = ScriptedCloud("ACTIVE", *[{"first": "TERMINATED"}] * 20, {"first": "STARTING"}, "ACTIVE")
    assert train(cloud, "--max_recreations=0")[0] == 0 and cloud.changes == ["create"]


def test_preemption_after_the_end_of_the_job_is_not_recovered_from():
    cloud = ScriptedCloud("ACTIVE", "SUSPENDED")
    code, log = train(cloud, "--delete_when_done", "--max_recreations=0")
    assert code == 0 and "the job is done" in log and cloud.changes == ["create", "delete"]


def test_tpu_whose_run_beats_is_not_deleted_whatever_its_state():
    cloud = ScriptedCloud("ACTIVE", *["SUSPENDED"] * 20, "ACTIVE")
    cloud.clock.on_sleep.append(lambda: cloud.put(f"{RUN}/lock.json", {"beats": cloud.clock.seconds}))
    code, log = train(cloud, "--max_recreations=0")
    assert code == 0 and cloud.changes == ["create"]
    assert log.count("SUSPENDED; waiting for 120 s without a heartbeat of the run") == 1


def test_tpu_that_is_back_after_the_wait_is_not_deleted():
    cloud = ScriptedCloud("ACTIVE", *["SUSPENDED"] * 3, *["ACTIVE"] * 10)
    code, log = train(cloud, "--poll_seconds=60")
    assert code == 0 and "creating it again in 60 s" in log and "not deleted now: ready" in log
    assert cloud.changes == ["create"]


def test_workers_are_judged_by_their_heartbeat_and_not_by_connections():
    cloud = ScriptedCloud(*["ACTIVE"] * 50, "ACTIVE")
    assert train(cloud, "--max_recreations=0", "--poll_seconds=600")[0] == 0 and cloud.clock.seconds > 8 * 3600
    silent = ScriptedCloud(["ACTIVE"], "ACTIVE")
    silent.heartbeat = False
    silent.put(f"{RUN}/lock.json", {"beats": 0})  # of a process that is gone
    code, log = train(silent, "--poll_seconds=300")
    assert code == 0 and "no heartbeat of the run for 7500 s; creating it again" in log
    assert silent.changes == ["create", "delete", "create"]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            "gs://my-bucket/runs/other/launch/first",
            "run the job in gs://my-bucket/runs/other/launch/first. Give another",
        ),
        (None, "run no job of launch/tpu.py"),
    ],
)
def test_tpu_that_runs_another_job_is_refused(found, message):
    cloud = ScriptedCloud("ACTIVE")
    cloud.use(found)
    code, log = train(cloud)
    assert code == 2 and message in log and cloud.stored() is None and cloud.changes == []


def test_job_that_another_tpu_runs_is_refused():
    cloud = ScriptedCloud("ACTIVE", *["ACTIVE"] * 5)
    train(cloud)
    other = f"{scripted_cloud.google_cloud.PARENT}/queuedResources/second"
    cloud.put(f"{DIRECTORY}/job.json", {**cloud.stored(), "tpu": other})
    cloud.resources = {"second": cloud.resources["first"]}
    code, log = train(cloud)
    assert code == 2 and "second in zone us-west4-a of project my-project runs this job, and two TPUs" in log
    assert cloud.changes == ["create"]


def test_invalid_command_is_an_error_before_anything_is_requested():
    def refuse(command, devices):
        raise scripted_cloud.tpu.slices.LaunchError(f"invalid t5x_like command: {command[1]}")

    cloud = ScriptedCloud("ACTIVE")
    # Undone before `connected` undoes its own replacement of the same function.
    with scripted_cloud.connected(cloud, cloud.clock), pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripted_cloud.tpu, "check_command", refuse)
        assert scripted_cloud.tpu.main(["train", "first", *scripted_cloud.SLICE, *scripted_cloud.COMMAND]) == 2
    assert cloud.stored() is None and cloud.requests == 0


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (failure(429, "Quota has been exceeded.", ErrorInfo={"reason": "QUOTA_EXCEEDED"}), "Request quota"),
        (failure(403, "caller does not have permission"), "ask for roles/tpu.admin"),
        (failure(400, "accelerator type not found"), "Correct the option"),
        (failure(404, "network mine"), "Correct the option"),
    ],
    ids=["quota", "permission", "argument", "network"],
)
def test_permanent_errors_of_a_request_are_not_retried(error, advice):
    cloud = ScriptedCloud("ACTIVE", creates=(error,) * 20)
    code, log = train(cloud)
    assert code == 1 and advice in log and "creating it again" not in log
    assert "nothing remains of first, so it incurs no costs" in log


def test_refused_request_is_not_retried_and_says_what_remains():
    cloud = ScriptedCloud([refused("Quota 'TPUV5sPodPerProjectPerZone' exceeded", 8, QUOTA)])
    code, log = train(cloud)
    assert code == 1 and cloud.changes == ["create"]
    assert "first was refused: Quota 'TPUV5sPodPerProjectPerZone' exceeded. Request quota for these chips" in log
    assert "VMs incur costs until `launch/tpu.py delete first --zone=us-west4-a` deletes" in log


def test_refusal_with_details_of_an_unknown_type_is_read():
    unknown = refused("The network is not allowed", 7, {"@type": "type.googleapis.com/google.tpu.Unknown", "x": 1})
    code, log = train(ScriptedCloud([unknown]))
    assert code == 1 and "first was refused: The network is not allowed. Check --project and --zone" in log


def test_lack_of_capacity_is_retried_with_longer_delays():
    cloud = ScriptedCloud("WAITING_FOR_RESOURCES", [CAPACITY], [CAPACITY], "ACTIVE")
    code, log = train(cloud)
    assert code == 0 and "If this repeats: Request quota for these chips" in log
    assert "creating it again in 30 s (1 of 100)" in log and "creating it again in 60 s (2 of 100)" in log
    assert cloud.changes == ["create", "delete", "create", "delete", "create"]
    assert train(ScriptedCloud([CAPACITY]), "--valid_until=6h")[0] == 1


def test_alerts_reach_a_command_once_per_event(tmp_path):
    (tmp_path / "send").write_text(f'#!/bin/sh\necho "$1: $2" >>{tmp_path}/sent\n')
    (tmp_path / "send").chmod(0o755)
    login = failure(401, "Request had invalid authentication credentials")
    train(ScriptedCloud("ACTIVE", *[login] * 3, ["SUSPENDED"], "ACTIVE"), f"--alert={tmp_path}/send tpu")
    expired, recreated, done = (tmp_path / "sent").read_text().splitlines()
    assert "application-default login" in expired and "creating it again" in recreated
    assert done == "tpu: first: the job is done"


def test_alerts_reach_a_webhook_and_their_failure_does_not_end_the_watch(monkeypatch):
    sent = []
    module = scripted_cloud.tpu.watch.alert
    monkeypatch.setattr(module.urllib.request, "urlopen", lambda request, timeout: sent.append(request) or io.BytesIO())
    assert train(ScriptedCloud("ACTIVE", ends=(1, 1)), "--alert=https://chat.example.com/hook")[0] == 1
    (request,) = sent
    assert json.loads(request.data)["text"].startswith("first: the job failed: exit code 1 on worker 0-0")
    code, log = train(ScriptedCloud("ACTIVE"), "--alert=/no/such/command")
    assert code == 0 and "--alert was not sent: [Errno 2] No such file" in log


def test_recreations_without_progress_are_limited():
    cloud = ScriptedCloud("PROVISIONING", ["SUSPENDING"], "PROVISIONING", ["SUSPENDED"])
    code, log = train(cloud, "--max_recreations=1")
    assert code == 1 and "first: SUSPENDED. Stopped after 1 recreations without a new checkpoint (--max_rec" in log


def test_failed_creations_of_a_command_without_a_run_are_limited(capsys):
    """Time on a TPU that is ready is progress once, and not of each attempt after it."""
    cloud = ScriptedCloud(*["ACTIVE"] * 10, ["SUSPENDED"], "ACTIVE")
    cloud.created = lambda name: OUTAGE if "delete" in cloud.changes else ScriptedCloud.created(cloud, name)
    options = ["--local_model_dir", "--staging=gs://my-bucket/runs/first/launch", "--poll_seconds=600"]
    command = ["--", "t5x_like", "train", "--gin.MODEL_DIR=/mnt/run"]
    with scripted_cloud.connected(cloud, cloud.clock):
        words = ["train", "first", *scripted_cloud.SLICE, *options, "--max_recreations=3", *command]
        assert scripted_cloud.tpu.main(words) == 1
    log = capsys.readouterr().err
    assert "Stopped after 3 recreations without a new checkpoint" in log and cloud.changes == ["create", "delete"]


@pytest.mark.parametrize("times", [5, pytest.param(120, marks=pytest.mark.full)])
def test_preemptions_with_progress_are_not_an_end(times):
    cloud = ScriptedCloud(*["ACTIVE", ["SUSPENDED"]] * times, "ACTIVE")
    saved = iter(range(10, 10_000, 10))

    def save(name):
        cloud.put(f"{RUN}/checkpoints/{next(saved)}/state/data", 0)
        return ScriptedCloud.created(cloud, name)

    cloud.created = save
    code, log = train(cloud, "--max_recreations=2", "--spot", "--poll_seconds=200")
    assert code == 0 and cloud.changes.count("create") == times + 1
    assert "creating it again in 200 s (1 of 2)" in log and "(2 of 2)" not in log


@pytest.mark.parametrize("seconds", [90, 210], ids=["of the silence", "before the recreation"])
def test_deletion_that_ends_during_a_wait_is_one_preemption(seconds):
    cloud = ScriptedCloud("ACTIVE", ["DELETING"], "ACTIVE")
    cloud.clock.on_sleep.append(lambda: cloud.current == ["DELETING"] and cloud.clock.seconds >= seconds and forget())

    def forget():
        cloud.resources.clear()
        cloud.absent = cloud.absent or cloud.clock.seconds

    cloud.absent = None
    code, log = train(cloud, "--max_recreations=1")
    assert code == 0 and cloud.changes == ["create", "create"]
    assert cloud.absent == seconds and log.count("creating it again") == 1


@pytest.mark.parametrize("held", [False, True], ids=["no lock", "lock of a lost process"])
def test_train_right_after_a_deletion_waits_for_the_name(held):
    cloud = ScriptedCloud(["DELETING"], "ACTIVE")
    cloud.use(f"gs://my-bucket/{DIRECTORY}")
    if held:
        cloud.put(f"{RUN}/lock.json", {"beats": 0})
    cloud.clock.on_sleep.append(lambda: cloud.current == ["DELETING"] and cloud.resources.clear())
    code, log = train(cloud, "--max_recreations=1")
    assert code == 0 and cloud.changes == ["create"]


def test_request_that_was_deleted_while_it_was_queued_is_not_repeated():
    cloud = ScriptedCloud("WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", ["ACTIVE"])
    cloud.clock.on_sleep.append(lambda: cloud.clock.seconds > 60 and cloud.resources.clear())
    code, log = train(cloud)
    assert code == 1 and "first not found: it was deleted while it was being created" in log
    assert "nothing remains of first" in log


@pytest.mark.parametrize(
    ("ends", "code", "message"),
    [
        ((0, 0), 0, "the job is done"),
        ((0,), 0, "the job is done; 1 workers did not end in time"),
        ((0, 1), 1, "the job failed: exit code 1 on worker 0-1"),
        ((1, 2), 2, "exit code 1 on worker 0-0, exit code 2 on worker 0-1"),
        ((75, 75), 75, "the job was stopped, on request or after --max_run_duration"),
    ],
)
def test_exit_code_is_that_of_the_job(ends, code, message):
    cloud = ScriptedCloud("ACTIVE", ends=ends)
    ended, log = train(cloud, "--delete_when_done")
    assert ended == code and message in log and "first is deleted and incurs no more costs" in log
    assert "the output of all workers is in gs://my-bucket/runs/first/launch/first/logs" in log
