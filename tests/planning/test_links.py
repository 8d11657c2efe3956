"""Links of mesh axes."""

import pytest

from t5x_like.planning import topologies
from t5x_like.planning.collectives import DeviceMesh
from t5x_like.planning.links import AxisLinks, axis_links

# A mesh over v5p:4x4x4, whose sides are rings: `data` is the first side, `fsdp` the others.
RINGS = DeviceMesh(
    {"data": 4, "fsdp": 16}, (0,) * 64, tuple((x, y, z) for x in range(4) for y in range(4) for z in range(4))
)
# A mesh over v5e:4x8, whose sides are open: `fsdp` is the first side and half of the second.
OPEN = DeviceMesh(
    {"fsdp": 16, "tensor": 2},
    (0,) * 32,
    tuple((x, y + 4 * far, 0) for x in range(4) for y in range(4) for far in range(2)),
)


@pytest.mark.parametrize(
    ("mesh", "topology", "axis", "dimensions", "links", "hops"),
    [
        (RINGS, "v5p:4x4x4", "data", (0,), 2, 2),
        (RINGS, "v5p:4x4x4", "fsdp", (1, 2), 4, 4),
        (RINGS, "v5p:4x4x4", "data+fsdp", (0, 1, 2), 6, 6),
        (RINGS, "v5p:4x4x4", "unknown", (0, 1, 2), 6, 6),
        (OPEN, "v5e:4x8", "fsdp", (0, 1), 2, 3 + 3),
        (OPEN, "v5e:4x8", "tensor", (1,), 1, 4),
    ],
)
def test_axis_uses_the_links_of_its_sides(mesh, topology, axis, dimensions, links, hops):
    slice_ = topologies.parse(topology)
    found = axis_links(axis, mesh, slice_)
    assert (found.dimensions, found.bandwidth, found.hops) == (dimensions, links * slice_.chip.link_bandwidth, hops)


def test_axis_over_slices_uses_the_links_of_its_part_within_a_slice():
    mesh = DeviceMesh(
        {"data": 4, "fsdp": 2}, (0,) * 4 + (1,) * 4, tuple((x, y, 0) for x in range(2) for y in range(2)) * 2
    )
    slice_ = topologies.parse("v5e:2x2", num_slices=2)
    assert axis_links("data", mesh, slice_).dimensions == (0,)
    assert axis_links("fsdp", mesh, slice_).dimensions == (1,)


def test_unknown_coordinates_use_all_links():
    mesh = DeviceMesh({"fsdp": 8}, (0,) * 8)
    slice_ = topologies.parse("v5e:2x4")
    assert axis_links("fsdp", mesh, slice_).bandwidth == slice_.ici_bandwidth


def test_axis_within_a_chip_takes_one_hop():
    coordinates = tuple((x, y, 0) for x in range(4) for y in range(2) for _core in range(2))
    mesh = DeviceMesh({"fsdp": 8, "tensor": 2}, (0,) * 16, coordinates)
    slice_ = topologies.parse("tpu7x:4x2x1")
    assert axis_links("tensor", mesh, slice_).hops == 1
    assert axis_links("fsdp", mesh, slice_).hops == 3 + 1


def test_single_chip_has_one_link():
    mesh = DeviceMesh({"fsdp": 2}, (0,) * 2, ((0, 0, 0),) * 2)
    slice_ = topologies.parse("tpu7x:1x1x1")
    assert axis_links("fsdp", mesh, slice_) == AxisLinks((0,), slice_.chip.link_bandwidth, 1)
