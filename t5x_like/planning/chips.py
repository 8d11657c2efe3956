"""Specifications of TPU chips: compute, memory and network bandwidth.

Sources:

* Peak compute: `metrics.PEAK_FLOPS`.
* Memory bandwidth, interconnect bandwidth and data center network bandwidth: the page of each generation at
  cloud.google.com/tpu/docs. The published interchip interconnect bandwidth per chip is divided by the number of links
  and of directions. tests/planning/test_chips.py lists the published numbers.
* Clock: 1.05 GHz for v4 ("TPU v4", Jouppi et al. 2023, arXiv:2304.01433, table 4), 1.5 GHz for v5e and 1.75 GHz for
  v5p (jax-ml.github.io/scaling-book, "How to Think About TPUs"). For v6e and tpu7x it follows from the peak, because a
  matrix unit of size n computes 2 n² FLOP per cycle: as on a v5e, the peak is reached with four units per core.
* Size of a matrix unit: `jax.experimental.pallas.tpu.get_tpu_info`.
* Memory available to a program: the compiler reports it when a program needs more ("exceeds available HBM").
"""

import dataclasses

from t5x_like.metrics import PEAK_FLOPS
from t5x_like.runtime.hardware_files import TPU_KINDS

GIB = 2**30  # bytes


@dataclasses.dataclass(frozen=True)
class Chip:
    """Specification of a TPU generation. All numbers are per JAX device.

    Attributes:
      name: Name of the chip in a topology, such as `v5p` in `v5p:8x8x8`.
      peak_flops: Dense bfloat16 peak in FLOP/s.
      hbm_bytes: Memory available to a program in bytes. The runtime uses the rest.
      hbm_bandwidth: Memory bandwidth in bytes/s.
      link_bandwidth: Bandwidth of a link to a neighbor in bytes/s per direction.
      dimensions: Number of dimensions of the torus of chips.
      wrap: A side of the torus is closed into a ring if its length is a multiple of `wrap`. A collective uses both
        directions of a closed side, but only one direction at the ends of an open side. In three dimensions, all sides
        are closed or none, because optical switches connect whole cubes.
      dcn_bandwidth: Bandwidth to other slices in bytes/s per direction.
      devices_per_chip: JAX devices per physical chip.
      clock: Cycles per second of the cores.
      matrix_unit: Rows and columns of a matrix unit.
      cores: Number of cores, which share the work of a kernel.
      config_name: Chip configuration to request from the compiler; None for its default.
    """

    name: str
    peak_flops: float
    hbm_bytes: int
    hbm_bandwidth: float
    link_bandwidth: float
    dimensions: int
    wrap: int
    dcn_bandwidth: float
    clock: float
    matrix_unit: int = 128
    devices_per_chip: int = 1
    cores: int = 1
    config_name: str | None = None

    @property
    def device_kinds(self) -> tuple[str, ...]:
        """`device_kind` of its JAX devices, which differs between libtpu versions."""
        return TPU_KINDS[self.name]

    def ici_bandwidth(self, sides: tuple[int, ...]) -> float:
        """Returns the bandwidth in bytes/s at which a device can send within a slice, over all its links.

        A single chip counts as one link: its devices communicate within the chip, or there is only one.

        Args:
          sides: Sides of the slice in chips.
        """
        links = sum(2 if ring else 1 for side, ring in zip(sides, self.closed(sides), strict=True) if side > 1)
        return max(1, links) * self.link_bandwidth

    def closed(self, sides: tuple[int, ...]) -> tuple[bool, ...]:
        """Returns for each side whether it is a ring.

        Args:
          sides: Sides of the slice in chips.
        """
        closed = tuple(side % self.wrap == 0 for side in sides)
        return (all(closed),) * 3 if self.dimensions == 3 else closed


# The two cores of a v4 or v5p chip act as one device ("megacore"). A TPU7x chip is two devices, each with half of the
# chip's compute, memory and bandwidth.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            name="v4",
            peak_flops=PEAK_FLOPS["TPU v4"],
            hbm_bytes=int(30.75 * GIB),
            hbm_bandwidth=1228e9,
            link_bandwidth=50e9,
            dimensions=3,
            wrap=4,
            dcn_bandwidth=6.25e9,
            clock=1.05e9,
            cores=2,
            config_name="megacore",
        ),
        Chip(
            name="v5e",
            peak_flops=PEAK_FLOPS["TPU v5e"],
            hbm_bytes=int(15.75 * GIB),
            hbm_bandwidth=819e9,
            link_bandwidth=50e9,
            dimensions=2,
            wrap=16,
            dcn_bandwidth=3.125e9,
            clock=1.5e9,
        ),
        Chip(
            name="v5p",
            peak_flops=PEAK_FLOPS["TPU v5p"],
            hbm_bytes=int(95.73 * GIB),
            hbm_bandwidth=2765e9,
            link_bandwidth=100e9,
            dimensions=3,
            wrap=4,
            dcn_bandwidth=6.25e9,
            clock=1.75e9,
            cores=2,
        ),
        Chip(
            name="v6e",
            peak_flops=PEAK_FLOPS["TPU v6e"],
            hbm_bytes=int(31.24 * GIB),
            hbm_bandwidth=1640e9,
            link_bandwidth=100e9,
            dimensions=2,
            wrap=16,
            dcn_bandwidth=12.5e9,
            clock=1.75e9,
            matrix_unit=256,
        ),
        Chip(
            name="tpu7x",
            peak_flops=PEAK_FLOPS["TPU7x"],
            hbm_bytes=int(94.74 * GIB),
            hbm_bandwidth=7380e9 / 2,
            link_bandwidth=100e9 / 2,
            dimensions=3,
            wrap=4,
            dcn_bandwidth=12.5e9 / 2,
            clock=2.2e9,
            matrix_unit=256,
            devices_per_chip=2,
        ),
    )
}
