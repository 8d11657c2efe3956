"""Tests for `launch/tpu.py train` against a server with faults: answers that are not the API's, outages, lost answers,
invalid values in the bucket, and several commands at once. Nothing is deleted on the word of an error.
"""

import json
import sys
import threading

import google_cloud
import pytest
import scripted_cloud
from google_cloud import Reply, failure
from scripted_cloud import BUCKET, DIRECTORY, RUN, ScriptedCloud, connected, train

LOGIN = failure(401, "Request had invalid authentication credentials")
# Answers and errors that once counted as "the TPU is absent", or ended the watch.
FAULTS = {
    "page of a proxy": Reply(404, b"404 page not found"),
    "not found by another server": Reply(404, b'{"error": "not found"}'),
    "object of another API": Reply(404, b'{"error": {"code": 404, "message": "NOT_FOUND"}}'),
    "login page": Reply(200, b"<html>Sign in</html>"),
    "redirect": Reply(302, b""),
    "JSON that is cut off": Reply(200, b'{"name": "projects/my-proj'),
    "body that is cut off": Reply(200, b'{"name": "proj', 500),
    "empty body": Reply(200, b""),
    "empty object": Reply(200, b"{}"),
    "list": Reply(200, b"[1, 2]"),
    "state that is not known": Reply(200, b'{"name": "x", "state": {"state": "NEW"}}'),
    "state of the wrong type": Reply(200, b'{"state": "ACTIVE"}'),
    "bad gateway": Reply(502, b"<html>Bad gateway</html>"),
    "outage": failure(503, "The service is unavailable"),
    "internal error": failure(500, "internal"),
    "permission": failure(403, "caller does not have permission"),
    "quota of calls": failure(429, "Queries per minute", ErrorInfo={"reason": "RATE_LIMIT_EXCEEDED"}),
    "login": LOGIN,
}


def fault_from(cloud: ScriptedCloud, start: float, places: str, path: str, fault: Reply) -> Reply | None:
    """Returns a fault for an hour."""
    return fault if places in path and start <= cloud.clock.seconds < start + 3600 else None


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_fault_of_an_hour_deletes_nothing_and_does_not_end_the_watch(fault):
    cloud = ScriptedCloud(*["ACTIVE"] * 3, "ACTIVE")
    cloud.fault = lambda method, path: cloud.poll(method, path) or fault_from(cloud, 600, "/queued", path, fault)
    code, log = train(cloud, "--max_recreations=0", "--poll_seconds=600", serve=google_cloud.serve)
    assert code == 0 and cloud.changes == ["create"]
    assert "The job does not depend on this command, which retries in 600 s" in log


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault, id=name, marks=() if name in ("page of a proxy", "body that is cut off") else pytest.mark.full
        )
        for name, fault in FAULTS.items()
    ],
)
def test_fault_of_the_bucket_deletes_nothing_and_does_not_end_the_watch(fault):
    """A TPU that is reported as suspended, but whose run beats, while the bucket cannot be read."""
    cloud = ScriptedCloud("ACTIVE", *["SUSPENDED"] * 3, *["ACTIVE"] * 3, "ACTIVE")
    cloud.clock.on_sleep.append(lambda: cloud.put(f"{RUN}/lock.json", {"beats": cloud.clock.seconds}))
    cloud.fault = lambda method, path: cloud.poll(method, path) or fault_from(cloud, 120, "/storage/", path, fault)
    code, log = train(cloud, "--max_recreations=0", "--poll_seconds=60", serve=google_cloud.serve)
    assert code == 0 and cloud.changes == ["create"]


def test_absence_counts_when_the_api_says_so_twice_minutes_apart():
    cloud = ScriptedCloud(*["ACTIVE"] * 6, "ACTIVE")
    forgotten = []

    def forget():
        """The API does not have the TPU from a time on."""
        if cloud.clock.seconds >= 100 and not forgotten:
            forgotten.append(cloud.clock.seconds)
            cloud.resources.clear()

    cloud.clock.on_sleep.append(forget)
    code, log = train(cloud)
    assert code == 0 and cloud.changes == ["create", "create"], "nothing was deleted"
    assert "absent; creating it again" in log
    assert cloud.clock.seconds - forgotten[0] > scripted_cloud.tpu.watch.ABSENT_SECONDS


