"""launch/tpu.py and a shell that answers what a test says: what ends the watch, what does not, and what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import cloud
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
    """In the place of the shell of `tpu.main`.

    Args:
      monkeypatch: of the test.
      states: of the queued resource, as they are asked for; an error where the text begins so. The last one stays.
      deletes: errors of the first calls to delete; later ones succeed.
    """

    def __init__(self, monkeypatch, states=(ABSENT,), deletes=()):
        super().__init__(dry_run=False)
        self.states, self.deletes, self.actions = list(states), list(deletes), []
        monkeypatch.setattr(tpu, "Shell", lambda dry_run: self)
        monkeypatch.setattr(tpu, "set_up", lambda *arguments: self.actions.append("set up"))

    def run(self, *words, capture=False, check=True):
        action = next(word for word in words if word in ("create", "describe", "delete", "ssh"))
        if "tpu-vm" in words:
            return subprocess.CompletedProcess(words, 0, "READY", "")
        self.actions.append(action)
        said = DONE
        if action == "describe":
            said = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        elif action == "delete" and self.deletes:
            said = self.deletes.pop(0)
        failed = said.startswith("ERROR")
        if failed and check:
            raise cloud.CommandFailed(said)
        return subprocess.CompletedProcess(words, int(failed), "" if failed else said, said if failed else "")


def train(*options: str) -> int:
    return tpu.main(["train", "first", *SLICE, QUICK, *options, *COMMAND])


def test_a_tpu_that_is_preempted_before_it_was_seen_ready_is_made_anew(monkeypatch, capsys):
    taken = [ABSENT, "PROVISIONING", "SUSPENDING", ABSENT]
    shell = Scripted(monkeypatch, [*taken, ABSENT, "SUSPENDED", ABSENT, ABSENT, "ACTIVE"])
    assert train("--max_recreations=2") == 0
    said = capsys.readouterr().err
    assert "first is SUSPENDING: making it anew (1 of 2)" in said
    assert "first is SUSPENDED: making it anew (2 of 2)" in said
    assert [action for action in shell.actions if action not in ("describe", "ssh")] == [
        *("create", "delete", "create", "delete", "create", "set up")
    ]


def test_a_tpu_that_is_never_ready_is_given_up_in_the_end(monkeypatch, capsys):
    shell = Scripted(monkeypatch, [ABSENT, "SUSPENDING", ABSENT, ABSENT, "SUSPENDING"])
    assert train("--max_recreations=1") == 1
    assert "first is SUSPENDING, after 1 recreations; giving up" in capsys.readouterr().err
    assert shell.actions.count("create") == 2


def test_a_tpu_that_is_created_by_itself_is_not_made_anew(monkeypatch, capsys):
    shell = Scripted(monkeypatch, ["PROVISIONING", "SUSPENDING"])
    assert tpu.main(["create", "first", *SLICE, QUICK]) == 1
    assert "first is SUSPENDING" in capsys.readouterr().err
    assert shell.actions == ["create", "describe", "describe"]


def test_the_watch_survives_failures_of_gcloud_and_sees_a_preemption_after_them(monkeypatch, capsys):
    failures = [OUTAGE, TOKENS] * 5
    shell = Scripted(monkeypatch, [*failures, "ACTIVE", *failures, "SUSPENDED", *failures, ABSENT, ABSENT, "ACTIVE"])
    assert train() == 0
    said = capsys.readouterr().err
    assert "503 The service is unavailable; asking again in 0.001 s" in said and "refreshing your auth" in said
    assert "first is SUSPENDED: making it anew (1 of 100)" in said
    assert shell.actions.count("create") == 1


@pytest.mark.parametrize(
    ("failure", "looks"),
    [
        (OUTAGE, 11),
        ("ERROR: PERMISSION_DENIED: caller does not have permission", 1),
        ("ERROR: INVALID_ARGUMENT: Invalid zone", 1),
        ("ERROR: UNAUTHENTICATED: Request had invalid authentication credentials", 1),
        ("ERROR: The required property [project] is not currently set.", 1),
        ("ERROR: You do not currently have an active account selected.", 1),
    ],
)
def test_what_would_be_answered_alike_ends_the_watch(monkeypatch, capsys, failure, looks):
    shell = Scripted(monkeypatch, [failure])
    assert train() == 1
    assert f"gcloud cannot describe first: {failure}" in capsys.readouterr().err
    assert shell.actions == ["describe"] * looks


def test_a_tpu_that_is_being_deleted_already_is_waited_for(monkeypatch):
    refusals = ["ERROR: FAILED_PRECONDITION: the resource is already being deleted"] * 20
    states = ["SUSPENDED", "DELETING", *["DELETING"] * 20, ABSENT, ABSENT, "ACTIVE"]
    shell = Scripted(monkeypatch, states, refusals)
    assert train() == 0
    assert shell.actions.count("delete") == 1 and shell.actions.count("create") == 1


def test_a_tpu_that_is_gone_when_it_is_to_be_deleted_is_made_anew(monkeypatch):
    shell = Scripted(monkeypatch, ["SUSPENDED", ABSENT, ABSENT, "ACTIVE"], [ABSENT])
    assert train() == 0
    assert shell.actions.count("delete") == 1


def test_a_delete_that_fails_is_tried_again_also_when_the_job_is_done(monkeypatch, capsys):
    shell = Scripted(monkeypatch, ["ACTIVE", "ACTIVE", "ACTIVE", "ACTIVE", ABSENT], [OUTAGE, TOKENS])
    assert train("--delete_when_done") == 0
    assert "gcloud did not delete first: ERROR: 503 The service is unavailable; asking again" in capsys.readouterr().err
    assert shell.actions.count("delete") == 3


@pytest.mark.parametrize(("refusal", "deletes"), [(OUTAGE, 11), ("ERROR: PERMISSION_DENIED", 1)])
def test_a_tpu_that_cannot_be_deleted_ends_the_watch(monkeypatch, capsys, refusal, deletes):
    shell = Scripted(monkeypatch, ["SUSPENDED"], [refusal] * 20)
    assert train() == 1
    assert f"gcloud did not delete first: {refusal}" in capsys.readouterr().err
    assert shell.actions.count("delete") == deletes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "First", *SLICE, *COMMAND], "the TPU's name 'First': write lower-case letters"),
        (["train", "first", "--zone=us-west4-a", *COMMAND], "name the slice: --topology=v5e:4x4"),
        (["train", "first", "--topology=v5e:4x5", "--zone=us-west4-a", *COMMAND], "v5e has no slice 4x5"),
        (["train", "first", "--topology=v5e:4x4", *COMMAND], "--zone is missing; v5e is in"),
        (["train", "first", "--topology=v5e:4x4", "--zone=us-west4", *COMMAND], "is no zone (that is a region"),
        (["train", "first", "--topology=v5e:4x4", "--zone=us-central2-b", *COMMAND], "not known to have v5e"),
        (["train", "first", *SLICE], "say what to run"),
        (["train", "first", *SLICE, "--", "t5x_like", "train"], "without --gin.MODEL_DIR=gs://"),
        (
            ["start", "first", *ZONE, "--", "t5x_like", "train", "--gin.MODEL_DIR=runs/x"],
            "is on the machine's own disk",
        ),
        (["train", "first", *SLICE, "--num_slices=2", "--dry_run", *COMMAND], "Add --gin.DCN=\"{'data': 2}\""),
        (["create", "first", *SLICE, "--spot", "--reserved"], "--spot and --reserved exclude each other"),
        (["create", "first", *SLICE, "--no_queue", "--num_slices=2"], "needs the queue"),
        (
            ["create", "first", *SLICE, "--valid_until=soon", "--dry_run"],
            "--valid_until=soon: write how long, such as 6h",
        ),
        (["train", "first", *SLICE, "--poll_seconds=-1", "--dry_run", *COMMAND], "--poll_seconds=-1: more than 0"),
        (["wait", "first", *ZONE, "--poll_seconds=nan"], "--poll_seconds=nan: more than 0"),
        (["start", "first", *ZONE, "--max_restarts=-1", "--dry_run", *COMMAND], "--max_restarts=-1: at least 0"),
        (["train", "first", *SLICE, "--max_recreations=-1", *COMMAND], "--max_recreations=-1: at least 0"),
        (["stop", "first", *ZONE, "--grace=-5", "--dry_run"], "--grace=-5: at least 0"),
        (["logs", "first", *ZONE, "--worker=-3", "--dry_run"], "--worker=-3: at least 0"),
        (["logs", "first", *ZONE, "--slice=-1"], "--slice=-1: at least 0"),
        (["create", "first", *SLICE, "--num_slices=0"], "--num_slices=0: at least 1"),
        (["create", "first", *SLICE, "--project=X"], "is no project id"),
        (["copy", "first", *ZONE, "--staging=/tmp/x"], "--staging=/tmp/x: write a folder in a bucket"),
        (["fetch", "runs/first", "here"], "write a folder in a bucket"),
    ],
)
def test_mistakes_are_refused_before_anything_is_called(monkeypatch, capsys, words, message):
    shell = Scripted(monkeypatch)
    assert tpu.main(words) == 2
    assert message in capsys.readouterr().err
    assert shell.actions == []
