"""Tests for `launch/tpu.py train` with a scripted shell: failures of TPUs and workers, and invalid arguments."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import lifecycle
    import shell as shells
    import tpu
    import verdict
    import watch
finally:
    sys.path.pop(0)

SLICE = ["--topology=v5e:4x4", "--zone=us-west4-a"]
ZONE = ["--zone=us-west4-a"]
COMMAND = ["--", "t5x_like", "train", "--gin.MODEL_DIR=gs://my-bucket/runs/first"]
QUICK = "--poll_seconds=0.001"
ABSENT = "ERROR: NOT_FOUND"
OUTAGE, TOKENS = "ERROR: 503 The service is unavailable", "ERROR: There was a problem refreshing your auth tokens"
NONE, RUNS = {"state": "absent"}, {"state": "running"}
DONE = {"state": "finished", "exit_code": 0}
CRASHED = {"state": "finished", "exit_code": 1, "reason": "exit code 1"}
REJECTED = {"state": "finished", "exit_code": 2, "reason": "exit code 2, an error in its arguments or settings"}
ASKED = {"state": "finished", "exit_code": 75, "reason": "preempted (exit code 75)"}
GONE = {"state": "lost", "reason": "the machine was restarted, or the supervisor was killed"}


class Follower:
    """The process that shows a worker's output. It ends at once, or runs until it is ended."""

    def __init__(self, ends: bool):
        self.ends = ends

    def wait(self, timeout: float) -> int:
        if not self.ends:
            raise subprocess.TimeoutExpired("gcloud", timeout)
        return 0


class Scripted(shells.Shell):
    """Replaces the shell of `tpu.main`.

    Args:
      monkeypatch: The fixture of the test.
      states: States of the queued resource in the order of the calls; a text that starts with ERROR is an error. The
        last one repeats.
      deletes: Errors of the first calls to delete. Later calls succeed.
      jobs: States of the job on the workers that answer, in the order of the calls. The last one repeats.
      workers: Number of workers.
      creates: Errors of the first calls to create. Later calls succeed.
    """

    def __init__(self, monkeypatch, states=(ABSENT,), deletes=(), jobs=((NONE,), (DONE,)), workers=1, creates=()):
        super().__init__(dry_run=False)
        self.creates = list(creates)
        self.states, self.deletes, self.jobs, self.workers = list(states), list(deletes), list(jobs), workers
        self.actions = []
        monkeypatch.setattr(tpu, "Shell", lambda dry_run: self)
        monkeypatch.setattr(tpu, "check_command", lambda command: "not checked")  # tests/launch/test_check_command.py
        monkeypatch.setattr(lifecycle, "set_up", lambda *arguments: self.actions.append("set up"))
        monkeypatch.setattr(watch, "FOLLOWER_SECONDS", 0)

    @contextlib.contextmanager
    def in_background(self, *words):
        self.actions.append("follow")
        yield Follower(ends=self.workers == 1)

    def run(self, *words, capture=False, check=True):
        action = next(word for word in words if word in ("create", "describe", "delete", "ssh"))
        if "tpu-vm" in words:
            node = {"state": "READY", "networkEndpoints": [{}] * self.workers}
            return subprocess.CompletedProcess(words, 0, json.dumps(node), "")
        if action == "ssh":
            action = "stop" if any("supervise.py stop" in word for word in words) else "jobs"
        self.actions.append(action)
        output = ""
        if action == "jobs":
            found = self.jobs.pop(0) if len(self.jobs) > 1 else self.jobs[0]
            output = "\n".join(json.dumps({"host": f"t1v-w-{index}", **job}) for index, job in enumerate(found))
        elif action == "describe":
            output = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        elif action == "delete" and self.deletes:
            output = self.deletes.pop(0)
        elif action == "create" and self.creates:
            output = self.creates.pop(0)
        failed = output.startswith("ERROR")
        if failed and check:
            raise shells.CommandFailed(output)
        if action == "describe":
            output = output if failed else json.dumps({"state": {"state": output}})
        return subprocess.CompletedProcess(words, int(failed), "" if failed else output, output if failed else "")


def changes(shell: Scripted) -> list[str]:
    return [action for action in shell.actions if action not in ("describe", "jobs", "follow")]


def train(*options: str) -> int:
    return tpu.main(["train", "first", *SLICE, QUICK, *options, *COMMAND])


def test_tpu_preempted_before_ready_is_recreated(monkeypatch, capsys):
    preempted = [ABSENT, "PROVISIONING", "SUSPENDING", ABSENT]
    shell = Scripted(monkeypatch, [*preempted, "SUSPENDED", ABSENT, "ACTIVE"])
    assert train("--max_recreations=2") == 0
    log = capsys.readouterr().err
    assert "first: SUSPENDING; creating it again in 0.001 s (1 of 2)" in log
    assert "first: SUSPENDED; creating it again in 0.002 s (2 of 2)" in log
    assert changes(shell) == ["create", "delete", "create", "delete", "create", "set up"]


