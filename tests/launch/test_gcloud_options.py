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

PLACE = ["--zone=us-west4-a", "--project=my-project"]
NETWORK = ["--network=mine", "--subnetwork=mine", "--service_account=me@my-project.iam.gserviceaccount.com"]
V5E, V5P = "--topology=v5e:4x4", "--topology=v5p:4x4x16"
RUN = "gs://my-bucket/runs/first"
COMMAND = ["--", "t5x_like", "train", f"--gin.MODEL_DIR={RUN}"]


def dry_run(capsys, *words: str) -> list[str]:
    separator = words.index("--") if "--" in words else len(words)
    assert tpu.main([*words[:separator], "--dry_run", *words[separator:]]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("gcloud ")]


@pytest.mark.skipif(not shutil.which("gcloud"), reason="needs gcloud")
def test_gcloud_accepts_all_options(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).resolve().parents[2])  # gcloud reads the start-up script
    dcn = "--gin.DCN={'data': 2}"
    commands = [
        *dry_run(capsys, "train", "first", V5E, *PLACE, *NETWORK, "--spot", "--staging=gs://my-bucket/code", *COMMAND),
        *dry_run(
            capsys,
            *("train", "first", V5E, *PLACE, "--reserved", "--internal_ips", "--num_slices=2", *COMMAND, dcn),
        ),
        *dry_run(capsys, "train", "first", V5E, *PLACE, "--reservation=mine", "--valid_until=6h", *COMMAND),
        *dry_run(capsys, "train", "first", V5P, "--zone=us-east5-a", "--spot", *COMMAND),
        *dry_run(capsys, "train", "first", V5E, *PLACE, "--flex_start", "--max_run_duration=2d", *COMMAND),
        *dry_run(capsys, "status", "first", *PLACE),
        *dry_run(capsys, "logs", "first", *PLACE, f"--model_dir={RUN}"),
        *dry_run(capsys, "stop", "first", *PLACE),
        *dry_run(capsys, "delete", "first", *PLACE),
        *dry_run(capsys, "fetch", RUN, "here"),
    ]
    assert len(set(commands)) > 12
    assert gcloud_linter.errors(commands, tmp_path) == {}
