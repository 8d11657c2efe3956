"""Tests for the arguments of launch/tpu.py: errors before anything is called, and what a dry run shows."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import tpu
finally:
    sys.path.pop(0)

SLICE = ["--topology=v5e:4x4", "--zone=us-west4-a"]
ZONE = ["--zone=us-west4-a"]
COMMAND = ["--", "t5x_like", "train", "--gin.MODEL_DIR=gs://my-bucket/runs/first"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "First", *SLICE, *COMMAND], "TPU name 'First': invalid name. Use lower-case letters"),
        (["train", "first", "--zone=us-west4-a", *COMMAND], "no slice given. Add --topology=v5e:4x4"),
        (["train", "first", "--topology=v5e:4x5", "--zone=us-west4-a", *COMMAND], "v5e does not have a slice 4x5"),
        (["train", "first", "--topology=v5e:4x4", *COMMAND], "--zone is missing. v5e is available in"),
        (["train", "first", "--topology=v5e:4x4", "--zone=us-west4", *COMMAND], "is not a zone. It is a region"),
        (["train", "first", "--topology=v5e:4x4", "--zone=us-central2-b", *COMMAND], "not known to have v5e"),
        (
            ["train", "first", "--topology=tpu7x:2x2x1", "--zone=us-central1-c", "--spot", *COMMAND],
            "--topology=tpu7x:2x2x1: the Cloud TPU API does not have tpu7x. Use launch/gke.py (docs/gke.md).",
        ),
        (["train", "first", *SLICE], "no command given"),
        (["train", "first", *SLICE, "--", "t5x_like", "train"], "without --gin.MODEL_DIR"),
        (
            ["train", "first", *SLICE, "--", "t5x_like", "train", "--gin.MODEL_DIR=runs/x"],
            "is on the machine's own disk",
        ),
        (
            ["train", "first", *SLICE, "--dry_run", "--", "t5x_like", "infer", "--help"],
            "the command has no MODEL_DIR in a bucket, where its code and its logs are stored. Add --staging=gs://",
        ),
        (["train", "first", *SLICE, "--num_slices=2", "--dry_run", *COMMAND], "Add --gin.DCN=\"{'data': 2}\""),
        (["train", "first", *SLICE, "--spot", "--reserved", *COMMAND], "--spot and --reserved exclude each other"),
        (["train", "first", *SLICE, "--spot", "--flex_start", *COMMAND], "exclude each other"),
        (["train", "first", *SLICE, "--flex_start", *COMMAND], "--flex_start without --max_run_duration"),
        (
            ["train", "first", *SLICE, "--valid_until=soon", "--dry_run", *COMMAND],
            "--valid_until=soon: not a duration. Write for example 6h",
        ),
        (
            ["train", "first", *SLICE, "--poll_seconds=-1", "--dry_run", *COMMAND],
            "--poll_seconds=-1: not a positive number",
        ),
        (["train", "first", *SLICE, "--poll_seconds=nan", *COMMAND], "--poll_seconds=nan: not a positive number"),
        (
            ["train", "first", *SLICE, "--max_restarts=-1", "--dry_run", *COMMAND],
            "--max_restarts=-1: below the minimum. Give at least 0",
        ),
        (
            ["train", "first", *SLICE, "--max_recreations=-1", *COMMAND],
            "--max_recreations=-1: below the minimum. Give at least 0",
        ),
        (["logs", "first", *ZONE, "--worker=-3", "--dry_run"], "--worker=-3: below the minimum. Give at least 0"),
        (["logs", "first", *ZONE, "--slice=-1"], "--slice=-1: below the minimum. Give at least 0"),
        (["train", "first", *SLICE, "--num_slices=0", *COMMAND], "--num_slices=0: below the minimum. Give at least 1"),
        (["train", "first", *SLICE, "--project=X", *COMMAND], "is not a project ID"),
        (["train", "first", *SLICE, "--staging=/tmp/x", *COMMAND], "--staging=/tmp/x is not a directory in a bucket"),
        (["train", "first", *SLICE, "--price=-1", "--dry_run", *COMMAND], "--price=-1: negative or not finite"),
        (["train", "first", *SLICE, "--hours=nan", "--dry_run", *COMMAND], "--hours=nan: negative or not finite"),
        (
            ["train", "first", *SLICE, "--", "t5x_like", "train", "--gin.MODEL_DIR=gs://my-bucket/runs/[1]"],
            "--gin.MODEL_DIR=gs://my-bucket/runs/[1] is not a directory in a bucket",
        ),
        (["fetch", "runs/first", "here"], "is not a directory in a bucket"),
        (["train", "first", *SLICE, "--service_account=robot", *COMMAND], "--service_account=robot: not the address"),
        (["train", "first", *SLICE, "--", "t5x_like", "trian"], "t5x_like trian: unknown command; did you mean train"),
        (["stop", "first", *ZONE, "--", "t5x_like", "train"], "stop does not run a command. Remove -- t5x_like"),
    ],
)
def test_invalid_arguments_exit_before_any_call(monkeypatch, capsys, words, message):
    for module, name in ((tpu.shell, "run"), (tpu.cloud, "connect"), (tpu, "check_command")):
        monkeypatch.setattr(module, name, lambda *arguments: pytest.fail(f"called with {arguments}"))
    assert tpu.main(words) == 2
    assert message in capsys.readouterr().err


def test_command_without_separator_is_reported(capsys):
    with pytest.raises(SystemExit):
        tpu.main(["train", "first", *SLICE, "t5x_like", "train"])
    assert "unrecognized arguments: t5x_like train. Write -- before the t5x_like command" in capsys.readouterr().err


def test_single_vm_on_spot_is_a_queued_resource(capsys):
    """Instance groups do not have it: their bulk mode takes several VMs."""
    words = ["train", "first", "--topology=v5p:2x2x1", "--zone=us-east5-a", "--spot", "--dry_run"]
    assert tpu.main([*words, *COMMAND]) == 0
    shown = capsys.readouterr().out
    assert "/queuedResources?queuedResourceId=first\n" in shown and '"acceleratorType": "v5p-8"' in shown
    with pytest.raises(SystemExit):
        tpu.main([*words, "--backend=groups", *COMMAND])
    assert "unrecognized arguments: --backend=groups" in capsys.readouterr().err
