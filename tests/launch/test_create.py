"""Tests for `launch/tpu.py create` with a scripted gcloud: what is retried, and what remains after a failure."""

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
finally:
    sys.path.pop(0)

CAPACITY = 'There is no more capacity in the zone "us-west4-a"'
OUTAGE = "ERROR: 503 The service is unavailable"
OPTIONS = {
    "queued": ["--topology=v5e:4x4", "--zone=us-west4-a"],
    "groups": ["--topology=v6e:4x4", "--zone=us-east5-a", "--project=my-project", "--backend=groups", "--num_slices=2"],
}
DELETE = {
    "queued": "launch/tpu.py delete first --zone=us-west4-a",
    "groups": "launch/tpu.py delete first --zone=us-east5-a --project=my-project --num_slices=2 --backend=groups",
}


class Cloud(shells.Shell):
    """Creates, describes and deletes resources as gcloud does.

    Attributes:
      plan: For each call that creates a queued resource or a group: an error, or the states in which it is then. The
        last state repeats. When the plan is empty, it is ready. A pair is an error of an accepted request.
      existing: States by name of what exists.
      actions: The calls: the verb and the name.
      delays: Seconds of each wait.
    """

    def __init__(self):
        super().__init__(dry_run=False)
        self.plan, self.existing, self.actions, self.delays = [], {}, [], []

    def run(self, *words, capture=False, check=True):
        verb = next(word for word in words if word in ("create", "describe", "list-instances", "delete"))
        after = words[words.index(verb) + 1 :]
        name = after[1] if after[0] == "workload-policy" else after[0]
        name = f"{words[2]} {name}" if words[2].startswith(("resource", "instance-templates")) else name
        if verb in ("create", "delete"):
            self.actions.append(f"{verb} {name}")
        output, error = "", ""
        if verb == "create":
            planned = self.plan.pop(0) if self.plan and " " not in name else ["ACTIVE"]
            planned, error = planned if isinstance(planned, tuple) else (planned, "")
            if isinstance(planned, str):
                error = planned
            else:
                self.existing[name] = list(planned)
        elif name not in self.existing and "tpu-vm" not in words:
            error = f"ERROR: NOT_FOUND: {name}"
        elif verb == "delete":
            del self.existing[name]
        elif " " in name:
            output = "{}"
        elif verb == "list-instances":
            status = "RUNNING" if self.existing[name][0] == "ACTIVE" else self.existing[name][0]
            output = json.dumps([{"instance": f"i/{name}-{index}", "instanceStatus": status} for index in range(4)])
        elif "instance-groups" in words:
            output = json.dumps({"targetSize": 4, "status": {"isStable": True}})
        elif "tpu-vm" in words:
            output = json.dumps({"state": "READY", "networkEndpoints": [{}] * 4})
        else:
            states = self.existing[name]
            text = states.pop(0) if len(states) > 1 else states[0]
            failed = {"failedData": {"error": {"message": text.partition(" ")[2]}}}
            output = json.dumps({"state": {"state": text.partition(" ")[0], **failed}})
        assert not (error and check)
        return subprocess.CompletedProcess(words, int(bool(error)), output, error)

    def created(self) -> int:
        return sum(action in ("create first", "create first-0") for action in self.actions)


@pytest.fixture
def cloud(monkeypatch) -> Cloud:
    made = Cloud()
    monkeypatch.setattr(tpu, "Shell", lambda dry_run: made)
    monkeypatch.setattr(lifecycle.time, "sleep", made.delays.append)
    return made


def create(backend: str, *options: str) -> int:
    return tpu.main(["create", "first", *OPTIONS[backend], *options])


@pytest.mark.parametrize("backend", OPTIONS)
def test_outage_is_retried(cloud, capsys, backend):
    cloud.plan = [OUTAGE, OUTAGE] * (2 if backend == "groups" else 1)  # two slices are two calls
    assert create(backend) == 0
    log = capsys.readouterr().err
    assert f"gcloud did not create {'instance group first-0, ' * (backend == 'groups')}first" in log
    assert "503 The service is unavailable; creating it again in 30 s (1 of 5)" in log
    assert cloud.created() == 3 and cloud.delays == [30, 60]


