"""Parts of a step: matrix products, attention, loss, optimizer, copies, elementwise operations, collectives."""

from t5x_like.planning import gpu_calls, hlo
from t5x_like.planning.asynchronous import CALL_STARTS
from t5x_like.planning.walk import Work

COLLECTIVES, LOSS, OPTIMIZER, ATTENTION = "collectives", "loss and logits", "optimizer", "attention"
PRODUCTS, COPIES, ELEMENTWISE = "matrix products", "copies", "elementwise"
PARTS = (PRODUCTS, ATTENTION, LOSS, OPTIMIZER, COPIES, ELEMENTWISE, COLLECTIVES)
# Files of this package on the stack of an operation -> the part that it belongs to, whatever it computes.
_FILES = {
    "kernels/chunks.py": LOSS,
    "kernels/cross_entropy.py": LOSS,
    "kernels/divergence.py": LOSS,
    "optimizers/": OPTIMIZER,
    "kernels/attention.py": ATTENTION,
    "kernels/reference_attention.py": ATTENTION,
    "kernels/gathered_attention.py": ATTENTION,
    "kernels/cudnn_attention.py": ATTENTION,
    "kernels/fused_attention/": ATTENTION,
    "kernels/triton_attention/": ATTENTION,
}
_MOVES = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "broadcast", "reshape", "transpose", "copy")
    + ("slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "convert")
)
_COPIES = frozenset(
    ("copy", "copy-start", "copy-done", "transpose", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate")
    + ("pad", "slice-start", "slice-done", "broadcast", *CALL_STARTS)
)


def part_of(module: hlo.Module, instruction: hlo.Instruction, work: Work, *, is_transfer: bool) -> str:
    """Returns the part of a step that an instruction belongs to.

    The loss, the optimizer and attention are found by the files of this package that an operation comes from, so they
    include their own products, copies and elementwise operations. A fusion has the source of one of its operations.

    Args:
      module: The program.
      instruction: An instruction of a scheduled computation.
      work: Its work.
      is_transfer: Whether it starts or completes a collective.

    Returns:
      One of `PARTS`.
    """
    if work.collectives or (is_transfer and instruction.opcode not in _COPIES):
        return COLLECTIVES
    if gpu_calls.is_attention(instruction):
        return ATTENTION
    files = module.sources.files(_attributes(module, instruction))
    for file, part in _FILES.items():
        if any(each.startswith(file) for each in files):
            return part
    if work.flops:
        return PRODUCTS
    return COPIES if _only_moves(module, instruction) else ELEMENTWISE


def _attributes(module: hlo.Module, instruction: hlo.Instruction) -> str:
    """Returns the attributes of an instruction, or of the last instruction with a source in a fusion without one."""
    if instruction.opcode != "fusion" or "op_name=" in instruction.attributes:
        return instruction.attributes
    inner = module.computations[instruction.called("calls")].instructions
    return next((each.attributes for each in reversed(inner) if "op_name=" in each.attributes), "")


def _only_moves(module: hlo.Module, instruction: hlo.Instruction) -> bool:
    """Returns whether an instruction changes neither values nor their number, apart from their dtype."""
    if instruction.opcode != "fusion":
        return instruction.opcode in _COPIES
    inner = module.computations[instruction.called("calls")].instructions
    return all(
        each.opcode in _MOVES
        or (each.opcode == "fusion" and _only_moves(module, each))
        or all(array.size == 1 for array in each.arrays)  # computes an index
        for each in inner
    )
