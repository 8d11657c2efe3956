"""Asynchronous instructions in scheduled HLO: where they start and end, and whether anything runs in between."""

import dataclasses
import re

from t5x_like.planning import kernels
from t5x_like.planning.collectives import KINDS
from t5x_like.planning.hlo import Computation, Instruction, Module

_START = '"AsyncCollectiveStart"'
_DONE = '"AsyncCollectiveDone"'
# They run a computation in parallel with the core: `call-start` on a SparseCore.
CALL_STARTS = ("async-start", "call-start")
# Instructions between a start and its end that occupy the core.
_BUSY = frozenset(
    ("fusion", "while", "call", "conditional", "convolution", "dot", "custom-call", "copy", "sort", "scatter", "gather")
    + ("reduce", "transpose", "dynamic-update-slice", "dynamic-slice", "select-and-scatter", "rng-bit-generator")
)


@dataclasses.dataclass(frozen=True)
class Role:
    """What an instruction does for an asynchronous transfer.

    Attributes:
      starts: Whether it starts the transfer; otherwise it waits for its end.
      key: Identifies the transfer: the name of the instruction that starts it, or the channel of a fused collective.
    """

    starts: bool
    key: str


class Asynchronous:
    """Roles of the instructions of a program.

    A transfer is a pair such as `copy-start` and `copy-done`, a collective in a computation that `call-start` runs on a
    SparseCore, or a fused collective of the TPU compiler, which consists of a fusion that starts it, pieces in other
    fusions, and a fusion that completes it, all with the same channel.

    Args:
      module: The program.
    """

    def __init__(self, module: Module):
        self._module = module
        self._fused: dict[str, Role] = {}  # name of a fused computation -> its role
        self._start_of_channel: dict[str, str] = {}  # channel -> computation that starts it
        self._start_of_computation: dict[str, str] = {}  # computation that runs in parallel with the core -> its start
        for computation in module.computations.values():
            for instruction in computation.instructions:
                if instruction.opcode in CALL_STARTS and (name := called(instruction)):
                    self._start_of_computation[name] = instruction.name
            calls = [one.attributes for one in computation.instructions if one.opcode == "custom-call"]
            starts = any(_START in one for one in calls)
            if not starts and not any(_DONE in one for one in calls):
                continue
            for instruction in computation.instructions:
                channel = instruction.attribute("channel_id") if instruction.opcode in KINDS else None
                if channel is not None:
                    self._fused[computation.name] = Role(starts, f"channel {channel}")
                    if starts:
                        self._start_of_channel[channel] = computation.name
        self._overlapped = {
            key for computation in module.computations.values() for key in self._overlapped_in(computation)
        }

    def role(self, computation: Computation, instruction: Instruction) -> Role | None:
        """Returns the role of an instruction of a scheduled computation; None for synchronous instructions."""
        if instruction.opcode == "fusion":
            return self._fused.get(instruction.called("calls") or "")
        if instruction.opcode == "send" or instruction.opcode.endswith("-start"):
            return Role(True, instruction.name)
        if instruction.opcode.endswith("-done") and instruction.operands:
            started = computation.by_name.get(instruction.operands[0])
            while started is not None and started.opcode in ("async-update", "get-tuple-element", "bitcast", "copy"):
                started = computation.by_name.get(started.operands[0])
            return Role(False, started.name) if started is not None else None
        return None

    def is_piece(self, computation: Computation, collective: Instruction) -> bool:
        """Returns whether a collective continues or completes one that another computation starts."""
        channel = collective.attribute("channel_id")
        return self._start_of_channel.get(channel or "", computation.name) != computation.name

    def is_overlapped(self, computation: Computation, collective: Instruction) -> bool:
        """Returns whether other instructions run between start and end of a collective."""
        if computation.name in self._fused:
            return self._fused[computation.name].key in self._overlapped
        return self._start_of_computation.get(computation.name, collective.name) in self._overlapped

    def _overlapped_in(self, computation: Computation) -> list[str]:
        open_keys: dict[str, bool] = {}  # started transfers -> whether the core has been occupied since
        overlapped = []
        for instruction in computation.instructions:
            role = self.role(computation, instruction)
            if role is not None and role.starts:
                open_keys[role.key] = False
            elif role is not None:
                if open_keys.pop(role.key, True):
                    overlapped.append(role.key)
            elif instruction.opcode in _BUSY and not _is_marker(instruction):
                open_keys = dict.fromkeys(open_keys, True)
        return overlapped + list(open_keys)  # whose end is elsewhere


def _is_marker(instruction: Instruction) -> bool:
    return instruction.opcode == "custom-call" and kernels.is_marker(instruction)


def called(instruction: Instruction) -> str | None:
    """Returns the computation that a fusion, call or asynchronous instruction executes."""
    return instruction.called("calls") or instruction.called("to_apply")


def branches(module: Module, conditional: Instruction) -> list[Computation]:
    """Returns the computations of which a conditional executes one."""
    listed = conditional.attribute("branch_computations")
    names = re.findall(r"%?([^\s,{}]+)", listed) if listed else []
    names += [conditional.called(f"{which}_computation") for which in ("true", "false")]
    return [module.computations[name] for name in dict.fromkeys(names) if name in module.computations]
