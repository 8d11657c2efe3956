"""Tests for `launch/tpu.py train` with scripted answers of gcloud: faults of the cloud, and invalid arguments."""

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import alert
    import job as job_module
    import shell as shells
    import tpu
    import watch
finally:
    sys.path.pop(0)

SLICE = ["--topology=v5e:4x4", "--zone=us-west4-a"]
ZONE = ["--zone=us-west4-a"]
COMMAND = ["--", "t5x_like", "train", "--gin.MODEL_DIR=gs://my-bucket/runs/first"]
LOGIN = "ERROR: There was a problem refreshing your current auth tokens: Reauthentication failed"
OUTAGE = "ERROR: 503 The service is unavailable"
CAPACITY = 'There is no more capacity in the zone "us-west4-a"'
DONE = (0, 0)


class Cloud(shells.Shell):
    """Answers the calls of gcloud, and advances the clock by each wait.

    Args:
      states: What polls of an existing TPU find, the last one repeatedly: a state of the queued resource, an error, or
        the states of its nodes by name.
      creates: Errors of the first calls that create it; "" for none.
      ends: The exit code of the job on each worker, which it has from the last state on.

    Attributes:
      heartbeat: Whether the run sends heartbeats.
      exists: Whether the TPU exists.
      changes: Verbs of the calls that change it.
      stored: The contents of job.json.
      job: The directory in the metadata of the VMs.
      codes: Stored archives.
      seconds: The time.
      delays: Seconds of each wait.
    """

    def __init__(self, *states, creates: tuple[str, ...] = (), ends: tuple[int, ...] = DONE):
        super().__init__(dry_run=False)
        self.states, self.creates, self.ends = list(states), list(creates), ends
        self.heartbeat, self.exists, self.is_last = True, False, False
        self.stored, self.job, self.seconds = None, None, 0.0
        self.changes, self.codes, self.delays = [], [], []

    def sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        self.seconds += seconds

    def run(self, *words, capture=False, check=True, timeout=None):
        answer = self._storage(words) if words[1] == "storage" else self._tpus(words)
        failed = answer.startswith("ERROR")
        return subprocess.CompletedProcess(words, int(failed), "" if failed else answer, answer if failed else "")

    def _storage(self, words) -> str:
        path = words[-2] if words[2] == "cp" else words[-1]
        if words[2] == "cp":
            if path.endswith("job.json"):
                self.stored = json.loads(Path(words[3]).read_text())
            else:
                self.codes.append(path)
            return ""
        if path.endswith("job.json") and self.stored:
            return json.dumps(self.stored)
        if path.endswith(f"/ends/{(self.stored or {}).get('id')}/*.json") and self.is_last:
            ends = [{"worker": f"0-{worker}", "exit_code": code} for worker, code in enumerate(self.ends)]
            return "".join(json.dumps(end) + "\n" for end in ends)
        if path.endswith("lock.json"):
            return json.dumps({"token": "a", "beats": self.seconds if self.heartbeat else 0})
        return "ERROR: The following URLs matched no objects or files"

    def _tpus(self, words) -> str:
        verb = next(word for word in words if word in ("create", "delete", "describe"))
        if verb != "describe":
            self.changes.append(verb)
            jobs = [word for word in words if word.startswith("--metadata=")]
            self.job = jobs[0].split("=")[2] if jobs else None
            answer = self.creates.pop(0) if verb == "create" and self.creates else ""
            self.exists = verb == "create" and not answer
            return answer
        if not self.exists:
            return "ERROR: NOT_FOUND"
        if "tpu-vm" not in words:
            self.is_last = len(self.states) == 1
            self.state = self.states[0] if self.is_last else self.states.pop(0)
            text = "ACTIVE" if isinstance(self.state, dict) else self.state
        else:
            nodes = self.state if isinstance(self.state, dict) else {}
            text = nodes.get(words[words.index("describe") + 1], "READY")
        kind, _, reason = text.partition(" ")
        spec = {"nodeSpec": [{"node": {"metadata": {"t5x-like-job": self.job}}}]}
        described = {"state": {"state": kind, "failedData": {"error": {"message": reason}}}, "tpu": spec}
        node = {"state": kind, "networkEndpoints": [{}, {}]}
        return text if kind == "ERROR:" else json.dumps(node if "tpu-vm" in words else described)


