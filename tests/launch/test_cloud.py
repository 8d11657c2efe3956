"""Tests for launch/cloud.py and launch/bucket.py: errors by type, what to do about them, and objects by generation."""

import sys
from pathlib import Path

import cloud_storage
import pytest
import scripted_cloud
from google_cloud import GoogleCloud, Reply, failure

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import bucket
    import cloud
finally:
    sys.path.pop(0)

QUOTA = {"@type": "type.googleapis.com/google.rpc.QuotaFailure"}


def raised(reply: Reply) -> Exception:
    """Returns the error for an answer of the API."""
    answers = GoogleCloud()
    answers.fault = lambda method, path: reply
    clock = scripted_cloud.Clock()
    with scripted_cloud.connected(answers, clock), pytest.raises(cloud.CommandFailed) as error:
        clients = cloud.connect(None)
        with cloud.errors("the call"):
            clients.tpu.get_queued_resource(name="projects/p/locations/z/queuedResources/q", retry=cloud.retry())
    assert clock.seconds <= 2 * cloud.RETRY_SECONDS
    return error.value


@pytest.mark.parametrize(
    ("reply", "kind", "advice"),
    [
        (failure(503, "unavailable"), cloud.TransientFailure, "the call: unavailable."),
        (failure(500, "internal"), cloud.TransientFailure, "the call: internal."),
        (failure(429, "calls", ErrorInfo={"reason": "RATE_LIMIT_EXCEEDED"}), cloud.TransientFailure, "If this repeats"),
        (failure(429, "calls", QuotaFailure={}), cloud.CommandFailed, "the call: calls. Request quota for these chips"),
        (failure(404, "network mine"), cloud.NotFound, "Correct the option that the message is about"),
        (failure(400, "malformed"), cloud.CommandFailed, "the call: malformed. Correct the option"),
        (failure(403, "no"), cloud.CommandFailed, "ask for roles/tpu.admin"),
        (failure(409, "there"), cloud.AlreadyExists, "Choose another name"),
        (failure(412, "policy"), cloud.Changed, "policy"),
        (failure(401, "who"), cloud.LoginExpired, "Run `gcloud auth application-default login` in another terminal"),
        (Reply(404, b"404 page not found"), cloud.TransientFailure, "HTTP 404, not an answer of the API"),
        (Reply(403, b"<html>blocked"), cloud.TransientFailure, "HTTP 403, not an answer of the API"),
        (Reply(404, b'{"error": "not found"}'), cloud.TransientFailure, "the call: "),
    ],
)
def test_errors_have_types_and_advice(reply, kind, advice):
    error = raised(reply)
    assert type(error) is kind and advice in str(error) and str(error).startswith("the call: ")


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (8, [], cloud.TransientFailure),
        (8, [QUOTA], cloud.CommandFailed),
        (8, [{"@type": "x.ErrorInfo", "reason": "QUOTA_EXCEEDED"}], cloud.CommandFailed),
        (8, [QUOTA, {"@type": "x.ErrorInfo", "reason": "RATE_LIMIT_EXCEEDED"}], cloud.TransientFailure),
        (8, ["invalid", {}], cloud.TransientFailure),
        (14, [], cloud.TransientFailure),
        (0, [], cloud.TransientFailure),
        (7, [], cloud.CommandFailed),
        (16, [], cloud.LoginExpired),
    ],
)
def test_refusals_are_classified_by_code(code, details, kind):
    assert type(cloud.classify("refused.", code, details)) is kind


def test_missing_credentials_are_a_missing_login(monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    monkeypatch.delenv(cloud.ENDPOINT, raising=False)
    with pytest.raises(cloud.LoginExpired, match=r"no credentials of Google Cloud: .*missing.json was not found"):
        cloud.connect("my-project")


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.cloud.tpu_v2", None)
    with pytest.raises(cloud.CommandFailed, match=r"google.cloud.tpu_v2 not found for .* Run `pip install"):
        cloud.connect(None)


def test_objects_are_replaced_by_generation(tmp_path):
    """With a server of another project."""
    with cloud_storage.serve(tmp_path, "my-bucket"), pytest.MonkeyPatch.context() as patch:
        patch.setenv(cloud.ENDPOINT, "http://127.0.0.1:9")
        objects = bucket.Bucket(cloud.connect(None))
        path = "gs://my-bucket/runs/first/job.json"
        assert objects.read(path) is None and objects.generation(path) is None
        first = objects.write(path, b"1", 0)
        with pytest.raises(cloud.Changed):
            objects.write(path, b"2", 0)
        second = objects.write(path, b"3\r\n\xff", first)
        with pytest.raises(cloud.Changed):
            objects.write(path, b"4", first)
        assert second != first and objects.read(path) == (b"3\r\n\xff", second)
        assert objects.read(path, 2).data == b"\n\xff"
        for name in ("checkpoints/5/data", "checkpoints/17/state/data"):
            objects.write(f"gs://my-bucket/runs/first/{name}", b"")
        assert objects.directories("gs://my-bucket/runs/first/checkpoints") == ["17", "5"]
        assert list(objects.generations("gs://my-bucket/runs/first/job")) == [path]
