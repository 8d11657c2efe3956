"""What the comparisons with reference implementations share."""

import json
import os

import pytest
from numerics import TOLERANCE, largest_difference


def _assert_parity(ours, theirs, kind):
    """Holds every tensor of a kind, by name, to the definition of parity (numerics.py)."""
    difference, name = largest_difference(ours, theirs)
    print(f"{kind}: {difference:.1e} at {name}")
    if report := os.environ.get("T5X_LIKE_PARITY_REPORT"):  # lines that docs/families.md is made from
        test = os.path.basename(os.environ["PYTEST_CURRENT_TEST"].split("::")[0])
        with open(report, "a") as lines:
            lines.write(json.dumps({"test": test, "kind": kind, "difference": difference}) + "\n")
    assert difference <= TOLERANCE, f"{kind}: {name} differs by {difference:.2e} of its largest value"


@pytest.fixture(scope="session")
def assert_parity():
    """`assert_parity(ours, theirs, kind)`: two mappings from name to tensor agree."""
    return _assert_parity
