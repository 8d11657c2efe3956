"""Bytes that the instructions of a compiled program read from HBM and write to it."""

from t5x_like.planning.collectives import KINDS
from t5x_like.planning.hlo import Array, Computation, Instruction, Module

# Nothing moves for these: they name, group or reinterpret what is there, or finish what another instruction started.
_FREE = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all")
    + ("partition-id", "replica-id", "iota", "custom-call", "opt-barrier", "async-done", "async-update")
    + ("copy-done", "slice-done", "send-done", "recv-done", *(f"{kind}-done" for kind in KINDS))
)
# Take their result, and no more, out of what they read.
_SLICES = ("slice", "dynamic-slice", "gather", "slice-start")
# Hand on, within a fusion, what belongs to a collective that runs beside it.
_PASSING = (*KINDS, "tuple", "custom-call")


def hbm_bytes(module: Module, computation: Computation, instruction: Instruction) -> float:
    """What one run of an instruction moves; what it runs itself, such as the body of a loop, does not count.

    A fusion keeps what is between its operands and results within the core. Of an operand that it only takes slices of
    it reads the slices, of a result that is updated in place it writes the update.
    """
    if instruction.opcode in _FREE:
        return 0.0
    read = [array for arrays in computation.operand_arrays(instruction) for array in arrays]
    if instruction.opcode == "fusion":
        return _of_fusion(module, computation, instruction)
    if instruction.opcode == "dynamic-update-slice":
        update = read[1]
        return _in_hbm([update]) + update.bytes * (instruction.arrays[0].memory == 0)
    if instruction.opcode in _SLICES or instruction.opcode in ("copy", "copy-start"):
        # A start names source and destination, the destination second.
        moved = instruction.arrays[1 if len(instruction.arrays) > 1 else 0]
        return moved.bytes * ((read[0].memory == 0) + (moved.memory == 0))
    written = () if instruction.opcode.endswith("-start") else instruction.arrays
    return _in_hbm(read) + _in_hbm(written)


def _of_fusion(module: Module, computation: Computation, instruction: Instruction) -> float:
    inner = module.computations[instruction.called("calls")]
    parameters = {int(one.literal): one for one in inner.instructions if one.opcode == "parameter"}
    total = 0.0
    for number, arrays in enumerate(computation.operand_arrays(instruction)):
        if (whole := _in_hbm(arrays)) and number in parameters:
            whole = min(whole, _read(module, inner, parameters[number]))
        total += whole
    roots = [inner.by_name.get(name) for name in inner.root.operands] if inner.root.opcode == "tuple" else [inner.root]
    if len(roots) == len(instruction.arrays):  # otherwise the parts of a collective, which carry nothing new
        total += sum(
            _written(module, inner, root, array)
            for root, array in zip(roots, instruction.arrays, strict=True)
            if array.memory == 0
        )
    return total


def _in_hbm(arrays) -> float:
    return sum(array.bytes for array in arrays if array.memory == 0)


def _read(module: Module, computation: Computation, value: Instruction) -> float:
    """How many bytes of a value a fused computation reads; infinite where it reads all."""
    total = 0.0
    for user in computation.users.get(value.name, []):
        if user.opcode == "bitcast":
            total += _read(module, computation, user)
        elif user.opcode in _SLICES and user.operands[0] == value.name:
            total += user.arrays[0].bytes
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == value.name:
            continue  # written in place
        elif user.opcode in _PASSING:
            continue
        elif user.opcode == "fusion":
            inner = module.computations[user.called("calls")]
            for number, name in enumerate(user.operands):
                if name == value.name:
                    parameter = next(
                        p for p in inner.instructions if p.opcode == "parameter" and int(p.literal) == number
                    )
                    total += _read(module, inner, parameter)
        else:
            return float("inf")
    return total


def _written(module: Module, computation: Computation, root: Instruction | None, array: Array) -> float:
    """How many bytes of one result a fused computation writes."""
    while root is not None and root.opcode == "bitcast":
        root = computation.by_name.get(root.operands[0])
    if root is None:
        return array.bytes
    if root.opcode == "parameter" or root.opcode in _PASSING:
        return 0.0
    if root.opcode == "dynamic-update-slice":
        return computation.by_name[root.operands[1]].arrays[0].bytes
    if root.opcode == "fusion" and len(root.arrays) == 1:
        inner = module.computations[root.called("calls")]
        return _written(module, inner, inner.root, array)
    return array.bytes
