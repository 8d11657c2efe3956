"""TPU slices as compile-only topologies."""

import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

import jax

from t5x_like.errors import UserError
from t5x_like.planning.chips import CHIPS, Chip

# Environment of libtpu on a host without TPUs: no query to the metadata server or to other hosts, and no lock against
# other processes.
_LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_TOPOLOGY = re.compile(r"^(?P<chip>[a-z0-9]+):(?P<sides>\d+(x\d+)*)$")


class PlanError(UserError):
    """Planning is not possible on this host. The message names the missing package."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """One or several identical TPU slices.

    Attributes:
      chip: The chip of the slices.
      sides: Sides of a slice in chips.
      slices: Number of slices.
    """

    chip: Chip
    sides: tuple[int, ...]
    slices: int = 1

    @property
    def chips(self) -> int:
        """Number of physical chips in all slices."""
        return math.prod(self.sides) * self.slices

    @property
    def num_devices(self) -> int:
        """Number of JAX devices in all slices."""
        return self.chips * self.chip.devices_per_chip

    @property
    def ici_bandwidth(self) -> float:
        """Bandwidth in bytes/s at which a device can send within its slice."""
        return self.chip.ici_bandwidth(self.sides)

    def __str__(self) -> str:
        slices = f"{self.slices} slices of " if self.slices > 1 else ""
        return f"{slices}{self.chip.name}:{'x'.join(map(str, self.sides))}"


def parse(topology: str, num_slices: int = 1) -> Topology:
    """Parses a topology.

    Args:
      topology: Chip and sides of a slice in chips, such as `v5p:8x8x8`.
      num_slices: Number of slices.

    Returns:
      The topology.

    Raises:
      UserError: The syntax, the chip, the sides or the number of slices is invalid.
    """
    match = _TOPOLOGY.match(topology) if isinstance(topology, str) else None
    if match is None:
        raise UserError(f"--topology={topology!r} is not a topology. Give a chip and the sides, such as v5e:4x8.")
    if match["chip"] not in CHIPS:
        raise UserError(f"--topology={topology}: unknown chip {match['chip']!r}. The chips are {', '.join(CHIPS)}.")
    chip, sides = CHIPS[match["chip"]], tuple(int(side) for side in match["sides"].split("x"))
    if len(sides) != chip.dimensions or 0 in sides:
        example = "4x4x8" if chip.dimensions == 3 else "4x8"
        raise UserError(
            f"--topology={topology}: invalid sides. A slice of {chip.name} has {chip.dimensions} sides of at least 1, "
            f"such as {chip.name}:{example}."
        )
    if num_slices < 1:
        raise UserError(f"--num_slices={num_slices} is not a positive integer")
    return Topology(chip, sides, num_slices)


def devices(topology: str, num_slices: int = 1) -> list[Any]:
    """Returns compile-only devices of a topology.

    Programs can be compiled for these devices, but not run. The function sets JAX's platform to CPU, so that libtpu
    serves as a compiler and does not look for TPUs.

    Args:
      topology: See `parse`.
      num_slices: Number of slices, connected by the data center network.

    Returns:
      Devices for a mesh.

    Raises:
      PlanError: Libtpu is not installed.
      UserError: The topology is invalid or unknown to the compiler.
    """
    parsed = parse(topology, num_slices)
    if importlib.util.find_spec("libtpu") is None:
        raise PlanError(
            "libtpu, XLA's TPU compiler, is not installed. Install the version that matches jax: "
            "pip install -e '.[plan]' -c constraints.txt"
        )
    for name, value in _LIBTPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    options: dict[str, Any] = {"num_slices": num_slices} if num_slices > 1 else {}
    if parsed.chip.config_name:
        options["chip_config_name"] = parsed.chip.config_name
    if min(parsed.sides[:2]) < 2:  # smaller than a host, which has 2x2 chips
        options["chips_per_host_bounds"] = (*(min(side, 2) for side in parsed.sides[:2]), 1)
    try:
        return list(topologies.get_topology_desc(topology_name=topology, platform="tpu", **options).devices)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"--topology={topology}: unknown to the compiler: {error}. Choose another slice.") from error
