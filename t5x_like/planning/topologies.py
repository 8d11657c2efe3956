"""Devices of a TPU slice that is not here, for the compiler to compile for."""

import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

import jax

from t5x_like.errors import UserError
from t5x_like.planning.chips import CHIPS, Chip

# What tells libtpu that it is not on a TPU host: no question to a cloud's metadata server, none about other hosts, no
# lock against a second process.
_WITHOUT_A_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_WRITTEN = re.compile(r"^(?P<chip>[a-z0-9]+):(?P<sides>\d+(x\d+)*)$")


class PlanError(UserError):
    """A plan cannot be made on this host; the message says what is missing."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice, or several alike.

    Attributes:
      chip: what it is made of.
      sides: of the torus of chips in one slice.
      slices: how many slices.
    """

    chip: Chip
    sides: tuple[int, ...]
    slices: int = 1

    @property
    def chips(self) -> int:
        """Physical chips over all slices."""
        return math.prod(self.sides) * self.slices

    @property
    def num_devices(self) -> int:
        """JAX devices over all slices."""
        return self.chips * self.chip.devices_per_chip

    @property
    def ici_bandwidth(self) -> float:
        """Bytes/s that one device can send within its slice."""
        return self.chip.ici_bandwidth(self.sides)

    def __str__(self) -> str:
        slices = f"{self.slices} slices of " if self.slices > 1 else ""
        return f"{slices}{self.chip.name}:{'x'.join(map(str, self.sides))}"


def parse(topology: str, num_slices: int = 1) -> Topology:
    """The topology written as `v5p:8x8x8`: generation, then the slice's sides in chips.

    Raises:
      UserError: it is written otherwise, or there is no such chip.
    """
    match = _WRITTEN.match(topology) if isinstance(topology, str) else None
    if match is None:
        raise UserError(f"--topology={topology!r}: write a chip and the sides of a slice, such as v5e:4x8 or v5p:8x8x8")
    if match["chip"] not in CHIPS:
        raise UserError(f"--topology={topology}: there is no chip {match['chip']!r}; there are {', '.join(CHIPS)}")
    chip, sides = CHIPS[match["chip"]], tuple(int(side) for side in match["sides"].split("x"))
    if len(sides) != chip.dimensions or 0 in sides:
        example = "4x4x8" if chip.dimensions == 3 else "4x8"
        raise UserError(
            f"--topology={topology}: a slice of {chip.name} has {chip.dimensions} sides of at least 1, such as "
            f"{chip.name}:{example}"
        )
    if num_slices < 1:
        raise UserError(f"--num_slices={num_slices} must be at least 1")
    return Topology(chip, sides, num_slices)


def devices(topology: str, num_slices: int = 1) -> list[Any]:
    """The devices of a topology, to make a mesh of and to compile for; nothing can run on them.

    JAX itself is set to the CPU: the TPU compiler is a library here and looks for no TPU.

    Args:
      topology: see `parse`.
      num_slices: slices of that shape, joined by the data-centre network.

    Raises:
      PlanError: the compiler is not installed.
      UserError: there is no such topology.
    """
    parsed = parse(topology, num_slices)
    if importlib.util.find_spec("libtpu") is None:
        raise PlanError(
            "planning needs XLA's TPU compiler, the package libtpu, which is not installed: "
            "pip install 't5x_like[plan]' brings the one that matches this jax"
        )
    for name, value in _WITHOUT_A_TPU.items():
        os.environ.setdefault(name, value)
    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    options: dict[str, Any] = {"num_slices": num_slices} if num_slices > 1 else {}
    if parsed.chip.config_name:
        options["chip_config_name"] = parsed.chip.config_name
    if min(parsed.sides[:2]) < 2:  # a part of a host, which has 2x2 chips
        options["chips_per_host_bounds"] = (*(min(side, 2) for side in parsed.sides[:2]), 1)
    try:
        return list(topologies.get_topology_desc(topology_name=topology, platform="tpu", **options).devices)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"--topology={topology}: the compiler knows no such slice: {error}") from error
