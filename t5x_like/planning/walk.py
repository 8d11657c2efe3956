"""FLOPs, HBM traffic and collectives of one execution of a compiled program, with the iterations of its loops."""

import dataclasses
from collections.abc import Iterator

from t5x_like.planning import arithmetic, asynchronous, collectives, hlo, kernels, traffic
from t5x_like.planning.asynchronous import Asynchronous


@dataclasses.dataclass
class Sent:
    """What a device sends in the collectives of one kind along one mesh axis.

    Attributes:
      bytes: Bytes that the device sends.
      dcn_bytes: The part that it sends to other slices.
      synchronous_bytes: The part for which the core waits: collectives without a start, and those with nothing between
        start and end.
      count: Number of collectives.
    """

    bytes: float = 0.0
    dcn_bytes: float = 0.0
    synchronous_bytes: float = 0.0
    count: int = 0

    def add(self, other: "Sent", times: int = 1) -> None:
        """Adds other collectives, multiplied by `times`."""
        self.bytes += times * other.bytes
        self.dcn_bytes += times * other.dcn_bytes
        self.synchronous_bytes += times * other.synchronous_bytes
        self.count += times * other.count


@dataclasses.dataclass
class Work:
    """The work of one device.

    Attributes:
      flops: FLOPs of matrix products, and of kernels by their cost estimates.
      hbm_bytes: Bytes read from and written to HBM.
      collectives: (kind, mesh axis) -> what the device sends.
      unknown_loops: Names of loops with an unknown number of iterations, which count as one.
      unknown_kernels: Names of kernels without a cost estimate, whose FLOPs are unknown and not counted.
    """

    flops: float = 0.0
    hbm_bytes: float = 0.0
    collectives: dict[tuple[str, str], Sent] = dataclasses.field(default_factory=dict)
    unknown_loops: set[str] = dataclasses.field(default_factory=set)
    unknown_kernels: set[str] = dataclasses.field(default_factory=set)

    def add(self, other: "Work", times: int = 1) -> None:
        """Adds the work of another part of the program, multiplied by `times`."""
        self.flops += times * other.flops
        self.hbm_bytes += times * other.hbm_bytes
        for key, sent in other.collectives.items():
            self.collectives.setdefault(key, Sent()).add(sent, times)
        self.unknown_loops |= other.unknown_loops
        self.unknown_kernels |= other.unknown_kernels

    @property
    def sent_bytes(self) -> float:
        """Bytes that the device sends."""
        return sum(sent.bytes for sent in self.collectives.values())

    @property
    def dcn_bytes(self) -> float:
        """Bytes that the device sends to other slices."""
        return sum(sent.dcn_bytes for sent in self.collectives.values())

    def by_kind(self, attribute: str = "bytes") -> dict[str, dict[str, float]]:
        """Returns an attribute of `Sent` as kind -> mesh axis -> value."""
        nested: dict[str, dict[str, float]] = {}
        for (kind, axis), sent in sorted(self.collectives.items()):
            nested.setdefault(kind, {})[axis] = getattr(sent, attribute)
        return nested


def work(module: hlo.Module, mesh: collectives.DeviceMesh) -> Work:
    """Computes the work of one device in one execution of a program.

    Args:
      module: The optimized program.
      mesh: The devices of the program.

    Returns:
      The work of a device.
    """
    return Walk(module, mesh).visit(module.entry, in_fusion=False)


class Walk:
    """Computes the work of computations of a program.

    Args:
      module: The program.
      mesh: The devices of the program.
    """

    def __init__(self, module: hlo.Module, mesh: collectives.DeviceMesh):
        self._module, self._mesh = module, mesh
        self._asynchronous = Asynchronous(module)
        self._visited: dict[tuple[str, bool], Work] = {}

    def visit(self, computation: hlo.Computation, *, in_fusion: bool) -> Work:
        """Returns the work of one execution of a computation, including the computations that it calls.

        Args:
          computation: The computation.
          in_fusion: Whether it is part of a fusion, whose intermediate results are not in HBM.
        """
        key = (computation.name, in_fusion)
        if key not in self._visited:
            total = Work()
            for instruction in computation.instructions:
                total.add(self.of(computation, instruction, in_fusion=in_fusion))
            self._visited[key] = total
        return self._visited[key]

    def of(self, computation: hlo.Computation, instruction: hlo.Instruction, *, in_fusion: bool = False) -> Work:
        """Returns the work of one execution of an instruction, including the computations that it calls."""
        total = Work(flops=arithmetic.product_flops(computation, instruction))
        self._collective(computation, instruction, total)
        if (kernel := kernels.kernel(computation, instruction)) is not None:
            total.flops += kernel.flops
            total.hbm_bytes += kernel.hbm_bytes
            if not kernel.estimated:
                total.unknown_kernels.add(kernels.label(instruction))
        elif not in_fusion:
            total.hbm_bytes += traffic.hbm_bytes(self._module, computation, instruction)
        if instruction.opcode == "conditional":
            options = [
                self.visit(each, in_fusion=in_fusion) for each in asynchronous.branches(self._module, instruction)
            ]
            total.add(max(options, key=lambda one: (one.flops, one.hbm_bytes, one.sent_bytes), default=Work()))
        for called, times, fused in self._called(computation, instruction, total):
            total.add(self.visit(called, in_fusion=in_fusion or fused), times)
        return total

    def _called(self, computation, instruction, total) -> Iterator[tuple[hlo.Computation, int, bool]]:
        """Yields (computation, number of executions, whether it is fused) of the computations that are called."""
        named = self._module.computations
        if instruction.opcode == "while":
            times = hlo.trip_count(self._module, computation, instruction)
            if times is None:
                total.unknown_loops.add(instruction.name)
            yield named[instruction.called("body")], 1 if times is None else times, False
        elif instruction.opcode in ("fusion", "call", *asynchronous.CALL_STARTS):
            name = asynchronous.called(instruction)
            if name in named:
                yield named[name], 1, instruction.opcode == "fusion"

    def _collective(self, computation, instruction, total) -> None:
        if instruction.opcode.removesuffix("-start") not in (*collectives.KINDS, "send"):
            return
        if self._asynchronous.is_piece(computation, instruction):
            return
        operands = computation.operand_arrays(instruction)
        if instruction.opcode.removesuffix("-start") == collectives.RAGGED_ALL_TO_ALL:
            operands = operands[:1]  # the others are the buffer of the result, offsets and sizes
        read = sum(array.bytes for arrays in operands for array in arrays)
        found = collectives.collective(instruction, read, self._mesh, within=computation.name)
        found = found or collectives.inter_slice_collective(instruction, read, self._mesh)
        if found is not None and (sent := found.bytes + found.dcn_bytes):
            waits = 0.0 if self._asynchronous.is_overlapped(computation, instruction) else sent
            total.collectives[(found.kind, found.axis)] = Sent(sent, found.dcn_bytes, waits, 1)