@pytest.mark.parametrize("listed", [True, False])
def test_absence_for_a_minute_is_not_one(listed):
    """A replica of the API that lags answers NOT_FOUND for a TPU that exists."""
    cloud = ScriptedCloud(*["ACTIVE"] * 12, "ACTIVE")
    hidden = {}

    def hide():
        if cloud.clock.seconds in (120, 150, 180):
            hidden.update(cloud.resources)
            cloud.resources.clear()
        elif not cloud.resources:
            cloud.resources.update(hidden)

    def not_found(method, path):
        if listed and 120 <= cloud.clock.seconds <= 180 and path.endswith("/queuedResources/first"):
            return failure(404, "Resource was not found")
        return cloud.poll(method, path)

    cloud.fault = not_found
    if not listed:
        cloud.clock.on_sleep.append(hide)
    code, log = train(cloud, "--max_recreations=0")
    assert code == 0 and cloud.changes == ["create"]
    assert ("not found, but listed" if listed else "first: absent") in log


def test_absent_tpu_whose_run_beats_is_waited_for():
    cloud = ScriptedCloud(*["ACTIVE"] * 12, "ACTIVE")
    hidden = {}

    def hide():
        cloud.put(f"{RUN}/lock.json", {"beats": cloud.clock.seconds})
        if 240 <= cloud.clock.seconds <= 3600:
            hidden.update(cloud.resources)
            cloud.resources.clear()
        elif not cloud.resources and hidden:
            cloud.resources.update(hidden)

    cloud.clock.on_sleep.append(hide)
    code, log = train(cloud, "--max_recreations=0", "--poll_seconds=120")
    assert code == 0 and cloud.changes == ["create"]
    assert "absent; waiting for 120 s without a heartbeat of the run" in log


def test_name_that_is_still_held_after_a_deletion_is_retried():
    held = failure(409, "Resource 'first' already exists")
    cloud = ScriptedCloud("ACTIVE", ["SUSPENDED"], "ACTIVE", creates=(None, held, held, None))
    code, log = train(cloud, "--spot")
    assert code == 0 and cloud.changes == ["create", "delete", "create"]
    assert log.count("already exists") == 2


def test_answer_to_a_creation_that_is_lost_does_not_create_twice():
    cloud = ScriptedCloud(*["ACTIVE"] * 3, "ACTIVE")
    cloud.lost = lambda method, path: Reply(502, b"") if method == "POST" and "/storage/" not in path else None
    code, log = train(cloud, "--max_recreations=0")
    assert code == 0 and cloud.changes == ["create"]


def test_answer_to_a_write_that_is_lost_is_found_again():
    cloud = ScriptedCloud("ACTIVE", ["SUSPENDED"], *["ACTIVE"] * 3, "ACTIVE")
    writes = iter(range(1000))

    def lose(method, path):
        is_lost = method == "POST" and "/upload/" in path and (next(writes) + 1) % 3 == 0
        return Reply(503, b"lost") if is_lost else None

    cloud.lost = lose
    code, log = train(cloud)
    assert code == 0 and cloud.changes == ["create", "delete", "create"]


def test_node_without_endpoints_is_ready():
    cloud = ScriptedCloud("ACTIVE", *["ACTIVE"] * 3, "ACTIVE", endpoints=None)
    code, log = train(cloud)
    assert code == 0 and "the job is done" in log


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("metrics/00000-after-0.jsonl", b'{"split": "train", "loss": 3.5}\n', "running, loss 3.5000"),
        ("metrics/00000-after-0.jsonl", b'{"split": "train", "step": 7, "loss": "x"}\n', "step 7, loss nan"),
        ("status.json", b'{"state": "running", "step": 5, "goodput": {}}', "running, step 5, goodput ? %"),
        ("status.json", b'{"state": "running", "goodput": 5}', "running, no heartbeat"),
        ("status.json", b"[]", "no step recorded yet"),
        ("lock.json", b'{"token": 5', "no step recorded yet"),
        ("launch/first/ends/ID/0-5.json", b'{"worker": "0-5"}', "exit_code missing, not int. Correct or delete it"),
        ("launch/first/ends/ID/0-5.json", b'{"worker": 5, "exit_code": true}', "worker=5, not str"),
        ("launch/first/ends/ID/0-5.json", b'{"worker": "0-5", "exit', "not JSON"),
        ("launch/first/ends/ID/0-5.json", b"\xff\xfe", "not JSON"),
        ("launch/first/job.json", b'{"id": "5"}', "job.json: code missing, not str"),
        ("launch/first/job.json", b"", "job.json: not JSON"),
        ("launch/first/watcher.json", b"{}", "another watcher, which has ended, has taken over"),
    ],
)
def test_invalid_value_in_the_bucket_is_reported(name, data, message):
    cloud = ScriptedCloud(*["ACTIVE"] * 30, ["SUSPENDED"], "ACTIVE")

    def write():
        key = f"{RUN}/{name.replace('ID', cloud.stored_id)}"
        if cloud.clock.seconds == 60:
            cloud.before = cloud.objects.get(BUCKET, key)
            cloud.objects.put(BUCKET, key, data)
        if name.endswith("job.json") and cloud.clock.seconds > 5000 and not cloud.restored:
            cloud.restored = True
            cloud.objects.put(BUCKET, key, cloud.before[0])

    def remember():
        stored = cloud.objects.get(BUCKET, f"{DIRECTORY}/job.json")
        if stored and not cloud.stored_id:
            cloud.stored_id = json.loads(stored[0])["id"]

    cloud.stored_id, cloud.restored = "", False
    cloud.clock.on_sleep += [remember, write]
    code, log = train(cloud, "--poll_seconds=30")
    assert message in log
    assert code == (1 if "watcher" in name else 0)
    assert log.count(message) < 20, "reported once, or with growing delays"


