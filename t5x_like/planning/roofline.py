"""How fast a step can be at best: the slowest of computing, moving and sending, each at its full rate."""

import dataclasses

from t5x_like.planning.topologies import Topology
from t5x_like.planning.walk import Work


@dataclasses.dataclass(frozen=True)
class Bound:
    """A lower bound on the time of a step.

    Attributes:
      parts: what limits it -> seconds, were it alone: `compute` (matrix products at the bfloat16 peak), `hbm` (its
        bandwidth), `ici` (links within the slice, all of them busy), `dcn` (the network between slices).
    """

    parts: dict[str, float]

    @property
    def seconds(self) -> float:
        return max(self.parts.values())

    @property
    def by(self) -> str:
        """Which of `parts` is the longest."""
        return max(self.parts, key=self.parts.__getitem__)


def bound(work: Work, topology: Topology) -> Bound:
    """The bound for what one device does in a step, if all of it overlaps perfectly."""
    chip = topology.chip
    sent = sum(work.collective_bytes.values())
    within = sent - work.slice_bytes
    return Bound(
        {
            "compute": work.flops / chip.peak_flops,
            "hbm": work.hbm_bytes / chip.hbm_bandwidth,
            "ici": within / topology.ici_bandwidth if within > 0 else 0.0,
            "dcn": work.slice_bytes / chip.dcn_bandwidth,
        }
    )