@pytest.fixture
def train(monkeypatch, capsys):
    """Returns a function that runs `tpu.py train` in a cloud, and returns the exit code and the log.

    The command itself is not checked by a dry run; tests/launch/test_check_command.py tests that check.
    """
    monkeypatch.setattr(job_module, "pack_code", lambda shell, root: b"code")
    monkeypatch.setattr(tpu, "check_command", lambda command: "command not checked")

    def run(cloud: Cloud, *options: str) -> tuple[int, str]:
        monkeypatch.setattr(tpu, "Shell", lambda dry_run: cloud)
        # Only the watch has this clock: processes that a test starts are waited for with the module `time`.
        monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=cloud.sleep, monotonic=lambda: cloud.seconds))
        dcn = ["--gin.DCN={'data': 2}"] if "--num_slices=2" in options else []
        code = tpu.main(["train", "first", *SLICE, *options, *COMMAND, *dcn])
        return code, capsys.readouterr().err

    return run


def test_repair_of_forty_minutes_is_left_to_the_platform(train):
    cloud = Cloud("ACTIVE", *[{"first": "REPAIRING"}] * 80, "ACTIVE")
    code, log = train(cloud, "--delete_when_done", "--max_recreations=0")
    assert code == 0 and cloud.seconds >= 40 * 60
    assert "first: first is REPAIRING" in log and cloud.changes == ["create", "delete"], "the deletion at the end"


def test_repair_without_end_is_not_waited_for(train):
    code, log = train(Cloud("ACTIVE", *[{"first": "REPAIRING"}] * 250, "ACTIVE"))
    assert code == 0 and "first is REPAIRING for 7230 s; creating it again" in log


def test_lost_slice_of_several_is_waited_for(train):
    states = [{"first-1": "PREEMPTED"}] * 10 + [{"first-1": "CREATING"}] * 10
    cloud = Cloud("ACTIVE", *states, "ACTIVE", ends=(0, 0, 0, 0))
    code, log = train(cloud, "--num_slices=2", "--max_recreations=0")
    assert code == 0 and "first: first-1 is PREEMPTED" in log and cloud.changes == ["create"]


@pytest.mark.parametrize(
    "lost", ["SUSPENDED", {"first": "PREEMPTED"}, {"first": "TERMINATED"}], ids=["resource", "preempted", "stopped"]
)
def test_tpu_that_is_gone_is_recreated_with_the_stored_code(train, lost):
    cloud = Cloud("ACTIVE", lost, "ACTIVE")
    code, log = train(cloud, "--spot", "--delete_when_done")
    assert code == 0 and "creating it again in 30 s (1 of 100)" in log
    assert cloud.changes == ["create", "delete", "create", "delete"] and len(cloud.codes) == 1
    assert "first is deleted and incurs no more costs" in log


def test_slice_that_is_not_on_spot_is_left_to_the_platform(train):
    cloud = Cloud("ACTIVE", *[{"first": "TERMINATED"}] * 20, {"first": "STARTING"}, "ACTIVE")
    assert train(cloud, "--max_recreations=0")[0] == 0 and cloud.changes == ["create"]


def test_preemption_after_the_end_of_the_job_is_not_recovered_from(train):
    cloud = Cloud("ACTIVE", "SUSPENDED")
    code, log = train(cloud, "--delete_when_done", "--max_recreations=0")
    assert code == 0 and "the job is done" in log and cloud.changes == ["create", "delete"]


def test_workers_are_judged_by_their_heartbeat_and_not_by_connections(train):
    cloud = Cloud(*["ACTIVE"] * 1000, "ACTIVE")
    assert train(cloud, "--max_recreations=0")[0] == 0 and cloud.seconds > 8 * 3600
    silent = Cloud(*["ACTIVE"] * 300, "ACTIVE")
    silent.heartbeat = False
    code, log = train(silent)
    assert code == 0 and "no heartbeat of the run for 7230 s; creating it again" in log
    assert silent.changes == ["create", "delete", "create"]