def test_stop_during_the_wait_before_a_retry_is_not_overwritten():
    cloud = ScriptedCloud("ACTIVE", ["SUSPENDED"], "ACTIVE")

    def stop():
        if "delete" in cloud.changes or cloud.current == ["SUSPENDED"]:
            stored = cloud.stored()
            if not stored.get("stop"):
                cloud.put(f"{DIRECTORY}/job.json", {**stored, "stop": True})

    cloud.clock.on_sleep.append(stop)
    code, log = train(cloud, "--spot")
    assert code == 75 and "not created again, because a stop was requested" in log
    assert cloud.stored()["stop"] is True and cloud.changes.count("create") == 1


def test_stop_between_a_read_and_a_write_of_the_job_is_not_overwritten():
    cloud = ScriptedCloud("ACTIVE", ["SUSPENDED"], "ACTIVE")
    read = []

    def stop(method, path):
        """Stops right before the watcher writes the new job."""
        if method == "POST" and "/upload/" in path and cloud.changes == ["create", "delete"] and not read:
            read.append(path)
            cloud.put(f"{DIRECTORY}/job.json", {**cloud.stored(), "stop": True})
        return cloud.poll(method, path)

    cloud.fault = stop
    code, log = train(cloud, "--spot", "--delete_when_done")
    assert code == 75 and cloud.stored()["stop"] is True and cloud.changes == ["create", "delete"]
    assert "nothing remains of first" in log


def test_second_watcher_refuses_and_names_the_first():
    cloud = ScriptedCloud(*["ACTIVE"] * 5, "ACTIVE")
    count = iter(range(1000))

    def watch():
        cloud.put(f"{DIRECTORY}/watcher.json", {"name": "laptop-7", "count": next(count), "poll_seconds": 30})

    watch()
    cloud.clock.on_sleep.append(watch)
    code, log = train(cloud)
    assert code == 2 and "laptop-7 watches this job. End it with Ctrl-C there, or add --take_over=laptop-7" in log
    assert cloud.changes == [] and cloud.stored() is None


def test_watcher_that_has_ended_without_a_word_is_replaced():
    cloud = ScriptedCloud("ACTIVE")
    cloud.put(f"{DIRECTORY}/watcher.json", {"name": "laptop-7", "count": 5, "poll_seconds": 60})
    code, log = train(cloud)
    assert code == 0 and "laptop-7 has watched this job: waiting 300 s for a sign of it" in log


def test_first_watcher_ends_when_a_second_one_takes_over():
    cloud = ScriptedCloud(*["ACTIVE"] * 10, "ACTIVE")
    logs = []

    def take_over():
        if cloud.clock.seconds == 120:
            name = json.loads(cloud.objects.get(BUCKET, f"{DIRECTORY}/watcher.json")[0])["name"]
            cloud.clock.on_sleep.remove(take_over)
            second = scripted_cloud.tpu.main(
                ["train", "first", *scripted_cloud.SLICE, f"--take_over={name}", "--spot", *scripted_cloud.COMMAND]
            )
            logs.append(second)

    cloud.clock.on_sleep.append(take_over)
    code, log = train(cloud, "--spot")
    assert logs == [0] and code == 1, log
    assert "another watcher, which has ended, has taken over. This watcher ends; the job continues." in log
    assert cloud.changes == ["create"] and "what remains: first" in log


