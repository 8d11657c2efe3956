"""Tests for launch/generations.py: each generation is complete and can be launched, and docs/launch.md agrees."""

import math
import re
import sys
from pathlib import Path

import pytest

from t5x_like.planning import tpus

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "launch"))
try:
    import generations
    import gke_nodes
    import slices
finally:
    sys.path.pop(0)

TABLE = generations.GENERATIONS


def rows() -> dict[str, list[str]]:
    """Returns the cells of each generation in docs/launch.md."""
    lines = (ROOT / "docs/launch.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {row[0]: row[1:] for row in cells if row[0] in TABLE}


def test_generations_are_those_that_can_be_planned():
    assert sorted(TABLE) == sorted(tpus.TPUS)


@pytest.mark.parametrize("generation", TABLE.values(), ids=lambda each: each.name)
def test_every_slice_has_vms(generation):
    for sides in generation.shapes:
        shape = slices.Slice(generation, sides)
        nodes = gke_nodes.find_nodes(shape)
        assert nodes.count * nodes.devices == math.prod(sides) <= generation.max_chips
        assert nodes.devices in generation.vm_chips
    assert generation.zones


@pytest.mark.parametrize("generation", TABLE.values(), ids=lambda each: each.name)
def test_page_on_launching_agrees_with_the_table(generation):
    queued, gke = rows()[generation.name]
    assert queued == ("simulated" if generation.runtime_version else "not offered by Google")
    assert ("2x4 also on one VM of 8" in gke) == (8 in generation.vm_chips)
    assert ("1x1 on 1 chip" in gke) == (1 in generation.vm_chips)
    assert ("workload policy" in gke) == generation.gke_workload_policy


def test_host_settings_know_every_generation():
    script = (ROOT / "launch/host_settings.sh").read_text()
    assert {name for name in TABLE if re.search(rf"\b{name}\b", script)} == set(TABLE)
