"""Tests for launch/worker.py: when a worker stops its command, and when it deletes the TPU.

tests/launch/test_tpu.py runs it in whole.
"""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.full

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import worker as workers
finally:
    sys.path.pop(0)

JOB = {
    **{"id": "1", "code": "code-0", "commit": "0", "command": ["t5x_like"], "env": {}, "run": None, "num_slices": 1},
    **{"poll_seconds": 30, "max_restarts": 3, "max_run_seconds": 0},
    **{"delete_when_done": False, "delete": ["gcloud", "delete"]},
}


class Bucket:
    """Answers `gcloud storage cat`: job.json, and how the job has ended on other workers."""

    def __init__(self):
        self.job, self.ends, self.listed = dict(JOB), {}, None

    def __call__(self, verb: str, path: str) -> str | None:
        if verb == "ls":
            return self.listed
        if path.endswith("job.json"):
            return None if self.job is None else json.dumps(self.job)
        ends = [json.dumps({"worker": name, "exit_code": code}) for name, code in self.ends.items()]
        return "\n".join(ends) or None


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Returns a function that makes a worker, and its bucket."""
    bucket = Bucket()
    monkeypatch.setattr(workers.Worker, "_gcloud", staticmethod(bucket))
    before = signal.getsignal(signal.SIGTERM)

    def make_worker(name: str = "0-0", **changes) -> tuple[workers.Worker, Bucket]:
        bucket.job = {**JOB, **changes}
        (tmp_path / "t5x_like_job.json").write_text(json.dumps(bucket.job))
        words = ["--directory=gs://b/launch", f"--slice={name[0]}", f"--worker={name[2:]}"]
        return workers.Worker(workers.make_parser().parse_args(words), tmp_path), bucket

    yield make_worker
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("job", "ends", "reason"),
    [
        (JOB, {}, None),
        (None, {}, None),  # the bucket cannot be read
        ({**JOB, "stop": True}, {}, ("another job or a stop was requested", 75)),
        ({**JOB, "id": "2"}, {}, ("another job or a stop was requested", 75)),
        (JOB, {"0-1": 0, "0-2": 75}, None),
        (JOB, {"0-1": 0, "0-2": 2}, ("worker 0-2 has failed", 2)),
        (JOB, {"0-1": "2"}, None),  # invalid values
        ({"id": "2"}, {}, None),
        ([], {}, None),
    ],
)
def test_worker_stops_its_command_for_a_reason(make, job, ends, reason):
    worker, bucket = make()
    bucket.job, bucket.ends = job, ends
    assert worker._reason_to_stop("ends") == reason


def test_worker_waits_for_others_that_have_succeeded_only_for_a_time(make, monkeypatch):
    clock = iter([100.0, 200.0, 1200.0])
    worker, bucket = make()
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert worker._reason_to_stop("ends") is None
    bucket.ends = {"0-1": 0}
    assert worker._reason_to_stop("ends") is None
    assert worker._reason_to_stop("ends") == ("the other workers have ended", 0)


def test_time_of_a_tpu_counts_from_its_first_boot(make, tmp_path):
    worker, _ = make(max_run_seconds=3600)
    assert worker._reason_to_stop("ends") is None
    boot = tmp_path / "t5x_like_first_boot"
    os.utime(boot, (boot.stat().st_atime, boot.stat().st_mtime - 3700))
    assert make(max_run_seconds=3600)[0]._reason_to_stop("ends") == ("the limit of 3600 s (--max_run_duration)", 75)


@pytest.mark.parametrize(
    ("name", "changes", "seconds", "deletes"),
    [
        ("0-0", {"delete_when_done": True}, 3600, True),
        ("0-0", {"delete_when_done": True}, 60, False),  # `tpu.py train` may do it
        ("0-1", {"delete_when_done": True}, 3600, False),
        ("0-0", {"delete_when_done": True, "stop": True}, 3600, False),  # `tpu.py stop` keeps the TPU
        ("0-0", {}, 3600, False),
    ],
)
def test_first_worker_deletes_the_tpu_only_if_told(make, name, changes, seconds, deletes):
    worker, _ = make(name, **changes)
    assert worker._may_delete(seconds) == deletes


def test_unreadable_job_json_does_not_delete_the_tpu(make):
    worker, bucket = make(delete_when_done=True)
    assert worker._may_delete(3600)
    bucket.job = None
    assert not worker._may_delete(3600), "somebody may have stopped the job, which keeps the TPU"
    bucket.job = {"id": "1"}
    assert not worker._may_delete(3600)
    assert "job.json: code missing, not str" in worker.log.read_text()


def test_job_that_has_ended_is_not_run_again_while_the_bucket_cannot_be_read(make, monkeypatch):
    worker, bucket = make()
    end = "gs://b/launch/ends/1/0-0.json"
    answers = iter([None, "", f"gs://b/launch/job.json\n{end}\n"])  # two errors, and a list
    monkeypatch.setattr(workers.Worker, "_gcloud", staticmethod(lambda *words: next(answers)))
    monkeypatch.setattr(workers, "time", SimpleNamespace(sleep=lambda seconds: None))
    assert worker._has_ended(end)
    answers = iter(["gs://b/launch/job.json"])
    assert not worker._has_ended(end)