def test_expired_login_does_not_end_the_watch(train):
    hours = 24
    cloud = Cloud("ACTIVE", *[LOGIN] * (12 * hours), "ACTIVE")
    code, log = train(cloud, "--delete_when_done")
    assert code == 0 and cloud.seconds > (hours - 1) * 3600
    assert "Run `gcloud auth login` in another terminal" in log and "which retries in 300 s" in log
    assert cloud.changes == ["create", "delete"]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            "gs://my-bucket/runs/other/launch/first",
            "run the job in gs://my-bucket/runs/other/launch/first. Give another",
        ),
        (None, "run no job of launch/tpu.py"),
    ],
)
def test_tpu_that_runs_another_job_is_refused(train, found, message):
    cloud = Cloud("ACTIVE")
    cloud.exists, cloud.job = True, found
    code, log = train(cloud)
    assert code == 2 and message in log and cloud.stored is None and cloud.changes == []


def test_invalid_command_is_an_error_before_anything_is_requested(train, monkeypatch):
    def refuse(command):
        raise tpu.slices.LaunchError(f"invalid t5x_like command: {command[1]}")

    monkeypatch.setattr(tpu, "check_command", refuse)
    cloud = Cloud("ACTIVE")
    code, log = train(cloud)
    assert code == 2 and "invalid t5x_like command: train" in log and cloud.stored is None and cloud.changes == []


def test_login_that_is_missing_at_the_start_is_an_error(train):
    cloud = Cloud(LOGIN)
    cloud.exists = True
    code, log = train(cloud)
    assert code == 1 and "Reauthentication failed. Run `gcloud auth login`" in log
    assert "first may exist and incur costs" in log


@pytest.mark.parametrize("failure", [OUTAGE, "ERROR: PERMISSION_DENIED: caller does not have permission"])
def test_failed_calls_do_not_end_the_watch(train, failure):
    cloud = Cloud("ACTIVE", *[failure] * 30, "SUSPENDED", *[failure] * 30, "ACTIVE")
    code, log = train(cloud, "--delete_when_done")
    assert code == 0 and failure in log and "The job does not depend on this command" in log
    assert cloud.changes == ["create", "delete", "create", "delete"]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("ERROR: Quota limit 'TPUV5sPreemptibleLitepod' has been exceeded. Limit: 0.", "Request quota"),
        ("ERROR: PERMISSION_DENIED: caller does not have permission", "ask for roles/tpu.admin"),
        ("ERROR: INVALID_ARGUMENT: accelerator type not found", "Correct the option"),
        ("ERROR: NOT_FOUND: network mine", "Correct the option"),
        ("ERROR: ALREADY_EXISTS: Resource first", "Choose another name"),
    ],
)
def test_permanent_errors_of_a_request_are_not_retried(train, error, advice):
    cloud = Cloud("ACTIVE", creates=(error,))
    code, log = train(cloud)
    assert code == 1 and error in log and advice in log and cloud.changes == ["create"]
    assert "nothing remains of first, so it incurs no costs" in log


def test_refused_request_is_not_retried_and_says_what_remains(train):
    cloud = Cloud("FAILED Quota 'TPUV5sPodPerProjectPerZone' exceeded")
    code, log = train(cloud)
    assert code == 1 and cloud.changes == ["create"]
    assert "first was refused: Quota 'TPUV5sPodPerProjectPerZone' exceeded. Request quota for these chips" in log
    assert "what remains: first. VMs incur costs until `launch/tpu.py delete first --zone=us-west4-a` deletes" in log


def test_outages_and_lack_of_capacity_are_retried_with_longer_delays(train):
    refused = [f"FAILED {CAPACITY}"] * 2  # its state and its reason are two calls
    cloud = Cloud("WAITING_FOR_RESOURCES", *refused, "ACTIVE", creates=(OUTAGE, OUTAGE))
    code, log = train(cloud)
    assert code == 0 and f"first was refused: {CAPACITY}; creating it again in 120 s (3 of 100)" in log
    assert cloud.changes == ["create", "create", "create", "delete", "create"]
    assert train(Cloud(f"FAILED {CAPACITY}"), "--valid_until=6h")[0] == 1
    slow = Cloud("ACTIVE", creates=(OUTAGE,) * 6)
    train(slow, "--poll_seconds=100")
    assert slow.delays[:6] == [100, 200, 300, 300, 300, 300]


