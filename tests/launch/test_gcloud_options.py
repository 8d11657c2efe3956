"""Tests that gcloud, where it is installed, accepts the commands of launch/tpu.py that call it."""

import shlex
import shutil
import sys
from pathlib import Path

import gcloud_linter
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import queued
    import tpu
finally:
    sys.path.pop(0)


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("gcloud"), reason="needs gcloud")
def test_gcloud_accepts_all_options(capsys, tmp_path):
    run = "gs://my-bucket/runs/first"
    assert (
        tpu.main(["fetch", run, "here", "--dry_run"])
        == tpu.main(["fetch", run, "x", "--checkpoints", "--dry_run"])
        == 0
    )
    fetches = [line for line in capsys.readouterr().out.splitlines() if line.startswith("gcloud ")]
    deletion = queued.QueuedResource(None, "first", "us-west4-a", "my-project").delete_words()
    worker = [shlex.join([*deletion, "--project=my-project"])]
    worker += [f"gcloud storage ls {run}/launch/first/** --quiet", f"gcloud storage cat {run}/job.json --quiet"]
    assert len(fetches) == 2
    assert gcloud_linter.errors([*fetches, *worker], tmp_path) == {}
