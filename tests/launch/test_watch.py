"""Tests for launch/tpu.py and launch/lifecycle.py with a scripted shell: retries, recreation and invalid arguments."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import cloud
    import lifecycle
    import tpu
finally:
    sys.path.pop(0)

SLICE = ["--topology=v5e:4x4", "--zone=us-west4-a"]
ZONE = ["--zone=us-west4-a"]
COMMAND = ["--", "t5x_like", "train", "--gin.MODEL_DIR=gs://my-bucket/runs/first"]
QUICK = "--poll_seconds=0.001"
ABSENT = "ERROR: NOT_FOUND"
OUTAGE, TOKENS = "ERROR: 503 The service is unavailable", "ERROR: There was a problem refreshing your auth tokens"
DONE = '{"state": "finished", "exit_code": 0}'


class Scripted(cloud.Shell):
    """Replaces the shell of `tpu.main`.

    Args:
      monkeypatch: The fixture of the test.
      states: States of the queued resource in the order of the calls; a text that starts with ERROR is an error. The
        last one repeats.
      deletes: Errors of the first calls to delete. Later calls succeed.
    """

    def __init__(self, monkeypatch, states=(ABSENT,), deletes=()):
        super().__init__(dry_run=False)
        self.states, self.deletes, self.actions = list(states), list(deletes), []
        monkeypatch.setattr(tpu, "Shell", lambda dry_run: self)
        monkeypatch.setattr(lifecycle, "set_up", lambda *arguments: self.actions.append("set up"))

    def run(self, *words, capture=False, check=True):
        action = next(word for word in words if word in ("create", "describe", "delete", "ssh"))
        if "tpu-vm" in words:
            return subprocess.CompletedProcess(words, 0, "READY", "")
        self.actions.append(action)
        output = DONE
        if action == "describe":
            output = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        elif action == "delete" and self.deletes:
            output = self.deletes.pop(0)
        failed = output.startswith("ERROR")
        if failed and check:
            raise cloud.CommandFailed(output)
        return subprocess.CompletedProcess(words, int(failed), "" if failed else output, output if failed else "")


def train(*options: str) -> int:
    return tpu.main(["train", "first", *SLICE, QUICK, *options, *COMMAND])


def test_tpu_preempted_before_ready_is_recreated(monkeypatch, capsys):
    preempted = [ABSENT, "PROVISIONING", "SUSPENDING", ABSENT]
    shell = Scripted(monkeypatch, [*preempted, ABSENT, "SUSPENDED", ABSENT, ABSENT, "ACTIVE"])
    assert train("--max_recreations=2") == 0
    log = capsys.readouterr().err
    assert "first: SUSPENDING; recreating it (1 of 2)" in log
    assert "first: SUSPENDED; recreating it (2 of 2)" in log
    assert [action for action in shell.actions if action not in ("describe", "ssh")] == [
        *("create", "delete", "create", "delete", "create", "set up")
    ]


def test_recreations_are_limited(monkeypatch, capsys):
    shell = Scripted(monkeypatch, [ABSENT, "SUSPENDING", ABSENT, ABSENT, "SUSPENDING"])
    assert train("--max_recreations=1") == 1
    assert "first: SUSPENDING after 1 recreations; giving up" in capsys.readouterr().err
    assert shell.actions.count("create") == 2


def test_create_does_not_recreate(monkeypatch, capsys):
    shell = Scripted(monkeypatch, ["PROVISIONING", "SUSPENDING"])
    assert tpu.main(["create", "first", *SLICE, QUICK]) == 1
    assert "first: SUSPENDING" in capsys.readouterr().err
    assert shell.actions == ["create", "describe", "describe"]


def test_transient_failures_are_retried(monkeypatch, capsys):
    failures = [OUTAGE, TOKENS] * 5
    shell = Scripted(monkeypatch, [*failures, "ACTIVE", *failures, "SUSPENDED", *failures, ABSENT, ABSENT, "ACTIVE"])
    assert train() == 0
    log = capsys.readouterr().err
    assert "503 The service is unavailable; retrying in 0.001 s" in log and "refreshing your auth" in log
    assert "first: SUSPENDED; recreating it (1 of 100)" in log
    assert shell.actions.count("create") == 1


@pytest.mark.parametrize(
    ("failure", "polls"),
    [
        (OUTAGE, 11),
        ("ERROR: PERMISSION_DENIED: caller does not have permission", 1),
        ("ERROR: INVALID_ARGUMENT: Invalid zone", 1),
        ("ERROR: UNAUTHENTICATED: Request had invalid authentication credentials", 1),
        ("ERROR: The required property [project] is not currently set.", 1),
        ("ERROR: You do not currently have an active account selected.", 1),
    ],
)
def test_permanent_failures_are_not_retried(monkeypatch, capsys, failure, polls):
    shell = Scripted(monkeypatch, [failure])
    assert train() == 1
    assert f"gcloud cannot describe first: {failure}" in capsys.readouterr().err
    assert shell.actions == ["describe"] * polls


def test_concurrent_deletion_is_awaited(monkeypatch):
    refusals = ["ERROR: FAILED_PRECONDITION: the resource is already being deleted"] * 20
    states = ["SUSPENDED", "DELETING", *["DELETING"] * 20, ABSENT, ABSENT, "ACTIVE"]
    shell = Scripted(monkeypatch, states, refusals)
    assert train() == 0
    assert shell.actions.count("delete") == 1 and shell.actions.count("create") == 1


def test_tpu_absent_before_deletion_is_recreated(monkeypatch):
    shell = Scripted(monkeypatch, ["SUSPENDED", ABSENT, ABSENT, "ACTIVE"], [ABSENT])
    assert train() == 0
    assert shell.actions.count("delete") == 1


def test_failed_deletion_is_retried_after_the_job_is_done(monkeypatch, capsys):
    shell = Scripted(monkeypatch, ["ACTIVE", "ACTIVE", "ACTIVE", "ACTIVE", ABSENT], [OUTAGE, TOKENS])
    assert train("--delete_when_done") == 0
    assert "gcloud did not delete first: ERROR: 503 The service is unavailable; retrying" in capsys.readouterr().err
    assert shell.actions.count("delete") == 3


@pytest.mark.parametrize(("refusal", "deletes"), [(OUTAGE, 11), ("ERROR: PERMISSION_DENIED", 1)])
def test_tpu_that_cannot_be_deleted_raises(monkeypatch, capsys, refusal, deletes):
    shell = Scripted(monkeypatch, ["SUSPENDED"], [refusal] * 20)
    assert train() == 1
    assert f"gcloud did not delete first: {refusal}" in capsys.readouterr().err
    assert shell.actions.count("delete") == deletes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "First", *SLICE, *COMMAND], "TPU name 'First': invalid name. Use lower-case letters"),
        (["train", "first", "--zone=us-west4-a", *COMMAND], "no slice given. Add --topology=v5e:4x4"),
        (["train", "first", "--topology=v5e:4x5", "--zone=us-west4-a", *COMMAND], "v5e does not have a slice 4x5"),
        (["train", "first", "--topology=v5e:4x4", *COMMAND], "--zone is missing. v5e is available in"),
        (["train", "first", "--topology=v5e:4x4", "--zone=us-west4", *COMMAND], "is not a zone. It is a region"),
        (["train", "first", "--topology=v5e:4x4", "--zone=us-central2-b", *COMMAND], "not known to have v5e"),
        (["train", "first", *SLICE], "no command given"),
        (["train", "first", *SLICE, "--", "t5x_like", "train"], "without --gin.MODEL_DIR"),
        (
            ["start", "first", *ZONE, "--", "t5x_like", "train", "--gin.MODEL_DIR=runs/x"],
            "is on the machine's own disk",
        ),
        (["train", "first", *SLICE, "--num_slices=2", "--dry_run", *COMMAND], "Add --gin.DCN=\"{'data': 2}\""),
        (["create", "first", *SLICE, "--spot", "--reserved"], "--spot and --reserved exclude each other"),
        (["create", "first", *SLICE, "--no_queue", "--num_slices=2"], "requires a queued resource"),
        (
            ["create", "first", *SLICE, "--valid_until=soon", "--dry_run"],
            "--valid_until=soon: not a duration. Write for example 6h",
        ),
        (
            ["train", "first", *SLICE, "--poll_seconds=-1", "--dry_run", *COMMAND],
            "--poll_seconds=-1: not a positive number",
        ),
        (["wait", "first", *ZONE, "--poll_seconds=nan"], "--poll_seconds=nan: not a positive number"),
        (
            ["start", "first", *ZONE, "--max_restarts=-1", "--dry_run", *COMMAND],
            "--max_restarts=-1: below the minimum. Give at least 0",
        ),
        (
            ["train", "first", *SLICE, "--max_recreations=-1", *COMMAND],
            "--max_recreations=-1: below the minimum. Give at least 0",
        ),
        (["stop", "first", *ZONE, "--grace=-5", "--dry_run"], "--grace=-5: below the minimum. Give at least 0"),
        (["logs", "first", *ZONE, "--worker=-3", "--dry_run"], "--worker=-3: below the minimum. Give at least 0"),
        (["logs", "first", *ZONE, "--slice=-1"], "--slice=-1: below the minimum. Give at least 0"),
        (["create", "first", *SLICE, "--num_slices=0"], "--num_slices=0: below the minimum. Give at least 1"),
        (["create", "first", *SLICE, "--project=X"], "is not a project ID"),
        (["copy", "first", *ZONE, "--staging=/tmp/x"], "--staging=/tmp/x is not a directory in a bucket"),
        (["fetch", "runs/first", "here"], "is not a directory in a bucket"),
    ],
)
def test_invalid_arguments_exit_before_any_call(monkeypatch, capsys, words, message):
    shell = Scripted(monkeypatch)
    assert tpu.main(words) == 2
    assert message in capsys.readouterr().err
    assert shell.actions == []
