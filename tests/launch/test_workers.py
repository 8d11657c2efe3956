"""Tests for launch/workers.py with a fake cloud: workers that fail are retried by themselves."""

import pytest

PLACES = {
    "queued": ["--zone=us-west4-a"],
    "groups": ["--zone=us-central1-c", "--project=my-project", "--backend=groups"],
}


@pytest.fixture(params=PLACES)
def place(request, cloud) -> list[str]:
    """Creates `first` with four workers, and returns the options that say where it is."""
    topology = {"queued": "v5e:4x4", "groups": "tpu7x:2x2x4"}[request.param]
    cloud.set(plan=[["ACTIVE"]], workers=4)
    cloud.tpu("create", "first", f"--topology={topology}", *PLACES[request.param])
    cloud.calls()
    return PLACES[request.param]


def targets(cloud, action: str) -> list[str]:
    """Returns the worker of each call of an action: its index, or `all`."""
    calls = [words for words in cloud.calls() if action in words]
    named = [word for words in calls for word in words if word.startswith(("--worker=", "first-w"))]
    return [word.partition(":")[0].removeprefix("--worker=").removeprefix("first-w") for word in named]


def test_worker_without_ssh_is_retried_alone(cloud, place):
    failures = cloud.directory / "ssh_failures_first-w2"
    failures.write_text("2")
    log = cloud.tpu("copy", "first", *place).stderr
    assert "copying failed on some workers; retrying in 0.01 s (1 of 3)" in log
    assert "copying failed on worker 2 of slice 0; retrying in 0.02 s (2 of 3)" in log
    together = 4 if "--backend=groups" in place else 1
    assert sorted(targets(cloud, "scp")[together:]) == ["0", "1", "2", "2", "3"] and failures.read_text() == "0"
    assert all((cloud.home(f"first-w{index}") / "t5x_like/setup.py").exists() for index in range(4))


def test_worker_that_cannot_install_is_named_with_the_end_of_its_output(cloud, place):
    cloud.tpu("copy", "first", *place)
    (cloud.home("first-w1") / "no_uv").touch()
    log = cloud.tpu("install", "first", *place, code=1, RETRY_SECONDS="0").stderr
    assert "installing failed on worker 1 of slice 0; retrying in 0.04 s (3 of 3)" in log
    assert "installing failed on 1 of 4 workers\nworker 1 of slice 0 (exit code 1):\n" in log
    assert "\n    error: package index: 503\n" in log
    assert cloud.installs() == ["first-w0", "first-w2", "first-w3"]
    (cloud.home("first-w1") / "no_uv").unlink()
    cloud.tpu("install", "first", *place)
    assert cloud.installs() == ["first-w0", "first-w1", "first-w2", "first-w3"]


def test_full_disk_is_not_retried(cloud, place):
    cloud.tpu("copy", "first", *place)
    (cloud.home("first-w3") / "t5x_like_venv").write_text("")
    script = cloud.home("first-w3") / "t5x_like/launch/install_worker.sh"
    script.write_text("#!/usr/bin/env bash\necho 'OSError: No space left on device' >&2\nexit 1\n")
    log = cloud.tpu("install", "first", *place, code=1).stderr
    assert "(1 of 3)" in log and "(2 of 3)" not in log
    assert "worker 3 of slice 0 (exit code 1):\n    OSError: No space left on device" in log


def test_lost_tpu_is_reported_instead_of_its_workers(cloud, place):
    resource = cloud.state()["resources"]["first"]
    cloud.set(resources={"first": {**resource, "states": ["SUSPENDED"]}})
    log = cloud.tpu("install", "first", *place, code=1).stderr
    assert "installing failed, because first is not ready: " in log and "retrying" not in log
    assert "Repeat `launch/tpu.py train`, or delete the TPU." in log