def test_two_starts_at_once_are_one_watcher():
    cloud = ScriptedCloud("ACTIVE")
    bucket = "gs://my-bucket/runs/first/launch/first"
    with connected(cloud, cloud.clock):
        sys.path.insert(0, str(scripted_cloud.Path(__file__).resolve().parents[2] / "launch"))
        try:
            from bucket import Bucket
            from slices import LaunchError
            from watcher import Watcher
        finally:
            sys.path.pop(0)
        clients = scripted_cloud.clients.connect(None)
        barrier, outcomes = threading.Barrier(8), []

        def claim():
            watcher = Watcher(Bucket(clients), bucket, 30.0, cloud.clock.sleep, lambda text: None)
            read = watcher._read

            def read_together():
                found = read()
                barrier.wait(10)
                return found

            watcher._read = read_together
            try:
                watcher.claim(None)
                outcomes.append("claimed")
            except LaunchError:
                outcomes.append("refused")

        threads = [threading.Thread(target=claim) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(outcomes) == ["claimed"] + ["refused"] * 7


def test_comma_in_the_model_dir_is_not_another_key_of_the_metadata():
    cloud = ScriptedCloud("ACTIVE")
    run = "gs://my-bucket/runs/first,startup-script-url=gs://other/x"
    with connected(cloud, cloud.clock):
        cloud.creates = [failure(400, "enough")]
        command = ["--", "t5x_like", "train", f"--gin.MODEL_DIR={run}"]
        sent = []
        cloud.created = lambda name: failure(400, "enough")
        answer = cloud.answer
        cloud.answer = lambda method, url, headers, body: (
            (sent.append(body) if method == "POST" and "queuedResources" in url else None)
            or answer(method, url, headers, body)
        )
        assert scripted_cloud.tpu.main(["train", "first", *scripted_cloud.SLICE, *command]) == 1
    (metadata,) = [spec["node"]["metadata"] for spec in json.loads(sent[0])["tpu"]["nodeSpec"]]
    assert metadata.keys() == {"t5x-like-job", "startup-script"}
    assert metadata["t5x-like-job"] == f"{run}/launch/first"


def test_login_that_is_missing_at_the_start_is_an_error():
    cloud = ScriptedCloud([LOGIN])
    cloud.use("gs://my-bucket/runs/first/launch/first")
    cloud.fault = lambda method, path: LOGIN
    code, log = train(cloud)
    assert code == 1 and "Run `gcloud auth application-default login`" in log
    assert "first may exist and incur costs" in log


def test_run_on_a_mounted_store_is_not_judged_by_a_heartbeat():
    cloud = ScriptedCloud(*["ACTIVE"] * 50, "ACTIVE")
    command = ["--", "t5x_like", "train", "--gin.MODEL_DIR=/mnt/run"]
    options = ["--local_model_dir", "--staging=gs://my-bucket/runs/first/launch", "--poll_seconds=600"]
    with connected(cloud, cloud.clock):
        assert scripted_cloud.tpu.main(["train", "first", *scripted_cloud.SLICE, *options, *command]) == 0
    assert cloud.changes == ["create"] and cloud.clock.seconds > 8 * 3600


def test_tpu_is_not_deleted_at_the_end_while_the_run_beats():
    """Most workers have ended, and the one that holds the run has not."""
    cloud = ScriptedCloud("ACTIVE", ends=(0,))
    cloud.clock.on_sleep.append(lambda: cloud.put(f"{RUN}/lock.json", {"beats": cloud.clock.seconds}))
    code, log = train(cloud, "--delete_when_done")
    assert code == 0 and cloud.changes == ["create"]
    assert "first is not deleted, because its run is not known to be silent" in log and "what remains: first" in log


def test_tpu_is_not_deleted_at_the_end_if_the_heartbeat_cannot_be_read():
    cloud = ScriptedCloud("ACTIVE")
    cloud.put(f"{RUN}/lock.json", {"beats": 0})
    denied = failure(403, "caller does not have permission")

    def deny(method, path):
        """Reads fail from the first one after the end of the job on."""
        return denied if method == "GET" and "/storage/" in path and cloud.clock.seconds >= 60 else None

    cloud.fault = lambda method, path: deny(method, path) or cloud.poll(method, path)
    code, log = train(cloud, "--delete_when_done")
    assert code == 0 and cloud.changes == ["create"]
    assert "first is not deleted, because its run is not known to be silent" in log
