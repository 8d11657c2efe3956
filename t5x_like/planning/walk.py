"""FLOPs, HBM traffic and collectives of one execution of a compiled program, with the iterations of its loops."""

import dataclasses
import re
from collections.abc import Iterator

from t5x_like.planning import arithmetic, collectives, hlo, traffic


@dataclasses.dataclass
class Work:
    """The work of one device.

    Attributes:
      flops: FLOPs of matrix products.
      hbm_bytes: bytes read from and written to HBM.
      collective_bytes: (kind, mesh axis) -> bytes that the device sends.
      dcn_bytes: the part of `collective_bytes` that the device sends to other slices.
      unknown_loops: names of loops with an unknown number of iterations, which count as one.
    """

    flops: float = 0.0
    hbm_bytes: float = 0.0
    collective_bytes: dict[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    dcn_bytes: float = 0.0
    unknown_loops: set[str] = dataclasses.field(default_factory=set)

    def add(self, other: "Work", times: int = 1) -> None:
        """Adds the work of another part of the program, multiplied by `times`."""
        self.flops += times * other.flops
        self.hbm_bytes += times * other.hbm_bytes
        self.dcn_bytes += times * other.dcn_bytes
        for key, sent in other.collective_bytes.items():
            self.collective_bytes[key] = self.collective_bytes.get(key, 0.0) + times * sent
        self.unknown_loops |= other.unknown_loops

    def by_kind(self) -> dict[str, dict[str, float]]:
        """Returns `collective_bytes` as kind -> mesh axis -> bytes."""
        nested: dict[str, dict[str, float]] = {}
        for (kind, axis), sent in sorted(self.collective_bytes.items()):
            nested.setdefault(kind, {})[axis] = sent
        return nested


def work(module: hlo.Module, mesh: collectives.DeviceMesh) -> Work:
    """Computes the work of one device in one execution of a program.

    Args:
      module: the optimized program.
      mesh: the devices of the program.

    Returns:
      The work of a device.
    """
    return _Walk(module, mesh).visit(module.entry, in_fusion=False)


class _Walk:
    def __init__(self, module: hlo.Module, mesh: collectives.DeviceMesh):
        self._module, self._mesh = module, mesh
        self._visited: dict[tuple[str, bool], Work] = {}
        # An asynchronous collective consists of a start, pieces inside other fusions and an end, all with the same
        # channel. It is counted at its start.
        self._started = {
            instruction.attribute("channel_id"): computation.name
            for computation in module.computations.values()
            if any('"AsyncCollectiveStart"' in one.attributes for one in computation.instructions)
            for instruction in computation.instructions
            if instruction.opcode in collectives.KINDS
        }

    def visit(self, computation: hlo.Computation, *, in_fusion: bool) -> Work:
        key = (computation.name, in_fusion)
        if key not in self._visited:
            total = Work()
            for instruction in computation.instructions:
                total.flops += arithmetic.product_flops(computation, instruction)
                self._collective(computation, instruction, total)
                if not in_fusion:
                    total.hbm_bytes += traffic.hbm_bytes(self._module, computation, instruction)
                for called, times, fused in self._called(computation, instruction, total):
                    total.add(self.visit(called, in_fusion=in_fusion or fused), times)
            self._visited[key] = total
        return self._visited[key]

    def _called(self, computation, instruction, total) -> Iterator[tuple[hlo.Computation, int, bool]]:
        """Yields (computation, number of executions, whether it is fused) of the computations that are called."""
        named = self._module.computations
        if instruction.opcode == "while":
            times = hlo.trip_count(self._module, computation, instruction)
            if times is None:
                total.unknown_loops.add(instruction.name)
            yield named[instruction.called("body")], 1 if times is None else times, False
        elif instruction.opcode == "conditional":
            branches = instruction.attribute("branch_computations")
            names = re.findall(r"%([^\s,}]+)", branches) if branches else []
            names += [instruction.called(f"{which}_computation") for which in ("true", "false")]
            for name in dict.fromkeys(name for name in names if name in named):
                yield named[name], 1, False
        elif instruction.opcode in ("fusion", "call", "async-start"):
            name = instruction.called("calls") or instruction.called("to_apply")
            if name in named:
                yield named[name], 1, instruction.opcode == "fusion"

    def _collective(self, computation, instruction, total) -> None:
        if instruction.opcode.removesuffix("-start") not in (*collectives.KINDS, "send"):
            return
        channel = instruction.attribute("channel_id")
        if self._started.get(channel, computation.name) != computation.name:
            return
        read = sum(array.bytes for arrays in computation.operand_arrays(instruction) for array in arrays)
        found = collectives.collective(instruction, read, self._mesh, within=computation.name)
        found = found or collectives.inter_slice_collective(instruction, read, self._mesh)
        if found is not None and (sent := found.bytes + found.dcn_bytes):
            key = (found.kind, found.axis)
            total.collective_bytes[key] = total.collective_bytes.get(key, 0.0) + sent
            total.dcn_bytes += found.dcn_bytes
