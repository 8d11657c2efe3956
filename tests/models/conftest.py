"""What the comparisons with other implementations share."""

import json
import os

import numpy as np
import pytest

TOLERANCE = 2e-5
FLOOR = 1e-3


def _assert_parity(ours, theirs, kind):
    """Holds every tensor of a kind, by name, to the definition above."""
    assert ours.keys() == theirs.keys()
    theirs = {name: np.asarray(tensor, np.float64) for name, tensor in theirs.items()}
    largest = max(np.max(np.abs(tensor)) for tensor in theirs.values())
    worst = {}
    for name, tensor in theirs.items():
        assert ours[name].shape == tensor.shape, name
        allowed = max(np.max(np.abs(tensor)), FLOOR * largest)
        worst[name] = np.max(np.abs(np.asarray(ours[name], np.float64) - tensor)) / allowed
    name = max(worst, key=worst.get)
    print(f"{kind}: {worst[name]:.1e} at {name}")
    if report := os.environ.get("T5X_LIKE_PARITY_REPORT"):  # lines that docs/families.md is made from
        test = os.path.basename(os.environ["PYTEST_CURRENT_TEST"].split("::")[0])
        with open(report, "a") as lines:
            lines.write(json.dumps({"test": test, "kind": kind, "difference": float(worst[name])}) + "\n")
    assert worst[name] <= TOLERANCE, f"{kind}: {name} differs by {worst[name]:.2e} of its largest value"


@pytest.fixture(scope="session")
def assert_parity():
    """`assert_parity(ours, theirs, kind)`: two mappings from name to tensor agree.

    For each tensor: max|a - b| <= 2e-5 · max(max|b|, 1e-3 · the largest value among all tensors of its kind).
    """
    return _assert_parity
