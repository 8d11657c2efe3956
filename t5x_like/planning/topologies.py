"""Slices of TPUs and hosts of GPUs as compile-only topologies."""

import dataclasses
import math
import re
from typing import Any

from t5x_like.errors import UserError
from t5x_like.planning.chips import Chip, PlanError
from t5x_like.planning.gpus import GPUS
from t5x_like.planning.tpus import TPUS

__all__ = ["CHIPS", "PlanError", "Topology", "devices", "parse"]

CHIPS: dict[str, Chip] = {**TPUS, **GPUS}
_TOPOLOGY = re.compile(r"^(?P<chip>[a-z0-9-]+):(?P<sides>\d+(x\d+)*)$")


@dataclasses.dataclass(frozen=True)
class Topology:
    """One or several identical TPU slices, or hosts of GPUs.

    Attributes:
      chip: The chip of the slices.
      sides: Sides of a slice in chips; the number of GPUs of a host.
      slices: Number of slices, or of hosts.
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
        return self.chip.describe(self.sides, self.slices)


def parse(topology: str, num_slices: int = 1) -> Topology:
    """Parses a topology.

    Args:
      topology: A TPU and the sides of a slice in chips, such as `v5p:8x8x8`, or a GPU with the number of GPUs of a
        host, such as `h100:8`, or of hosts and of GPUs per host, such as `h100:2x8`.
      num_slices: Number of slices.

    Returns:
      The topology.

    Raises:
      UserError: The syntax, the chip, the sides or the number of slices is invalid.
    """
    match = _TOPOLOGY.match(topology) if isinstance(topology, str) else None
    if match is None:
        raise UserError(
            f"--topology={topology!r} is not a topology. Give a chip and the sides, such as v5e:4x8 or h100:8."
        )
    if match["chip"] not in CHIPS:
        raise UserError(f"--topology={topology}: unknown chip {match['chip']!r}. The chips are {', '.join(CHIPS)}.")
    if num_slices < 1:
        raise UserError(f"--num_slices={num_slices} is not a positive integer")
    chip = CHIPS[match["chip"]]
    return Topology(chip, *chip.parse_sides(topology, tuple(map(int, match["sides"].split("x"))), num_slices))


def devices(topology: str, num_slices: int = 1) -> list[Any]:
    """Returns compile-only devices of a topology.

    Programs can be compiled for these devices, but not run. The function sets JAX's platform to CPU, so that the
    compiler does not look for the chips.

    Args:
      topology: See `parse`.
      num_slices: Number of slices, connected by the data center network.

    Returns:
      Devices for a mesh.

    Raises:
      PlanError: The compiler is not installed.
      UserError: The topology is invalid or unknown to the compiler.
    """
    parsed = parse(topology, num_slices)
    return parsed.chip.compile_only_devices(parsed.sides, parsed.slices)