def test_request_that_was_accepted_despite_an_error_is_awaited(cloud):
    cloud.plan = [(["PROVISIONING", "ACTIVE"], OUTAGE)]
    assert create("queued") == 0
    assert cloud.created() == 1


def test_lack_of_capacity_is_retried_after_deletion(cloud, capsys):
    cloud.plan = [["WAITING_FOR_RESOURCES", f"FAILED {CAPACITY}"], ["ACTIVE"]]
    assert create("queued") == 0
    assert cloud.actions == ["create first", "delete first", "create first"]
    assert f"first was refused: {CAPACITY}; creating it again in 30 s (1 of 5)" in capsys.readouterr().err


def test_expired_request_is_not_retried(cloud):
    cloud.plan = [[f"FAILED {CAPACITY}"]]
    assert create("queued", "--valid_until=6h") == 1
    assert cloud.created() == 1


def test_group_that_was_created_alone_is_deleted_before_the_retry(cloud, capsys):
    cloud.plan = [["ACTIVE"], OUTAGE]
    assert create("groups") == 0
    deleted = cloud.actions.index("delete first-0")
    assert cloud.actions[deleted - 2 : deleted] == ["create first-0", "create first-1"] and cloud.created() == 2
    assert sorted(cloud.existing) == [
        *("first-0", "first-1", "instance-templates first-t5x-like", "resource-policies first-t5x-like")
    ]


@pytest.mark.parametrize("backend", OPTIONS)
def test_preemptions_before_ready_are_retried_up_to_the_limit(cloud, capsys, backend):
    state = {"queued": "SUSPENDED", "groups": "TERMINATED"}[backend]
    cloud.plan = [[state]] * 10
    assert create(backend, "--max_retries=2") == 1
    log = capsys.readouterr().err
    assert f"{state}. Stopped after 2 retries (--max_retries). Raise the limit" in log and cloud.created() == 3
    remaining = {
        "queued": "queued resource first",
        "groups": "instance group first-0, instance group first-1, instance template first-t5x-like, workload policy "
        "first-t5x-like",
    }[backend]
    assert f"what remains: {remaining}. VMs incur costs until `{DELETE[backend]}` deletes them" in log


@pytest.mark.parametrize("backend", OPTIONS)
@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("Quota limit 'TPUV5sPreemptibleLitepod' has been exceeded. Limit: 0 in region us-west4.", "Request quota"),
        ("ERROR: PERMISSION_DENIED: caller does not have permission", "ask for roles/tpu.admin"),
        ("ERROR: INVALID_ARGUMENT: accelerator type not found", "Correct the option"),
        ("ERROR: NOT_FOUND: network mine", "Correct the option"),
        ("ERROR: ALREADY_EXISTS: Resource first", "Choose another name"),
    ],
)
def test_permanent_errors_are_not_retried(cloud, capsys, backend, error, advice):
    cloud.plan = [error] * 10
    assert create(backend) == 1
    log = capsys.readouterr().err
    assert error in log and advice in log
    assert cloud.created() == 1 and cloud.delays == []
    if backend == "queued":
        assert "nothing remains of first, so it incurs no costs" in log
    else:
        assert "what remains: instance template first-t5x-like, workload policy first-t5x-like" in log


def test_refused_request_is_not_retried_and_says_what_remains(cloud, capsys):
    cloud.plan = [["FAILED Quota 'TPUV5sPodPerProjectPerZone' exceeded"]]
    assert create("queued") == 1
    log = capsys.readouterr().err
    assert "first was refused: Quota 'TPUV5sPodPerProjectPerZone' exceeded. Request quota for these chips" in log
    assert f"what remains: queued resource first. VMs incur costs until `{DELETE['queued']}` deletes them" in log


def test_delay_between_retries_is_limited(cloud):
    cloud.plan = [OUTAGE] * 6
    assert create("queued", "--max_retries=6", "--poll_seconds=100") == 0
    assert cloud.delays == [100, 200, 300, 300, 300, 300]
