"""Tests for launch/run_report.py with files as t5x_like writes them."""

import json
import sys
import time
import types
from pathlib import Path

import pytest

from t5x_like.metrics import rows
from t5x_like.runtime import run_files
from t5x_like.training.runs import run_directory, run_lock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import run_report
finally:
    sys.path.pop(0)

RUN = "gs://my-bucket/run"


class LocalBucket:
    """Reads the directory `root` instead of gs://my-bucket, as launch/bucket.py does."""

    def __init__(self, root: Path):
        self.root = root

    def read(self, path: str, last_bytes: int | None = None):
        file = self.root / path.removeprefix("gs://my-bucket/")
        return types.SimpleNamespace(data=file.read_bytes()[-(last_bytes or 0) :]) if file.exists() else None

    def generations(self, prefix: str) -> dict[str, int]:
        directory = self.root / prefix.removeprefix("gs://my-bucket/")
        return {f"{prefix}{path.name}": path.stat().st_mtime_ns for path in sorted(directory.glob("*"))}

    def generation(self, path: str) -> int | None:
        return self.generations(f"{path.rpartition('/')[0]}/").get(path)

    def directories(self, directory: str) -> list[str]:
        return [path.name for path in (self.root / directory.removeprefix("gs://my-bucket/")).glob("*/")]


@pytest.fixture
def bucket(tmp_path) -> LocalBucket:
    (tmp_path / "run" / rows._DIRECTORY).mkdir(parents=True)
    return LocalBucket(tmp_path)


def write_rows(bucket: LocalBucket, name: str, *values: tuple[int, str, float]) -> None:
    assert rows._OBJECT.match(name)
    lines = [json.dumps({"step": step, "split": split, "loss": loss}) + "\n" for step, split, loss in values]
    (bucket.root / "run" / rows._DIRECTORY / name).write_text("".join(lines))


def test_running_run_shows_step_loss_and_age_of_heartbeat(bucket):
    directory = str(bucket.root / "run")
    assert "no step recorded yet" in run_report.report(bucket, RUN)
    run_directory.Status(directory).write("running", step=0)
    write_rows(bucket, "00000-after-0.jsonl", (10, "train", 3.5), (10, "validation", 9.0))
    write_rows(bucket, "00001-after-10.jsonl")
    with run_lock.RunLock(directory):
        lock = bucket.root / "run" / run_lock.LOCK
        holder = json.loads(lock.read_text())
        lock.write_text(json.dumps({**holder, "heartbeat": time.time() - 100}))
        report = run_report.report(bucket, RUN)
        lock.write_text(json.dumps(holder))
    assert report.startswith(f"{RUN}: running, step 10, loss 3.5000, last heartbeat 10")
    assert (run_report.STATUS, run_report.LOCK) == (run_files.STATUS, run_lock.LOCK)
    assert "no heartbeat: no process holds the run" in run_report.report(bucket, RUN)


def test_failed_run_shows_its_reason(bucket):
    run_directory.Status(str(bucket.root / "run")).write("failed", step=7, reason="out of memory")
    assert run_report.report(bucket, RUN) == f"{RUN}: failed, step 7 (out of memory)"


def test_run_outside_of_a_bucket_is_not_read(bucket):
    assert "not in a bucket" in run_report.report(bucket, "/mnt/run")


def test_heartbeat_is_the_generation_of_the_lock(bucket):
    directory = str(bucket.root / "run")
    assert run_report.heartbeat(bucket, RUN) is None
    with run_lock.RunLock(directory) as lock:
        first = run_report.heartbeat(bucket, RUN)
        lock._send_heartbeat()
        assert run_report.heartbeat(bucket, RUN) not in (first, None)
    assert run_report.heartbeat(bucket, RUN) is None


def test_newest_checkpoint_is_a_number(bucket):
    assert run_report.newest_checkpoint(bucket, RUN) == -1
    for name in ("5", "17", "20.orbax-checkpoint-tmp"):
        (bucket.root / "run" / run_report.CHECKPOINTS / name).mkdir(parents=True)
    assert run_report.newest_checkpoint(bucket, RUN) == 17
