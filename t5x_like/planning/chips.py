"""TPU chips as data: what each generation can compute, hold and send.

Sources: cloud.google.com/tpu/docs, a page a generation (peak compute, memory bandwidth, "interchip interconnect
bandwidth" a chip, which is divided here by the chip's links and directions, "data center network bandwidth" a chip;
tests/planning/test_chips.py has the published numbers), and the compiler itself for the memory
that it lets a program use, which it states when a program needs more ("exceeds available HBM").
"""

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One generation, all numbers for one JAX device.

    Attributes:
      name: as a topology is written, the `v5p` of `v5p:8x8x8`.
      peak_flops: dense bfloat16, FLOP/s.
      hbm_bytes: memory that a program may use; the rest is the runtime's.
      hbm_bandwidth: bytes/s.
      link_bandwidth: of one link to a neighbour, bytes/s in one direction.
      dimensions: of the torus that the links form.
      wrap: a side of the torus whose length is a multiple of this one is closed to a ring, so that both directions
        serve a collective; an open side serves it in one direction at its ends. Of three sides, all are closed or none:
        slices are closed by switches between whole cubes.
      dcn_bandwidth: to other slices, bytes/s in one direction.
      devices_per_chip: JAX devices that one physical chip is.
      config_name: what the compiler wants to be told about the chip, where there is a choice.
    """

    name: str
    peak_flops: float
    hbm_bytes: int
    hbm_bandwidth: float
    link_bandwidth: float
    dimensions: int
    wrap: int
    dcn_bandwidth: float
    devices_per_chip: int = 1
    config_name: str | None = None

    def ici_bandwidth(self, sides: tuple[int, ...]) -> float:
        """Bytes/s that one device can send within a slice of this shape, over all its links."""
        closed = [side % self.wrap == 0 for side in sides]
        if self.dimensions == 3:
            closed = [all(closed)] * 3
        links = sum(2 if ring else 1 for side, ring in zip(sides, closed, strict=True) if side > 1)
        return links * self.link_bandwidth


# A v4 chip has two cores that share their memory and act as one device ("megacore"), as a v5p has. A TPU7x chip is two
# devices, each with half of everything.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            name="v4",
            peak_flops=275e12,
            hbm_bytes=int(30.75 * GIB),
            hbm_bandwidth=1228e9,
            link_bandwidth=50e9,
            dimensions=3,
            wrap=4,
            dcn_bandwidth=6.25e9,
            config_name="megacore",
        ),
        Chip(
            name="v5e",
            peak_flops=197e12,
            hbm_bytes=int(15.75 * GIB),
            hbm_bandwidth=819e9,
            link_bandwidth=50e9,
            dimensions=2,
            wrap=16,
            dcn_bandwidth=3.125e9,
        ),
        Chip(
            name="v5p",
            peak_flops=459e12,
            hbm_bytes=int(95.73 * GIB),
            hbm_bandwidth=2765e9,
            link_bandwidth=100e9,
            dimensions=3,
            wrap=4,
            dcn_bandwidth=6.25e9,
        ),
        Chip(
            name="v6e",
            peak_flops=918e12,
            hbm_bytes=int(31.24 * GIB),
            hbm_bandwidth=1640e9,
            link_bandwidth=100e9,
            dimensions=2,
            wrap=16,
            dcn_bandwidth=12.5e9,
        ),
        Chip(
            name="tpu7x",
            peak_flops=2307e12 / 2,
            hbm_bytes=int(94.74 * GIB),
            hbm_bandwidth=7380e9 / 2,
            link_bandwidth=100e9 / 2,
            dimensions=3,
            wrap=4,
            dcn_bandwidth=12.5e9 / 2,
            devices_per_chip=2,
        ),
    )
}
