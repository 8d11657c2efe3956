"""What planning needs to know about a chip, of any vendor."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from t5x_like.errors import UserError
from t5x_like.planning.hlo import Computation, Instruction, Module
from t5x_like.planning.walk import Work

GIB = 2**30  # bytes


class PlanError(UserError):
    """Planning is not possible on this host. The message names the missing package."""


@dataclasses.dataclass(frozen=True)
class CoreTime:
    """Time for which an instruction occupies the core of a chip.

    Attributes:
      seconds: The time.
      is_estimated_by_compiler: Whether the compiler's own estimate of cycles gives the time.
    """

    seconds: float
    is_estimated_by_compiler: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip(abc.ABC):
    """Specification of a chip. All numbers are per JAX device.

    Attributes:
      name: Name of the chip in a topology, such as `v5p` in `v5p:8x8x8`, or `h100` in `h100:8`.
      peak_flops: Dense bfloat16 peak in FLOP/s.
      hbm_bytes: Memory available to a program in bytes. The runtime uses the rest.
      hbm_bandwidth: Memory bandwidth in bytes/s.
      link_bandwidth: Bandwidth of a link to another chip in bytes/s per direction.
      dcn_bandwidth: Bandwidth to other slices, or other hosts of GPUs, in bytes/s per direction.
      dimensions: Number of sides of a slice.
      devices_per_chip: JAX devices per physical chip.
      platform: Platform for which JAX lowers programs.
      packages: Packages of the compiler, whose versions determine the compiled program.
      compiler_options: XLA's options that a compilation without the chip needs.
      basis: What the expected time is computed from.
    """

    name: str
    peak_flops: float
    hbm_bytes: int
    hbm_bandwidth: float
    link_bandwidth: float
    dcn_bandwidth: float
    dimensions: int
    devices_per_chip: int = 1

    platform: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    compiler_options: ClassVar[Mapping[str, Any]] = {}
    basis: ClassVar[str]

    @property
    @abc.abstractmethod
    def device_kinds(self) -> tuple[str, ...]:
        """`device_kind` of its JAX devices, which differs between versions of the compiler."""

    @abc.abstractmethod
    def parse_sides(self, topology: str, sides: tuple[int, ...], num_slices: int) -> tuple[tuple[int, ...], int]:
        """Returns the sides of a slice in chips, and the number of slices.

        Args:
          topology: The topology as the user wrote it.
          sides: The numbers of the topology.
          num_slices: Number of slices that the user gave in addition.

        Raises:
          UserError: The chip has no such slice.
        """

    @abc.abstractmethod
    def describe(self, sides: tuple[int, ...], slices: int) -> str:
        """Returns the topology of slices as text."""

    @abc.abstractmethod
    def compile_only_devices(self, sides: tuple[int, ...], slices: int) -> list[Any]:
        """Returns devices for which programs can be compiled, but not run.

        Raises:
          PlanError: The compiler is not installed.
          UserError: The compiler does not know the topology.
        """

    @abc.abstractmethod
    def closed(self, sides: tuple[int, ...]) -> tuple[bool, ...]:
        """Returns for each side of a slice whether it is a ring, in which two links serve a device."""

    @abc.abstractmethod
    def transfer_seconds(self, sent_bytes: float, bandwidth: float, hops: int) -> float:
        """Returns the expected time of a collective.

        Args:
          sent_bytes: Bytes that a device sends.
          bandwidth: Bandwidth of the links in bytes/s.
          hops: Links to the farthest device; 0 in the network between slices.
        """

    @abc.abstractmethod
    def core_time(self, module: Module, computation: Computation, instruction: Instruction, work: Work) -> CoreTime:
        """Returns the time for which an instruction of a scheduled computation occupies the core.

        Args:
          module: The program.
          computation: The computation of the instruction.
          instruction: An instruction without loops.
          work: Its work.
        """

    def ici_bandwidth(self, sides: tuple[int, ...]) -> float:
        """Returns the bandwidth in bytes/s at which a device can send within a slice, over all its links.

        A single chip counts as one link: its devices communicate within the chip, or there is only one.

        Args:
          sides: Sides of the slice in chips.
        """
        links = sum(2 if ring else 1 for side, ring in zip(sides, self.closed(sides), strict=True) if side > 1)
        return max(1, links) * self.link_bandwidth

    def memory_note(self, peak_bytes: float) -> str | None:
        """Returns what a program with this peak of memory needs besides the memory; None for nothing."""
        del peak_bytes
        return None
