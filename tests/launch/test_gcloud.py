"""Tests for launch/gcloud.py: which errors of gcloud are retried, and what to do about the others."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))
try:
    import gcloud
finally:
    sys.path.pop(0)


@pytest.mark.parametrize(
    "output",
    [
        'There is no more capacity in the zone "us-central1-c"; you can try in another zone [EID: 0x9f48947a7d57c8d]',
        "ERROR: (gcloud.compute.tpus.queued-resources.create) HTTPError 503: The service is currently unavailable.",
        "ERROR: (gcloud.compute.instance-groups.managed.create) ZONE_RESOURCE_POOL_EXHAUSTED",
        "an internal error has occurred [EID: 0x1]",
        "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service 'tpu.googleapis.com'",
        "RESOURCE_EXHAUSTED: RATE_LIMIT_EXCEEDED: quota exceeded",
        "WARNING: your project does not match the quota project. This might lead to quota issues.\nERROR: timed out",
        "ERROR: There was a problem refreshing your current auth tokens: timed out",
    ],
)
def test_failures_that_may_pass_are_transient(output):
    error = gcloud.failure("gcloud did not create first", output)
    assert isinstance(error, gcloud.TransientFailure)
    assert str(error) == f"gcloud did not create first: {output}"


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0.", "Request quota"),
        ("QUOTA_EXCEEDED: Quota TPUS_PER_TPU_FAMILY exceeded. Limit: 0.0", "Request quota"),
        ("Insufficient reserved capacity. Contact customer support", "another kind of capacity"),
        ("ERROR: PERMISSION_DENIED: Cloud TPU API has not been used in project 1 before", "services enable tpu.google"),
        ("ERROR: Permission denied. Required 'compute.instances.create' permission", "ask for roles/tpu.admin"),
        (
            "Permission denied on 'locations/us-x9-a' (or it may not exist): PERMISSION_DENIED",
            "Check --project and --zone",
        ),
        ("The required property [project] is not currently set.", "Add --project"),
        ("Failed to find attribute [project]. The attribute can be set in the following ways", "Add --project"),
        ("INVALID_ARGUMENT: accelerator type v5litepod-16 is not supported", "Correct the option"),
        ("INVALID_ARGUMENT: The provided name is malformed", "Correct the option"),
        ("ALREADY_EXISTS: Resource first already exists", "Choose another name"),
        (
            "CONDITION_NOT_MET: Constraint constraints/compute.vmExternalIpAccess violated",
            "A policy of the organization",
        ),
        ("This API method requires billing to be enabled", "Enable billing"),
        ("argument --provisioning-model: Invalid choice: 'FLEX_START'", "Correct the option"),
    ],
)
def test_permanent_failures_say_what_to_do(output, advice):
    error = gcloud.failure("gcloud did not create first", output)
    assert not isinstance(error, gcloud.TransientFailure)
    assert str(error).startswith(f"gcloud did not create first: {output}") and advice in str(error)


@pytest.mark.parametrize(
    "output",
    [
        "UNAUTHENTICATED: Request had invalid authentication credentials",
        "('invalid_grant: Bad Request', {'error': 'invalid_grant'})",
        "ERROR: You do not currently have an active account selected.",
        "There was a problem refreshing your current auth tokens: Reauthentication failed. cannot prompt",
    ],
)
def test_expired_login_is_transient_and_says_what_to_do(output):
    error = gcloud.failure("gcloud cannot describe first", output)
    assert isinstance(error, gcloud.LoginExpired) and isinstance(error, gcloud.TransientFailure)
    assert "Run `gcloud auth login` in another terminal" in str(error)
