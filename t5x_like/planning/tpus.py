"""TPUs: specifications, compile-only devices, and the time of instructions by the compiler's estimates.

Sources:

* Peak compute: `metrics.PEAK_FLOPS`.
* Memory bandwidth, interconnect bandwidth and data center network bandwidth: the page of each generation at
  cloud.google.com/tpu/docs. The published interchip interconnect bandwidth per chip is divided by the number of links
  and of directions. tests/planning/test_tpus.py lists the published numbers.
* Clock: 1.05 GHz for v4 ("TPU v4", Jouppi et al. 2023, arXiv:2304.01433, table 4), 1.5 GHz for v5e and 1.75 GHz for
  v5p (jax-ml.github.io/scaling-book, "How to Think About TPUs"). For v6e and tpu7x it follows from the peak, because a
  matrix unit of size n computes 2 n² FLOP per cycle: as on a v5e, the peak is reached with four units per core.
* Size of a matrix unit: `jax.experimental.pallas.tpu.get_tpu_info`.
* Memory available to a program: the compiler reports it when a program needs more ("exceeds available HBM").
"""

import dataclasses
import importlib.util
import os
import re
from typing import Any, ClassVar

import jax

from t5x_like.errors import UserError
from t5x_like.metrics import PEAK_FLOPS
from t5x_like.planning import kernels
from t5x_like.planning.chips import GIB, Chip, CoreTime, PlanError
from t5x_like.runtime.hardware_files import TPU_KINDS

# Environment of libtpu on a host without TPUs: no query to the metadata server or to other hosts, and no lock against
# other processes.
_LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# Time of a message over one link, in seconds (jax-ml.github.io/scaling-book, "Sharded Matrices and How to Multiply
# Them"). A collective takes at least as long as a message takes to the farthest device.
HOP_SECONDS = 1e-6
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tpu(Chip):
    """A TPU generation.

    Attributes:
      wrap: A side of the torus of chips is closed into a ring if its length is a multiple of `wrap`. A collective uses
        both directions of a closed side, but only one direction at the ends of an open side. In three dimensions, all
        sides are closed or none, because optical switches connect whole cubes.
      clock: Cycles per second of the cores.
      matrix_unit: Rows and columns of a matrix unit.
      cores: Number of cores, which share the work of a kernel.
      config_name: Chip configuration to request from the compiler; None for its default.
    """

    wrap: int
    clock: float
    matrix_unit: int = 128
    cores: int = 1
    config_name: str | None = None

    platform: ClassVar[str] = "tpu"
    packages: ClassVar[tuple[str, ...]] = ("libtpu",)
    basis: ClassVar[str] = "the compiler's schedule and cycle estimates, and communication"

    @property
    def device_kinds(self) -> tuple[str, ...]:
        """`device_kind` of its JAX devices, which differs between libtpu versions."""
        return TPU_KINDS[self.name]

    def parse_sides(self, topology: str, sides: tuple[int, ...], num_slices: int) -> tuple[tuple[int, ...], int]:
        """See `Chip.parse_sides`."""
        if len(sides) != self.dimensions or 0 in sides:
            example = "4x4x8" if self.dimensions == 3 else "4x8"
            raise UserError(
                f"--topology={topology}: invalid sides. A slice of {self.name} has {self.dimensions} sides of at least "
                f"1, such as {self.name}:{example}."
            )
        return sides, num_slices

    def describe(self, sides: tuple[int, ...], slices: int) -> str:
        """Returns text such as `2 slices of v5p:8x8x8`."""
        of_slices = f"{slices} slices of " if slices > 1 else ""
        return f"{of_slices}{self.name}:{'x'.join(map(str, sides))}"

    def compile_only_devices(self, sides: tuple[int, ...], slices: int) -> list[Any]:
        """See `Chip.compile_only_devices`. Sets JAX's platform to CPU, so that libtpu does not look for TPUs."""
        if importlib.util.find_spec("libtpu") is None:
            raise PlanError(
                "libtpu, XLA's TPU compiler, is not installed. Install the version that matches jax: "
                "pip install -e '.[plan]' -c constraints.txt"
            )
        for name, value in _LIBTPU_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        jax.config.update("jax_platforms", "cpu")
        from jax.experimental import topologies

        options: dict[str, Any] = {"num_slices": slices} if slices > 1 else {}
        if self.config_name:
            options["chip_config_name"] = self.config_name
        if min(sides[:2]) < 2:  # smaller than a host, which has 2x2 chips
            options["chips_per_host_bounds"] = (*(min(side, 2) for side in sides[:2]), 1)
        name = self.describe(sides, slices=1)
        try:
            return list(topologies.get_topology_desc(topology_name=name, platform="tpu", **options).devices)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"--topology={name}: unknown to the compiler: {error}. Choose another slice.") from error

    def closed(self, sides: tuple[int, ...]) -> tuple[bool, ...]:
        """See `Chip.closed`."""
        closed = tuple(side % self.wrap == 0 for side in sides)
        return (all(closed),) * 3 if self.dimensions == 3 else closed

    def transfer_seconds(self, sent_bytes: float, bandwidth: float, hops: int) -> float:
        """See `Chip.transfer_seconds`."""
        return max(sent_bytes / bandwidth, hops * HOP_SECONDS)

    def core_time(self, module, computation, instruction, work) -> CoreTime:
        """See `Chip.core_time`. Without the compiler's estimate, FLOPs at the peak or bytes at the bandwidth of HBM."""
        del module
        if match := _CYCLES.search(instruction.attributes):
            return CoreTime(int(match[1]) / self.clock, is_estimated_by_compiler=True)
        compute = work.flops / self.peak_flops
        if instruction.opcode == "custom-call":
            compute /= kernels.fill(computation, instruction, self.matrix_unit)
            compute += kernels.vector_cycles(instruction) / (self.clock * self.cores)
        return CoreTime(max(compute, work.hbm_bytes / self.hbm_bandwidth))


# The two cores of a v4 or v5p chip act as one device ("megacore"). A TPU7x chip is two devices, each with half of the
# chip's compute, memory and bandwidth.
TPUS = {
    chip.name: chip
    for chip in (
        Tpu(
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
        Tpu(
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
        Tpu(
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
        Tpu(
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
        Tpu(
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
