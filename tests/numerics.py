"""Numeric comparison for tests, relative to the largest element of a tensor.

For each tensor: max|actual - expected| <= tolerance · max(max|expected|, FLOOR · the largest value among all tensors).
The tolerance allows for the rounding of different processors.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

TOLERANCE = 2e-5
FLOOR = 1e-3


def largest_difference(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[float, str]:
    """Returns the largest relative difference and the name of its tensor. Names and shapes must match."""
    assert actual.keys() == expected.keys()
    expected = {name: np.asarray(tensor, np.float64) for name, tensor in expected.items()}
    largest = max(np.max(np.abs(tensor)) for tensor in expected.values())
    differences = {}
    for name, tensor in expected.items():
        assert actual[name].shape == tensor.shape, name
        scale = max(np.max(np.abs(tensor)), FLOOR * largest)
        differences[name] = np.max(np.abs(np.asarray(actual[name], np.float64) - tensor)) / scale
    name = max(differences, key=differences.get)
    return float(differences[name]), name


def assert_close(actual: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float = TOLERANCE) -> None:
    """Asserts that two mappings from name to tensor agree within the tolerance."""
    difference, name = largest_difference(actual, expected)
    assert difference <= tolerance, f"{name} differs by {difference:.2e} of its largest value"
