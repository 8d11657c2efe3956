"""Slices as they are written on the command line."""

import importlib.util

import pytest

from t5x_like import metrics
from t5x_like.planning import topologies
from t5x_like.planning.chips import CHIPS


def test_a_slice_is_a_chip_and_its_sides():
    slice_ = topologies.parse("v5p:8x8x8", num_slices=2)
    assert (slice_.chip.name, slice_.sides, slice_.slices) == ("v5p", (8, 8, 8), 2)
    assert slice_.chips == slice_.num_devices == 1024
    assert str(slice_) == "2 slices of v5p:8x8x8"
    assert topologies.parse("tpu7x:2x2x1").num_devices == 8, "a TPU7x chip is two devices"


@pytest.mark.parametrize(
    ("topology", "num_slices", "message"),
    [
        ("v5p-512", 1, "write a chip and the sides of a slice, such as v5e:4x8"),
        ("v9:2x2", 1, "there is no chip 'v9'; there are v4, v5e, v5p, v6e, tpu7x"),
        ("v5p:8x8", 1, "a slice of v5p has 3 sides of at least 1, such as v5p:4x4x8"),
        ("v5e:4x0", 1, "2 sides of at least 1, such as v5e:4x8"),
        ("v5e:2x4", 0, "--num_slices=0 must be at least 1"),
    ],
)
def test_what_is_no_slice_is_refused(topology, num_slices, message):
    with pytest.raises(ValueError, match=message):
        topologies.parse(topology, num_slices)


def test_without_the_compiler_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(topologies.PlanError, match=r"pip install 't5x_like\[plan\]'"):
        topologies.devices("v5e:2x4")


def test_links_of_closed_sides_serve_both_directions():
    v5p, v5e = CHIPS["v5p"], CHIPS["v5e"]
    assert v5p.ici_bandwidth((4, 4, 8)) == 6 * v5p.link_bandwidth
    assert v5p.ici_bandwidth((2, 2, 1)) == 2 * v5p.link_bandwidth
    assert v5p.ici_bandwidth((2, 2, 4)) == 3 * v5p.link_bandwidth  # no cube, so not closed along its side of 4
    assert v5e.ici_bandwidth((16, 16)) == 4 * v5e.link_bandwidth
    assert v5e.ici_bandwidth((4, 16)) == 3 * v5e.link_bandwidth


@pytest.mark.parametrize(
    ("chip", "kind"),
    [("v4", "TPU v4"), ("v5e", "TPU v5 lite"), ("v5p", "TPU v5"), ("v6e", "TPU v6 lite"), ("tpu7x", "TPU7x")],
)
def test_the_peaks_are_those_that_runs_are_measured_by(chip, kind):
    assert CHIPS[chip].peak_flops == metrics.peak_flops(kind)
