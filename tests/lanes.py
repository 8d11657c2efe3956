"""Parameters of tests of which some run by default, and the others in CI alone."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def others_are_full(values: Iterable[Any], chosen: Container[Any]) -> list[Any]:
    """Returns parameters of a test, of which those that are not chosen are marked `full`. Tuples are several ones."""
    return [value if value in chosen else _full(*(value if isinstance(value, tuple) else (value,))) for value in values]


def _full(*values):
    return pytest.param(*values, marks=pytest.mark.full)
