"""Tests for launch/run_report.py with files as t5x_like writes them."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t5x_like.metrics import rows
from t5x_like.runtime import run_files
from t5x_like.training.runs import run_directory, run_lock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import run_report
    import shell
finally:
    sys.path.pop(0)

RUN = "gs://my-bucket/run"


class LocalBucket(shell.Shell):
    """Reads the directory `root` instead of gs://my-bucket."""

    def __init__(self, root: Path):
        super().__init__(dry_run=False)
        self.root = root

    def run(self, *words, **options):
        pattern = words[-1].removeprefix("gs://my-bucket/")
        found = sorted(self.root.glob(pattern))
        text = "\n".join(f"gs://my-bucket/{path.relative_to(self.root)}" for path in found)
        if words[2] == "cat":
            text = "".join(path.read_text() for path in found)
        return subprocess.CompletedProcess(words, int(not found), text, "")


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
