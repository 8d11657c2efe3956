"""Bytes that the instructions of a compiled program read from and write to HBM."""

from t5x_like.planning.asynchronous import CALL_STARTS
from t5x_like.planning.collectives import KINDS, is_reduce_scatter
from t5x_like.planning.hlo import Array, Computation, Instruction, Module

# These move no data. They name, group or reinterpret existing arrays, or complete an asynchronous instruction.
_NO_TRAFFIC = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all")
    + ("partition-id", "replica-id", "custom-call", "opt-barrier", *CALL_STARTS, "async-done", "async-update")
    + ("call-done", "copy-done", "slice-done", "send-done", "recv-done", *(f"{kind}-done" for kind in KINDS))
)
# These read only the part of their operand that they return.
_SLICES = ("slice", "dynamic-slice", "gather", "slice-start")
# Within a fusion, these pass on arrays of an asynchronous collective. The collective of a synchronous fusion
# (`all-reduce-scatter…`) reads its operand.
_PASS_THROUGH = (*KINDS, "tuple", "custom-call")
# Attribute of a fusion within a fusion whose only result is its first operand.
_IN_PLACE = "output_to_operand_aliasing={{}: (0, {})}"


def hbm_bytes(module: Module, computation: Computation, instruction: Instruction) -> float:
    """Computes the HBM traffic of one execution of an instruction, without the computations that it calls.

    Custom calls are not counted here but in `kernels`. Intermediate results of a fusion stay on the chip. A fusion that
    only slices an operand reads only the slices. A fusion that updates an array in place writes only the update.

    Args:
      module: The program.
      computation: The computation of the instruction.
      instruction: Any instruction.

    Returns:
      Bytes read and written.
    """
    if instruction.opcode in _NO_TRAFFIC:
        return 0.0
    read = [array for arrays in computation.operand_arrays(instruction) for array in arrays]
    if instruction.opcode == "fusion":
        return _fusion_bytes(module, computation, instruction)
    if instruction.opcode == "dynamic-update-slice":
        update = read[1]
        return _bytes_in_hbm([update]) + update.bytes * (instruction.arrays[0].memory == 0)
    if instruction.opcode in _SLICES or instruction.opcode in ("copy", "copy-start"):
        # The result of `slice-start` is (operand, slice); the result of `copy-start` is (copy, operand).
        moved = instruction.arrays[1 if instruction.opcode == "slice-start" else 0]
        return moved.bytes * ((read[0].memory == 0) + (moved.memory == 0))
    return _bytes_in_hbm(read) + _bytes_in_hbm(_results(instruction, len(read)))


def _results(instruction: Instruction, operands: int) -> tuple[Array, ...]:
    """Returns the results without the operands that `send` and the start of an asynchronous collective return too."""
    if instruction.opcode == "send":
        return ()
    if instruction.opcode.endswith("-start") and len(instruction.arrays) > operands:
        return instruction.arrays[operands:]
    return instruction.arrays


def _fusion_bytes(module: Module, computation: Computation, instruction: Instruction) -> float:
    inner = module.computations[instruction.called("calls")]
    parameters = {int(one.literal): one for one in inner.instructions if one.opcode == "parameter"}
    total = 0.0
    for number, arrays in enumerate(computation.operand_arrays(instruction)):
        if (whole := _bytes_in_hbm(arrays)) and number in parameters:
            whole = min(whole, _bytes_read(module, inner, parameters[number]))
        total += whole
    roots = [inner.by_name.get(name) for name in inner.root.operands] if inner.root.opcode == "tuple" else [inner.root]
    if len(roots) == len(instruction.arrays):  # otherwise these are pieces of a collective without new data
        total += sum(
            _bytes_written(module, inner, root, array)
            for root, array in zip(roots, instruction.arrays, strict=True)
            if array.memory == 0
        )
    return total


def _is_view(instruction: Instruction) -> bool:
    """Returns whether an instruction in a fusion is its operand, in place, with another tiling of the same layout."""
    return instruction.opcode == "fusion" and _IN_PLACE in instruction.attributes


def _bytes_in_hbm(arrays) -> float:
    return sum(array.bytes for array in arrays if array.memory == 0)


def _bytes_read(module: Module, computation: Computation, value: Instruction) -> float:
    """Returns the bytes of a value that a fused computation reads; infinity if it reads the whole value."""
    total = 0.0
    for user in computation.users.get(value.name, []):
        if user.opcode == "bitcast" or _is_view(user):
            total += _bytes_read(module, computation, user)
        elif user.opcode in _SLICES and user.operands[0] == value.name:
            total += user.arrays[0].bytes
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == value.name:
            continue  # written in place
        elif user.opcode in _PASS_THROUGH and not is_reduce_scatter(computation.name):
            continue
        elif user.opcode == "fusion":
            inner = module.computations[user.called("calls")]
            for number, name in enumerate(user.operands):
                if name == value.name:
                    parameter = next(
                        p for p in inner.instructions if p.opcode == "parameter" and int(p.literal) == number
                    )
                    total += _bytes_read(module, inner, parameter)
        else:
            return float("inf")
    return total


def _bytes_written(module: Module, computation: Computation, root: Instruction | None, array: Array) -> float:
    """Returns the bytes of a result that a fused computation writes."""
    while root is not None and (root.opcode == "bitcast" or _is_view(root)):
        root = computation.by_name.get(root.operands[0])
    if root is None:
        return array.bytes
    if root.opcode == "parameter" or root.opcode in _PASS_THROUGH:
        return 0.0
    if root.opcode == "dynamic-update-slice":
        return computation.by_name[root.operands[1]].arrays[0].bytes
    if root.opcode == "fusion" and len(root.arrays) == 1:
        inner = module.computations[root.called("calls")]
        return _bytes_written(module, inner, inner.root, array)
    return array.bytes
