"""Tests that gcloud, where it is installed, accepts every command that launch/tpu.py runs."""

import shutil
import sys
from pathlib import Path

import gcloud_linter
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import tpu
finally:
    sys.path.pop(0)

QUEUED = ["--zone=us-west4-a", "--tunnel_through_iap"]
GROUPS = ["--zone=us-central1-c", "--project=my-project", "--tunnel_through_iap", "--backend=groups"]
NETWORK = ["--network=mine", "--subnetwork=mine", "--service_account=me@my-project.iam.gserviceaccount.com"]
V5E, V5P, TPU7X = "--topology=v5e:4x4", "--topology=v5p:4x4x16", "--topology=tpu7x:4x4x4"
FLEX_START = ["--flex_start", "--max_run_duration=2d"]
RUN = "gs://my-bucket/runs/first"
# Options that gcloud 528, of June 2025, does not have yet.
NEWER_OPTIONS = ("--target-size-policy-mode=bulk", "--provisioning-model=FLEX_START")


def dry_run(capsys, *words: str) -> list[str]:
    separator = words.index("--") if "--" in words else len(words)
    assert tpu.main([*words[:separator], "--dry_run", *words[separator:]]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("gcloud ")]


@pytest.mark.skipif(not shutil.which("gcloud"), reason="needs gcloud")
def test_gcloud_accepts_all_options(capsys, tmp_path):
    command = ["--", "t5x_like", "train", f"--gin.MODEL_DIR={RUN}"]
    commands = [
        *dry_run(capsys, "train", "first", V5E, *QUEUED, *NETWORK, "--spot", "--staging=gs://my-bucket/code", *command),
        *dry_run(capsys, "train", "first", TPU7X, *GROUPS, *NETWORK, "--internal_ips", "--spot", *command),
        *dry_run(capsys, "create", "first", V5E, *QUEUED, "--reserved", "--internal_ips", "--num_slices=2"),
        *dry_run(capsys, "create", "first", V5E, *QUEUED, "--reservation=mine", "--valid_until=6h"),
        *dry_run(capsys, "create", "first", V5P, "--zone=us-east5-a", "--spot"),
        *dry_run(capsys, "create", "first", V5E, *QUEUED, *FLEX_START),
        *dry_run(capsys, "create", "first", TPU7X, *GROUPS, *FLEX_START),
        *dry_run(capsys, "create", "first", TPU7X, *GROUPS, "--reservation=mine"),
        *dry_run(capsys, "status", "first", *QUEUED),
        *dry_run(capsys, "logs", "first", *QUEUED, f"--model_dir={RUN}"),
        *dry_run(capsys, "fetch", RUN, "here"),
    ]
    assert len(set(commands)) > 15
    refused = gcloud_linter.errors(commands, tmp_path)
    assert {t: m for t, m in refused.items() if not any(option in t for option in NEWER_OPTIONS)} == {}
