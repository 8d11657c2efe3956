"""Tests for launch/groups.py with a scripted gcloud: creation, states, refusals, deletion and several slices."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import cloud
    import gcloud
    import groups
    import shell as shells
    import slices
finally:
    sys.path.pop(0)

QUOTA = {"code": "QUOTA_EXCEEDED", "message": "Quota TPUS_PER_TPU_FAMILY exceeded. Limit: 0.0"}
STOCKOUT = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "not enough resources"}


class Scripted(shells.Shell):
    """Answers the calls of gcloud.

    Attributes:
      vms: VMs by group: pairs of status and error of the last attempt. Groups that are missing do not exist.
      stable: Whether the groups have no pending changes.
      failures: Error outputs by words of the call, such as ("instance-templates", "delete").
      calls: The calls, without the location.
    """

    def __init__(self):
        super().__init__(dry_run=False)
        self.vms, self.stable, self.failures, self.calls = {}, False, {}, []

    def run(self, *words, capture=False, check=True):
        self.calls.append(words)
        error = next((text for some, text in self.failures.items() if set(some) <= set(words)), "")
        output = ""
        if words[2] == "instance-groups" and ("describe" in words or "list-instances" in words):
            name = words[5]
            found = self.vms.get(name)
            error = error or ("" if found is not None else f"ERROR: The resource {name} was not found")
            if found is not None and "describe" in words:
                output = json.dumps({"targetSize": 2, "status": {"isStable": self.stable}})
            elif found is not None:
                output = json.dumps([vm(f"{name}-{index}", *value) for index, value in enumerate(found)])
        elif "ssh" in words:
            output = "first-0-x1,first-0-x0"
        if error and check:
            raise shells.CommandFailed(error)
        return subprocess.CompletedProcess(words, int(bool(error)), "" if error else output, error)


def vm(name: str, status: str, error: dict | None = None) -> dict:
    attempt = {"lastAttempt": {"errors": {"errors": [error]}}} if error else {}
    return {"instance": f"https://www/zones/z/instances/{name}", "instanceStatus": status, **attempt}


@pytest.fixture
def shell() -> Scripted:
    return Scripted()


def make(shell: Scripted, num_slices: int = 1) -> groups.InstanceGroups:
    return groups.InstanceGroups(shell, "first", "us-central1-c", "my-project", num_slices)


def created(shell: Scripted, collection: str) -> tuple[str, ...]:
    return next(words for words in shell.calls if words[2] == collection and "delete" not in words)


def test_create_makes_policy_template_and_a_group_of_full_size(shell):
    make(shell).create(cloud.Request(slices.parse_slice(None, "tpu7x:2x2x4"), spot=True))
    policy = created(shell, "resource-policies")
    assert policy[3:6] == ("create", "workload-policy", "first-t5x-like")
    assert {"--type=HIGH_THROUGHPUT", "--accelerator-topology=2x2x4", "--region=us-central1"} <= set(policy)
    assert {
        *("--machine-type=tpu7x-standard-4t", "--image-family=ubuntu-accel-2404-amd64-tpu-tpu7x"),
        *("--maintenance-policy=TERMINATE", "--provisioning-model=SPOT", "--scopes=cloud-platform"),
    } <= set(created(shell, "instance-templates"))
    assert {
        *("--size=4", "--target-size-policy-mode=bulk", "--default-action-on-vm-failure=do-nothing"),
        "--workload-policy=projects/my-project/regions/us-central1/resourcePolicies/first-t5x-like",
        "--template=projects/my-project/regions/us-central1/instanceTemplates/first-t5x-like",
    } <= set(created(shell, "instance-groups"))


# Machine types from docs.cloud.google.com/compute/docs/tpus/tpu-machines.
@pytest.mark.parametrize(
    ("topology", "machine_type", "size"),
    [
        ("v5p:2x2x1", "ct5p-hightpu-4t", 1),
        ("v6e:1x1", "ct6e-standard-1t", 1),
        ("v6e:2x2", "ct6e-standard-4t", 1),
        ("v6e:2x4", "ct6e-standard-4t", 2),
        ("v6e:16x16", "ct6e-standard-4t", 64),
        ("tpu7x:4x4x4", "tpu7x-standard-4t", 16),
    ],
)
def test_machine_type_and_size_follow_the_slice(shell, topology, machine_type, size):
    make(shell).create(cloud.Request(slices.parse_slice(None, topology)))
    assert f"--machine-type={machine_type}" in created(shell, "instance-templates")
    assert f"--size={size}" in created(shell, "instance-groups")
    assert any("workload-policy" in words for words in shell.calls) == (size > 1)


def test_name_of_a_subnetwork_is_completed_to_its_url(shell):
    make(shell).create(cloud.Request(slices.parse_slice(None, "v6e:2x2"), subnetwork="mine"))
    template = created(shell, "instance-templates")
    assert "--subnet=projects/my-project/regions/us-central1/subnetworks/mine" in template


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (
            {"reservation": "mine"},
            ["--provisioning-model=RESERVATION_BOUND", "--reservation-affinity=specific", "--reservation=mine"],
        ),
        (
            {"flex_start": True, "max_run_duration": "2d"},
            ["--provisioning-model=FLEX_START", "--max-run-duration=2d", "--instance-termination-action=DELETE"],
        ),
        ({}, []),
    ],
)
def test_template_requests_capacity(shell, options, flags):
    make(shell).create(cloud.Request(slices.parse_slice(None, "v5p:2x2x2"), **options))
    template = created(shell, "instance-templates")
    assert set(flags) <= set(template)
    assert any("provisioning-model" in word for word in template) == bool(flags)


@pytest.mark.parametrize(
    ("vms", "stable", "kind", "detail"),
    [
        ({}, False, cloud.TpuState.ABSENT, "absent"),
        ({"first": []}, False, cloud.TpuState.PENDING, "first: 0 of 2 VMs are running"),
        ({"first": [("RUNNING",), ("STAGING",)]}, False, cloud.TpuState.PENDING, "1 of 2 VMs are running"),
        ({"first": [("", STOCKOUT), ("", STOCKOUT)]}, False, cloud.TpuState.PENDING, "ZONE_RESOURCE_POOL_EXHAUSTED"),
        ({"first": [("", QUOTA), ("", QUOTA)]}, False, cloud.TpuState.FAILED, "Quota TPUS_PER_TPU_FAMILY exceeded"),
        ({"first": [("RUNNING",), ("RUNNING",)]}, True, cloud.TpuState.READY, "ready"),
        ({"first": [("RUNNING",), ("TERMINATED",)]}, True, cloud.TpuState.LOST, "first-1 is TERMINATED"),
        ({"first": []}, True, cloud.TpuState.LOST, "first has no VMs left"),
    ],
)
def test_state_follows_the_vms(shell, vms, stable, kind, detail):
    shell.vms, shell.stable = vms, stable
    state = make(shell).state()
    assert state.kind == kind and detail in state.detail
    assert state.workers == (2 if kind == cloud.TpuState.READY else 0)


def test_one_missing_group_of_several_is_a_loss(shell):
    shell.vms = {"first-0": [("RUNNING",)] * 2}
    assert make(shell, 2).state() == cloud.State(cloud.TpuState.LOST, "first-1 not found")


def test_delete_removes_groups_before_what_they_use(shell):
    make(shell, 2).delete()
    deleted = [(words[2], words[4] if words[2] != "instance-groups" else words[5]) for words in shell.calls]
    assert deleted == [
        *(("instance-groups", "first-0"), ("instance-groups", "first-1")),
        *(("instance-templates", "first-t5x-like"), ("resource-policies", "first-t5x-like")),
    ]


def test_parts_that_are_missing_do_not_stop_a_deletion_but_failures_do(shell):
    shell.failures = {("instance-groups", "delete"): "ERROR: The resource first was not found"}
    make(shell).delete()
    shell.failures = {("delete",): "ERROR: The resource was not found"}
    with pytest.raises(shells.CommandFailed, match="did not delete first: not found. Check --zone"):
        make(shell).delete()
    shell.failures = {("instance-templates", "delete"): "ERROR: 503 The service is unavailable"}
    with pytest.raises(gcloud.TransientFailure, match="did not delete first-t5x-like of instance-templates: .* 503"):
        make(shell).delete()
    shell.failures = {
        ("instance-groups", "delete"): "ERROR: Required 'compute.instanceGroupManagers.delete' permission"
    }
    with pytest.raises(shells.CommandFailed) as error:
        make(shell).delete()
    assert not isinstance(error.value, gcloud.TransientFailure)


def test_several_slices_find_each_other_through_the_first_worker(shell):
    shell.vms = {"first-0": [("RUNNING",)] * 2, "first-1": [("RUNNING",)] * 2}
    environments = make(shell, 2).slice_environments()
    assert [variables["MEGASCALE_SLICE_ID"] for variables in environments] == ["0", "1"]
    assert {variables["MEGASCALE_COORDINATOR_ADDRESS"] for variables in environments} == {"first-0-x1"}
    assert make(shell).slice_environments() == [{}]


def test_ssh_reaches_all_vms_of_a_slice(shell):
    shell.vms = {"first-0": [("RUNNING",)] * 2, "first-1": [("RUNNING",)] * 2}
    tpu = make(shell, 2)
    tpu.ssh("hostname", slice_index=1)
    tpu.ssh("date")
    reached = [words[3] for words in shell.calls if "ssh" in words]
    assert sorted(reached) == ["first-0-0", "first-0-1", "first-1-0", "first-1-0", "first-1-1", "first-1-1"]
    with pytest.raises(shells.CommandFailed, match="--worker=2: first-0 has 2 VMs. Give 0 to 1."):
        tpu.ssh_words("hostname", 0, 2)