def test_alerts_reach_a_command_once_per_event(train, tmp_path):
    (tmp_path / "send").write_text(f'#!/bin/sh\necho "$1: $2" >>{tmp_path}/sent\n')
    (tmp_path / "send").chmod(0o755)
    train(Cloud("ACTIVE", *[LOGIN] * 3, "SUSPENDED", "ACTIVE"), f"--alert={tmp_path}/send tpu")
    login, recreated, done = (tmp_path / "sent").read_text().splitlines()
    assert (
        "Reauthentication failed" in login
        and "creating it again" in recreated
        and done == "tpu: first: the job is done"
    )


def test_alerts_reach_a_webhook_and_their_failure_does_not_end_the_watch(train, monkeypatch):
    sent = []
    monkeypatch.setattr(alert.urllib.request, "urlopen", lambda request, timeout: sent.append(request) or io.BytesIO())
    assert train(Cloud("ACTIVE", ends=(1, 1)), "--alert=https://chat.example.com/hook")[0] == 1
    (request,) = sent
    assert json.loads(request.data)["text"].startswith("first: the job failed: exit code 1 on worker 0-0")
    code, log = train(Cloud("ACTIVE"), "--alert=/no/such/command")
    assert code == 0 and "--alert was not sent: [Errno 2] No such file" in log


def test_recreations_are_limited(train):
    cloud = Cloud("PROVISIONING", "SUSPENDING", "PROVISIONING", "SUSPENDED")
    code, log = train(cloud, "--max_recreations=1")
    assert code == 1 and "first: SUSPENDED. Stopped after 1 recreations (--max_recreations). Raise the" in log


def test_request_that_was_deleted_while_it_was_queued_is_not_repeated(train):
    cloud = Cloud("WAITING_FOR_RESOURCES")
    waited = cloud.sleep
    cloud.sleep = lambda seconds: (waited(seconds), setattr(cloud, "exists", cloud.seconds < 300))
    code, log = train(cloud)
    assert code == 1 and "first not found: it was deleted while it was being created" in log


@pytest.mark.parametrize(
    ("ends", "code", "message"),
    [
        ((0, 0), 0, "the job is done"),
        ((0,), 0, "the job is done; 1 workers did not end in time"),
        ((0, 1), 1, "the job failed: exit code 1 on worker 0-1"),
        ((1, 2), 2, "exit code 1 on worker 0-0, exit code 2 on worker 0-1"),
        ((75, 75), 75, "the job was stopped, on request or after --max_run_duration"),
    ],
)
def test_exit_code_is_that_of_the_job(train, ends, code, message):
    cloud = Cloud("ACTIVE", ends=ends)
    ended, log = train(cloud, "--delete_when_done")
    assert ended == code and message in log and "first is deleted and incurs no more costs" in log
    assert "the output of all workers is in gs://my-bucket/runs/first/launch/first/logs" in log


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
        (["fetch", "runs/first", "here"], "is not a directory in a bucket"),
        (["train", "first", *SLICE, "--service_account=robot", *COMMAND], "--service_account=robot: not the address"),
        (["train", "first", *SLICE, "--", "t5x_like", "trian"], "t5x_like trian: unknown command; did you mean train"),
        (["stop", "first", *ZONE, "--", "t5x_like", "train"], "stop does not run a command. Remove -- t5x_like"),
    ],
)
def test_invalid_arguments_exit_before_any_call(monkeypatch, capsys, words, message):
    monkeypatch.setattr(shells.Shell, "_run", lambda *words: pytest.fail(f"called {words}"))
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
    assert "queued-resources create first --accelerator-type=v5p-8" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        tpu.main([*words, "--backend=groups", *COMMAND])
    assert "unrecognized arguments: --backend=groups" in capsys.readouterr().err


def test_calls_have_a_time_limit():
    result = shells.Shell(dry_run=False).run("bash", "-c", "sleep 60 & wait", capture=True, check=False, timeout=0.2)
    assert result.returncode and "timed out after 0.2 s" in result.stderr
    with pytest.raises(shells.CommandFailed, match=r"timed out after 0.2 s"):
        shells.Shell(dry_run=False).run("sleep", "60", capture=True, timeout=0.2)
