"""Expected time of a step: the compiler's schedule, with its cycle estimates and the time of communication."""

import dataclasses

from t5x_like.planning import asynchronous, breakdown, collectives, hlo
from t5x_like.planning.asynchronous import Asynchronous
from t5x_like.planning.links import AxisLinks, axis_links
from t5x_like.planning.operations import Operation, Share, operation
from t5x_like.planning.topologies import Topology
from t5x_like.planning.walk import Walk, Work

_HBM, _DCN = "hbm", "dcn"


@dataclasses.dataclass
class Expected:
    """Expected time of one execution of a program on one device, in seconds.

    Attributes:
      seconds: Total expected time.
      core: Instructions, by the cycles that the compiler estimates.
      without_cycles: The part of `core` of instructions without such an estimate: their FLOPs at the peak or their
        bytes at the bandwidth of HBM, whichever takes longer.
      synchronous: Collectives for which the core waits from start to end.
      exposed: Waiting for asynchronous transfers that are not complete when their result is needed.
      operations: Operation -> its share. Waiting for a transfer is in the share of the operation that completes it.
    """

    seconds: float = 0.0
    core: float = 0.0
    without_cycles: float = 0.0
    synchronous: float = 0.0
    exposed: float = 0.0
    operations: dict[Operation, Share] = dataclasses.field(default_factory=dict)

    @property
    def parts(self) -> dict[str, float]:
        """The attributes in seconds, by name."""
        names = (field.name for field in dataclasses.fields(self) if field.name != "operations")
        return {name: getattr(self, name) for name in names}

    @property
    def largest(self) -> list[tuple[Operation, Share]]:
        """The operations and their shares, by time in descending order."""
        return sorted(self.operations.items(), key=lambda item: -item[1].seconds)

    @property
    def by_part(self) -> dict[str, Share]:
        """Part of the step -> its share, in the order of `breakdown.PARTS`."""
        found = {part: Share() for part in breakdown.PARTS}
        for one, share in self.operations.items():
            found[one.part].add(share)
        return found

    def add(self, other: "Expected", times: int = 1) -> None:
        """Adds another part of the program, multiplied by `times`."""
        for name, seconds in other.parts.items():
            setattr(self, name, getattr(self, name) + times * seconds)
        for one, share in other.operations.items():
            self.operations.setdefault(one, Share()).add(share, times)


def expected(module: hlo.Module, mesh: collectives.DeviceMesh, topology: Topology) -> Expected:
    """Computes the expected time of a scheduled program.

    Instructions run one after another, each for the cycles that the compiler estimates. Asynchronous copies and
    collectives run in parallel with the core: transfers that use the same links, or HBM, run one after another, and the
    core waits at the end of a transfer until it is complete. A transfer is assumed to finish in the iteration of a
    loop that starts it. Loops repeat their body, and of a conditional the slowest branch runs.

    Args:
      module: The optimized, scheduled program.
      mesh: The devices of the program.
      topology: The slices.

    Returns:
      The expected time.
    """
    return _Schedule(module, mesh, topology).visit(module.entry)


class _Schedule:
    def __init__(self, module: hlo.Module, mesh: collectives.DeviceMesh, topology: Topology):
        self._module, self._mesh, self._topology = module, mesh, topology
        self._walk = Walk(module, mesh)
        self._asynchronous = Asynchronous(module)
        self._visited: dict[str, Expected] = {}
        self._links: dict[str, AxisLinks] = {}

    def visit(self, computation: hlo.Computation) -> Expected:
        """Returns the time of one execution of a computation."""
        if computation.name not in self._visited:
            total = Expected()
            free: dict[str, float] = {}  # link or memory -> when it is free
            ends: dict[str, float] = {}  # transfer -> when it is complete
            for instruction in computation.instructions:
                self._step(computation, instruction, total, free, ends)
            _wait(total, max(ends.values(), default=0.0))
            self._visited[computation.name] = total
        return self._visited[computation.name]

    def _step(self, computation, instruction, total: Expected, free: dict, ends: dict) -> None:
        """Adds an instruction to the time of its computation."""
        role = self._asynchronous.role(computation, instruction)
        called = self._called(computation, instruction)
        if called is not None:
            total.add(called)
            return
        before = total.seconds
        if role is not None and not role.starts:
            _wait(total, ends.pop(role.key, 0.0))
        work = self._walk.of(computation, instruction)
        resources, seconds = self._transfer(work, role, instruction)
        if role is not None and role.starts:
            begin = max([total.seconds, *(free.get(each, 0.0) for each in resources)])
            ends[role.key] = begin + seconds
            free |= dict.fromkeys(resources, ends[role.key])
        elif seconds:
            _wait(total, max((free.get(each, 0.0) for each in resources), default=0.0))
            total.seconds += seconds
            total.synchronous += seconds
            free |= dict.fromkeys(resources, total.seconds)
        self._core(computation, instruction, work, total, is_transfer=role is not None or bool(seconds))
        if total.seconds > before:
            share = Share(total.seconds - before, work.flops, work.hbm_bytes, 1)
            one = operation(self._module, instruction, work, is_transfer=role is not None)
            total.operations.setdefault(one, Share()).add(share)

    def _called(self, computation, instruction) -> Expected | None:
        """Returns the time of a loop, a call or a conditional; None for other instructions."""
        named = self._module.computations
        if instruction.opcode == "while":
            total = Expected()
            times = hlo.trip_count(self._module, computation, instruction)
            total.add(self.visit(named[instruction.called("body")]), 1 if times is None else times)
            return total
        if instruction.opcode == "call":
            return self.visit(named[asynchronous.called(instruction)])
        if instruction.opcode == "conditional":
            options = [self.visit(each) for each in asynchronous.branches(self._module, instruction)]
            return max(options, key=lambda one: one.seconds, default=Expected())
        return None

    def _transfer(self, work: Work, role, instruction) -> tuple[list[str], float]:
        """Returns the links or memories that an instruction uses in addition to the core, and for how many seconds."""
        resources, seconds, chip = [], 0.0, self._topology.chip
        for (_, axis), sent in work.collectives.items():
            if axis not in self._links:
                self._links[axis] = axis_links(axis, self._mesh, self._topology)
            links = self._links[axis]
            within = sent.bytes - sent.dcn_bytes
            if within:
                resources += [f"dimension {dimension}" for dimension in links.dimensions]
                seconds += chip.transfer_seconds(within, links.bandwidth, links.hops)
            if sent.dcn_bytes:
                resources.append(_DCN)
                seconds += chip.transfer_seconds(sent.dcn_bytes, chip.dcn_bandwidth, hops=0)
        if not resources and role is not None and role.starts:
            return [_HBM], work.hbm_bytes / chip.hbm_bandwidth
        return resources, seconds

    def _core(self, computation, instruction, work: Work, total: Expected, *, is_transfer: bool) -> None:
        """Adds the time for which an instruction occupies the core."""
        taken = self._topology.chip.core_time(self._module, computation, instruction, work)
        if is_transfer and not work.flops and not taken.is_estimated_by_compiler:
            return
        total.seconds += taken.seconds
        total.core += taken.seconds
        total.without_cycles += 0.0 if taken.is_estimated_by_compiler else taken.seconds


def _wait(total: Expected, until: float) -> None:
    """Lets the core wait for a transfer."""
    waited = max(0.0, until - total.seconds)
    total.seconds += waited
    total.exposed += waited