def test_recreations_are_limited(monkeypatch, capsys):
    shell = Scripted(monkeypatch, [ABSENT, "SUSPENDING", ABSENT, "SUSPENDING"])
    assert train("--max_recreations=1") == 1
    assert "first: SUSPENDING. Stopped after 1 recreations (--max_recreations). Raise the" in capsys.readouterr().err
    assert shell.actions.count("create") == 2


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
    assert shell.actions == ["describe"] * (polls + 1)  # the last one to find out what remains


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


def test_transient_failures_to_create_count_as_recreations(monkeypatch, capsys):
    shell = Scripted(monkeypatch, [ABSENT, ABSENT, "ACTIVE"], creates=[OUTAGE])
    assert train("--max_recreations=1") == 0
    assert "503 The service is unavailable; creating it again in 0.001 s (1 of 1)" in capsys.readouterr().err
    assert changes(shell) == ["create", "create", "set up"]


def test_failed_deletion_is_retried_after_the_job_is_done(monkeypatch, capsys):
    states = ["ACTIVE", "ACTIVE", "ACTIVE", "ACTIVE", ABSENT]
    shell = Scripted(monkeypatch, states, [OUTAGE, TOKENS], jobs=[(RUNS,), (DONE,)])
    assert train("--delete_when_done") == 0
    assert "gcloud did not delete first: ERROR: 503 The service is unavailable; retrying" in capsys.readouterr().err
    assert shell.actions.count("delete") == 3


@pytest.mark.parametrize(("refusal", "deletes"), [(OUTAGE, 11), ("ERROR: PERMISSION_DENIED", 1)])
def test_tpu_that_cannot_be_deleted_raises(monkeypatch, capsys, refusal, deletes):
    shell = Scripted(monkeypatch, ["SUSPENDED"], [refusal] * 20)
    assert train() == 1
    log = capsys.readouterr().err
    assert f"gcloud did not delete first: {refusal}" in log and "what remains: queued resource first" in log
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
        (["create", "first", *SLICE, "--spot", "--flex_start", "--max_run_duration=2d"], "exclude each other"),
        (["create", "first", *SLICE, "--flex_start"], "--flex_start and --max_run_duration require each other"),
        (
            ["create", "first", "--topology=tpu7x:4x4x4", "--zone=us-central1-c", "--backend=queued"],
            "which Google no longer develops and which does not have tpu7x. Give --backend=groups",
        ),
        (
            ["create", "first", *SLICE, "--backend=groups", "--project=my-project"],
            "Compute Engine does not have v5e. Give --backend=queued",
        ),
        (["delete", "first", *ZONE, "--backend=groups"], "--project is missing: instance groups refer to"),
        (
            [
                *("create", "first", "--topology=tpu7x:4x4x4", "--zone=us-central1-c", "--project=my-project"),
                "--reserved",
            ],
            "--reserved requires --backend=queued. Give the reservation's name",
        ),
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
        (["create", "first", *SLICE, "--service_account=robot"], "--service_account=robot: not the address of"),
        (["create", "first", *SLICE, "--max_retries=-1"], "--max_retries=-1: below the minimum"),
        (["train", "first", *SLICE, "--", "t5x_like", "trian"], "t5x_like trian: unknown command; did you mean train"),
    ],
)
def test_invalid_arguments_exit_before_any_call(monkeypatch, capsys, words, message):
    shell = Scripted(monkeypatch)
    assert tpu.main(words) == 2
    assert message in capsys.readouterr().err
    assert shell.actions == []


def test_command_without_separator_is_reported(monkeypatch, capsys):
    shell = Scripted(monkeypatch)
    with pytest.raises(SystemExit):
        tpu.main(["train", "first", *SLICE, "t5x_like", "train"])
    assert "unrecognized arguments: t5x_like train. Write -- before the t5x_like command" in capsys.readouterr().err
    assert shell.actions == []


def test_lost_worker_restarts_the_job_on_all_workers(monkeypatch, capsys):
    jobs = [[RUNS] * 4, [RUNS] * 4, [RUNS, RUNS, RUNS, GONE], [RUNS, RUNS, RUNS, GONE], [RUNS] * 4, [DONE] * 4]
    shell = Scripted(monkeypatch, ["ACTIVE"], jobs=jobs, workers=4)
    assert train("--max_recreations=1") == 0
    log = capsys.readouterr().err
    assert "the job is lost on t1v-w-3 (the machine was restarted" in log
    assert "restarting the job on all workers (1 of 1)" in log
    assert changes(shell) == ["stop", "set up"]
    shell.jobs = [[RUNS] * 4, [GONE] * 4]
    assert train("--max_recreations=0") == 1
    assert "Stopped after 0 recreations (--max_recreations)" in capsys.readouterr().err


