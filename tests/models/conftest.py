"""Fixtures of the comparisons with reference implementations."""

import json
import os

import pytest
from numerics import TOLERANCE, largest_difference


def _assert_parity(actual, expected, kind):
    """Asserts that tensors of one kind agree within the tolerance of numerics.py."""
    difference, name = largest_difference(actual, expected)
    print(f"{kind}: {difference:.1e} at {name}")
    if report := os.environ.get("T5X_LIKE_PARITY_REPORT"):  # benchmarks/families.py reads these lines
        test = os.path.basename(os.environ["PYTEST_CURRENT_TEST"].split("::")[0])
        with open(report, "a") as lines:
            lines.write(json.dumps({"test": test, "kind": kind, "difference": difference}) + "\n")
    assert difference <= TOLERANCE, f"{kind}: {name} differs by {difference:.2e} of its largest value"


@pytest.fixture(scope="session")
def assert_parity():
    """Returns `assert_parity(actual, expected, kind)`, which asserts that two mappings from name to tensor agree."""
    return _assert_parity
