"""Parsing of topologies, and bandwidth and peak compute of chips."""

import importlib.util

import pytest

from t5x_like import metrics
from t5x_like.planning import topologies
from t5x_like.planning.tpus import TPUS


def test_parse():
    slice_ = topologies.parse("v5p:8x8x8", num_slices=2)
    assert (slice_.chip.name, slice_.sides, slice_.slices) == ("v5p", (8, 8, 8), 2)
    assert slice_.chips == slice_.num_devices == 1024
    assert str(slice_) == "2 slices of v5p:8x8x8"
    assert topologies.parse("tpu7x:2x2x1").num_devices == 8, "a TPU7x chip is two devices"


@pytest.mark.parametrize(
    ("topology", "sides", "hosts"), [("h100:8", (8,), 1), ("h100:1", (1,), 1), ("a100-40:2x8", (8,), 2)]
)
def test_parse_gpus(topology, sides, hosts):
    parsed = topologies.parse(topology)
    assert (parsed.sides, parsed.slices, parsed.num_devices) == (sides, hosts, sides[0] * hosts)
    assert str(parsed) == topology


@pytest.mark.parametrize(
    ("topology", "num_slices", "message"),
    [
        ("v100:8", 1, "unknown chip 'v100'. The chips are v4, .*, h100, h200, b200, a100-40, a100-80, l4"),
        ("h100:16", 1, "invalid sizes. Give 1 to 8 GPUs of a host, such as h100:8, or .* such as h100:2x8"),
        ("h100:0x8", 1, "invalid sizes"),
        ("h100:2x2x2", 1, "invalid sizes"),
        ("h100:8", 2, "GPUs have no slices. Give the number of hosts in the topology, such as --topology=h100:2x8"),
        ("v5p-512", 1, "is not a topology. Give a chip and the sides, such as v5e:4x8"),
        ("v9:2x2", 1, "unknown chip 'v9'. The chips are v4, v5e, v5p, v6e, tpu7x"),
        ("v5p:8x8", 1, "A slice of v5p has 3 sides of at least 1, such as v5p:4x4x8"),
        ("v5e:4x0", 1, "2 sides of at least 1, such as v5e:4x8"),
        ("v5e:2x4", 0, "--num_slices=0 is not a positive integer"),
    ],
)
def test_invalid_topologies_raise(topology, num_slices, message):
    with pytest.raises(ValueError, match=message):
        topologies.parse(topology, num_slices)


def test_missing_libtpu_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(topologies.PlanError, match=r"pip install -e '.\[plan\]'"):
        topologies.devices("v5e:2x4")


def test_closed_sides_use_both_directions_of_their_links():
    v5p, v5e = TPUS["v5p"], TPUS["v5e"]
    assert v5p.ici_bandwidth((4, 4, 8)) == 6 * v5p.link_bandwidth
    assert v5p.ici_bandwidth((2, 2, 1)) == 2 * v5p.link_bandwidth
    assert v5p.ici_bandwidth((2, 2, 4)) == 3 * v5p.link_bandwidth  # not a multiple of a cube, so its side of 4 is open
    assert v5e.ici_bandwidth((16, 16)) == 4 * v5e.link_bandwidth
    assert v5e.ici_bandwidth((4, 16)) == 3 * v5e.link_bandwidth


@pytest.mark.parametrize(
    ("chip", "kind"),
    [("v4", "TPU v4"), ("v5e", "TPU v5 lite"), ("v5p", "TPU v5"), ("v6e", "TPU v6 lite"), ("tpu7x", "TPU7x")],
)
def test_peak_flops_equal_those_of_metrics(chip, kind):
    assert TPUS[chip].peak_flops == metrics.peak_flops(kind)