def test_failure_on_two_workers_stops_the_others_and_is_reported(monkeypatch, capsys):
    jobs = [[RUNS] * 4, [RUNS, CRASHED, RUNS, REJECTED]]
    shell = Scripted(monkeypatch, ["ACTIVE"], jobs=jobs, workers=4)
    assert train() == 2
    log = capsys.readouterr().err
    assert "the job ended: exit code 1 on t1v-w-1; exit code 2, an error in its arguments or settings on t1v-w-3" in log
    assert "first still exists and incurs costs" in log
    assert "the output of all workers is in gs://my-bucket/runs/first/logs" in log
    assert changes(shell) == ["stop"]


def test_worker_that_does_not_end_is_stopped(monkeypatch, capsys):
    killed = {"state": "finished", "exit_code": 137, "reason": "killed by SIGKILL"}
    shell = Scripted(monkeypatch, ["ACTIVE"], jobs=[[DONE, RUNS], [DONE, RUNS], [DONE, killed]], workers=2)
    monkeypatch.setattr(watch, "ENDING_SECONDS", 0)
    assert train() == 137
    assert "the job has finished on 1 of 2 workers" in capsys.readouterr().err
    assert changes(shell) == ["stop", "stop"]


def test_job_that_was_stopped_on_request_keeps_the_tpu(monkeypatch, capsys):
    shell = Scripted(monkeypatch, ["ACTIVE"], jobs=[[RUNS] * 2, [ASKED] * 2], workers=2)
    assert train("--delete_when_done") == 75
    log = capsys.readouterr().err
    assert "the job was asked to stop on t1v-w-0, t1v-w-1" in log and "first still exists and incurs costs" in log
    assert changes(shell) == []
    shell.jobs = [[ASKED] * 2, [DONE] * 2]
    assert train() == 0, "a second call resumes"
    assert changes(shell) == ["stop", "set up"]


def test_job_that_stops_because_of_a_preemption_is_resumed_on_a_new_tpu(monkeypatch):
    states = ["ACTIVE", "ACTIVE", "ACTIVE", "SUSPENDING", ABSENT, ABSENT, "ACTIVE"]
    shell = Scripted(monkeypatch, states, jobs=[[RUNS] * 2, *[[ASKED] * 2] * 3, [NONE] * 2, [DONE] * 2], workers=2)
    assert train() == 0
    assert changes(shell) == ["delete", "create", "set up"]


def test_delete_when_done_deletes_after_a_failure_too(monkeypatch, capsys):
    jobs = [[RUNS], [CRASHED]]
    shell = Scripted(monkeypatch, ["ACTIVE", "ACTIVE", ABSENT], jobs=jobs)
    assert train("--delete_when_done") == 1
    assert "first is deleted and incurs no more costs" in capsys.readouterr().err
    assert changes(shell) == ["delete"]


def test_tpu_with_a_silent_worker_is_recreated_after_retries(monkeypatch, capsys):
    states = ["ACTIVE"] * 12 + [ABSENT, ABSENT, "ACTIVE"]
    jobs = [[RUNS] * 4, *[[RUNS] * 3] * 14, [NONE] * 4, [DONE] * 4]
    shell = Scripted(monkeypatch, states, jobs=jobs, workers=4)
    assert train() == 0
    assert "1 of 4 workers do not answer; recreating it (1 of 100)" in capsys.readouterr().err
    assert changes(shell) == ["delete", "create", "set up"]


def test_worker_that_is_silent_for_a_moment_does_not_interrupt_the_output(monkeypatch):
    shell = Scripted(monkeypatch, ["ACTIVE"], jobs=[[RUNS] * 4, *[[RUNS] * 3] * 2, [RUNS] * 4, [DONE] * 4], workers=4)
    assert train() == 0
    assert shell.actions.count("follow") == 1 and changes(shell) == []


@pytest.mark.parametrize(
    ("jobs", "kind"),
    [
        ([NONE, NONE], verdict.JobState.IDLE),
        ([RUNS, NONE], verdict.JobState.BROKEN),
        ([DONE, GONE], verdict.JobState.BROKEN),
        ([RUNS, RUNS], verdict.JobState.RUNNING),
        ([RUNS, DONE], verdict.JobState.ENDING),
        ([DONE, DONE], verdict.JobState.ENDED),
        ([RUNS, CRASHED], verdict.JobState.ENDED),
        ([CRASHED], verdict.JobState.ENDED),
        ([ASKED, CRASHED], verdict.JobState.ENDED),
        ([ASKED, ASKED], verdict.JobState.STOPPED),
        ([ASKED, RUNS], verdict.JobState.STOPPED),
        ([ASKED, GONE], verdict.JobState.BROKEN),
        ([RUNS], verdict.JobState.SILENT),
    ],
)
def test_job_is_judged_by_all_workers(jobs, kind):
    assert verdict.judge([{"host": "w", **job} for job in jobs], 2).kind == kind
