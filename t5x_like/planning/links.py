"""The links of a slice that a mesh axis uses."""

import dataclasses

from t5x_like.planning.collectives import DeviceMesh
from t5x_like.planning.topologies import Topology


@dataclasses.dataclass(frozen=True)
class AxisLinks:
    """The links over which devices along a mesh axis communicate.

    Attributes:
      dimensions: Dimensions of the torus along which the devices differ.
      bandwidth: Bytes/s that a device can send over the links of these dimensions.
      hops: Links between a device and the one farthest from it.
    """

    dimensions: tuple[int, ...]
    bandwidth: float
    hops: int


def axis_links(axis: str, mesh: DeviceMesh, topology: Topology) -> AxisLinks:
    """Returns the links of a mesh axis within a slice.

    Devices along an axis that spans one side of the torus send over the two links of that side, or over one link if
    the side is open or the axis spans only a part of it. Without coordinates, and for an axis within a chip, all links
    count. Groups of devices that are not neighbors share links, and a permutation to one neighbor uses one of them.
    Both cases are treated as if each group had all links of its dimensions, so the estimated times are too short.

    Args:
      axis: Mesh axes as in `DeviceMesh.axis_of`.
      mesh: The devices of the program.
      topology: The slices.
    """
    chip, sides = topology.chip, topology.sides
    group = mesh.group_of(axis)
    extents = [1 + max(at) - min(at) for at in zip(*(mesh.coordinates[device] for device in group), strict=True)]
    extents = extents[: len(sides)] or list(sides)
    within_chip = max(extents) == 1
    if within_chip:
        extents = list(sides)
    closed = [ring and extent == side for ring, extent, side in zip(chip.closed(sides), extents, sides, strict=True)]
    dimensions = tuple(dim for dim, extent in enumerate(extents) if extent > 1) or (0,)  # (0,) for a single chip
    links = sum(2 if closed[dim] else 1 for dim in dimensions)
    if within_chip:
        return AxisLinks(dimensions, max(1, links) * chip.link_bandwidth, hops=1)
    hops = sum(extents[dim] // 2 if closed[dim] else extents[dim] - 1 for dim in dimensions)
    return AxisLinks(dimensions, max(1, links) * chip.link_bandwidth, hops)
