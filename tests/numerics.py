"""Numeric comparison for tests, relative to a tensor's largest element, to allow for rounding of different processors.

For each tensor: max|a - b| <= tolerance · max(max|b|, 1e-3 · the largest value among all tensors).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

TOLERANCE = 2e-5
FLOOR = 1e-3


def largest_difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[float, str]:
    """Returns the largest difference in the norm above and the name of its tensor. Names and shapes must match."""
    assert ours.keys() == theirs.keys()
    theirs = {name: np.asarray(tensor, np.float64) for name, tensor in theirs.items()}
    largest = max(np.max(np.abs(tensor)) for tensor in theirs.values())
    found = {}
    for name, tensor in theirs.items():
        assert ours[name].shape == tensor.shape, name
        scale = max(np.max(np.abs(tensor)), FLOOR * largest)
        found[name] = np.max(np.abs(np.asarray(ours[name], np.float64) - tensor)) / scale
    name = max(found, key=found.get)
    return float(found[name]), name


def assert_close(ours: Mapping[str, Any], theirs: Mapping[str, Any], tolerance: float = TOLERANCE) -> None:
    """Asserts that two mappings from name to tensor agree in the norm above."""
    difference, name = largest_difference(ours, theirs)
    assert difference <= tolerance, f"{name} differs by {difference:.2e} of its largest value"
