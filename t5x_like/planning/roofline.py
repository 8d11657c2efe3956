"""Roofline: a lower bound on the time of a step from compute, memory traffic and communication."""

import dataclasses

from t5x_like.planning.topologies import Topology
from t5x_like.planning.walk import Work


@dataclasses.dataclass(frozen=True)
class Bound:
    """A lower bound on the time of a step.

    Attributes:
      seconds_by_resource: seconds that each resource takes alone. `compute` is matrix products at the bfloat16 peak,
        `hbm` the memory bandwidth, `ici` all links within the slice, `dcn` the network between slices.
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


def bound(work: Work, topology: Topology) -> Bound:
    """Computes the roofline of a step, with perfect overlap of compute, memory traffic and communication.

    Args:
      work: the work of one device in a step.
      topology: the slices that the step runs on.

    Returns:
      The lower bound.
    """
    chip = topology.chip
    sent = sum(work.collective_bytes.values())
    within = sent - work.dcn_bytes
    return Bound(
        {
            "compute": work.flops / chip.peak_flops,
            "hbm": work.hbm_bytes / chip.hbm_bandwidth,
            "ici": within / topology.ici_bandwidth if within > 0 else 0.0,
            "dcn": work.dcn_bytes / chip.dcn_bandwidth,
        }
    )
