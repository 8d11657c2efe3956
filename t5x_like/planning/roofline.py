"""Roofline: a lower bound on the time of a step from compute, memory traffic and communication."""

import dataclasses

from t5x_like.planning.collectives import DeviceMesh
from t5x_like.planning.links import axis_links
from t5x_like.planning.topologies import Topology
from t5x_like.planning.walk import Work


@dataclasses.dataclass(frozen=True)
class Bound:
    """A lower bound on the time of a step.

    Attributes:
      seconds_by_resource: Seconds that each resource takes alone. `compute` is matrix products at the bfloat16 peak,
        `hbm` the memory bandwidth, `ici` the links within the slice that are busy longest, `dcn` the network between
        slices.
    """

    seconds_by_resource: dict[str, float]

    @property
    def seconds(self) -> float:
        """Lower bound on the time of a step in seconds."""
        return max(self.seconds_by_resource.values())

    @property
    def resource(self) -> str:
        """The resource that takes longest."""
        return max(self.seconds_by_resource, key=self.seconds_by_resource.__getitem__)


def bound(work: Work, topology: Topology, mesh: DeviceMesh) -> Bound:
    """Computes the roofline of a step, with perfect overlap of compute, memory traffic and communication.

    A collective uses the links of its mesh axis. Collectives along axes with other links run at the same time.

    Args:
      work: The work of one device in a step.
      topology: The slices that the step runs on.
      mesh: The devices of the program.

    Returns:
      The lower bound.
    """
    chip = topology.chip
    busy = [0.0] * chip.dimensions  # seconds per dimension of the torus
    for (_, axis), sent in work.collectives.items():
        links = axis_links(axis, mesh, topology)
        for dimension in links.dimensions:
            busy[dimension] += (sent.bytes - sent.dcn_bytes) / links.bandwidth
    return Bound(
        {
            "compute": work.flops / chip.peak_flops,
            "hbm": work.hbm_bytes / chip.hbm_bandwidth,
            "ici": max(busy),
            "dcn": work.dcn_bytes / chip.dcn_bandwidth,
        }
    )
