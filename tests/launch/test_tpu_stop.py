"""Tests for `launch/tpu.py stop` and `delete` when the TPU is absent, or the API does not find it."""

import google_cloud
import pytest
import scripted_cloud
from google_cloud import failure
from scripted_cloud import DIRECTORY, RUN, ScriptedCloud, connected, train

pytestmark = pytest.mark.full

ZONE = f"--zone={google_cloud.ZONE}"
RUN_OPTION = f"--model_dir=gs://my-bucket/{RUN}"
OUTAGE = failure(503, "The service is unavailable")


def call(cloud: ScriptedCloud, *words: str) -> int:
    with connected(cloud, cloud.clock, google_cloud.without_sockets):
        return scripted_cloud.tpu.main([*words, ZONE])


@pytest.mark.parametrize("option", [RUN_OPTION, f"--staging=gs://my-bucket/{RUN}/launch"])
@pytest.mark.parametrize(("action", "code"), [("stop", 0), ("delete", 1)])
def test_train_that_waits_for_capacity_ends(action, code, option, capsys):
    cloud, codes = ScriptedCloud("ACTIVE", creates=(OUTAGE,) * 1000), []

    def act():
        if cloud.clock.seconds > 600 and not codes:
            codes.append(None)  # the action waits as well, if it repeats a request
            codes[:] = [scripted_cloud.tpu.main([action, "first", ZONE, option])]

    cloud.clock.on_sleep.append(act)
    ended, log = train(cloud)
    assert codes == [code] and cloud.stored()["stop"] is True
    assert ended == 75 and "not created again, because a stop was requested" in log and cloud.changes == []
    assert ("first not found, and its job was asked to stop" in log) is (action == "delete")


def test_stop_without_a_tpu_says_what_to_give(capsys):
    assert call(ScriptedCloud("ACTIVE"), "stop", "first") == 2
    assert "first not found, or it runs no job. Give --model_dir or --staging of the job" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["stop", "delete"])
def test_directory_without_a_job_is_an_error(action, capsys):
    cloud = ScriptedCloud("ACTIVE")
    cloud.use(f"gs://my-bucket/{DIRECTORY}")
    assert call(cloud, action, "first", "--model_dir=gs://my-bucket/runs/other") == 2
    assert "gs://my-bucket/runs/other/launch/first: job.json not found" in capsys.readouterr().err
    assert cloud.changes == []


def test_stop_of_a_tpu_whose_job_is_missing_is_an_error(capsys):
    cloud = ScriptedCloud("ACTIVE")
    cloud.use(f"gs://my-bucket/{DIRECTORY}")
    assert call(cloud, "stop", "first") == 2
    assert f"gs://my-bucket/{DIRECTORY}: job.json not found" in capsys.readouterr().err
    assert call(cloud, "delete", "first") == 0 and cloud.changes == ["delete"]


def test_deletion_that_does_not_find_a_tpu_that_exists_is_an_error(capsys):
    cloud = ScriptedCloud("ACTIVE")
    cloud.use(f"gs://my-bucket/{DIRECTORY}")
    missing = failure(404, "Resource was not found")
    cloud.fault = lambda method, path: missing if method == "DELETE" else cloud.poll(method, path)
    assert call(cloud, "delete", "first") == 1 and cloud.changes == []
    assert "first was not deleted: not found, but it exists." in capsys.readouterr().err
    cloud.resources.clear()
    assert call(cloud, "delete", "first") == 1
    assert "first not found. Check --zone and --project." in capsys.readouterr().err


def test_dry_run_shows_the_directory_that_is_given(capsys):
    assert scripted_cloud.tpu.main(["stop", "first", ZONE, RUN_OPTION, "--dry_run"]) == 0
    assert f"WRITE gs://my-bucket/{DIRECTORY}/job.json with stop" in capsys.readouterr().out


@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped before"])
def test_stop_while_a_second_train_waits_is_not_overwritten(is_stopped, capsys):
    cloud, codes = ScriptedCloud("ACTIVE"), []
    train(cloud)
    if is_stopped:
        assert call(cloud, "stop", "first") == 0
    cloud.put(f"{DIRECTORY}/watcher.json", {"name": "laptop-7", "count": 5, "poll_seconds": 60})

    def stop():
        if not codes:
            codes.append(scripted_cloud.tpu.main(["stop", "first", ZONE, RUN_OPTION]))

    cloud.clock.on_sleep.append(stop)
    changes = list(cloud.changes)
    code, log = train(cloud)
    assert codes == [0] and code == 75 and "nothing is started, because a stop was requested meanwhile" in log
    assert cloud.stored()["stop"] is True and cloud.changes == changes and "what remains: first" in log
    cloud.clock.on_sleep.remove(stop)
    assert train(cloud)[0] == 0 and "stop" not in cloud.stored(), "a later call starts the job again"


def test_status_of_a_job_whose_tpu_is_absent(capsys):
    cloud = ScriptedCloud("ACTIVE")
    train(cloud)
    cloud.resources.clear()
    assert call(cloud, "status", "first") == 0
    assert "t5x_like train" not in capsys.readouterr().out
    assert call(cloud, "status", "first", RUN_OPTION) == 0
    shown = capsys.readouterr().out
    assert f"t5x_like train --gin.MODEL_DIR=gs://my-bucket/{RUN}" in shown
    assert "worker 0-1: ended with exit code 0" in shown
    assert call(cloud, "status", "first", "--model_dir=gs://my-bucket/runs/other") == 2
    assert "gs://my-bucket/runs/other/launch/first: job.json not found" in capsys.readouterr().err
