"""Elementwise operations of instructions, which bound kernels that compute much per byte."""

import math

from t5x_like.planning.hlo import Computation, Instruction, Module

# Opcode -> instructions of a lane per element. Exponentials, reciprocals and roots run on units with an eighth of the
# lanes and need a few instructions around them; XLA computes tanh, erf, logarithms and powers with polynomials.
_COSTS = {
    **dict.fromkeys(("exponential", "rsqrt", "divide", "remainder"), 10),
    **dict.fromkeys(("sqrt", "exponential-minus-one"), 12),
    **dict.fromkeys(("logistic", "tanh", "log", "log-plus-one"), 24),
    **dict.fromkeys(("erf", "sine", "cosine", "cbrt", "atan2", "tan"), 32),
    "power": 60,
}
# They compute nothing, or only indices.
_FREE = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "broadcast", "iota", "reshape", "transpose")
    + ("slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "reverse", "copy", "gather", "scatter")
    + ("fusion", "call", "while", "conditional", "custom-call", "dot", "convolution", "after-all", "bitcast-convert")
)
# Reductions compute one operation per element of their operand.
_REDUCTIONS = ("reduce", "reduce-window")


def operations(module: Module, instruction: Instruction) -> float:
    """Counts the instructions of all lanes for the elementwise operations of a fusion, each counted once.

    Args:
      module: The program.
      instruction: An instruction of a scheduled computation.

    Returns:
      Instructions; 0 for instructions other than a fusion.
    """
    if instruction.opcode != "fusion":
        return 0.0
    inner = module.computations[instruction.called("calls")]
    return math.fsum(_operations(inner, each) + operations(module, each) for each in inner.instructions)


def _operations(computation: Computation, instruction: Instruction) -> float:
    if instruction.opcode in _FREE:
        return 0.0
    if instruction.opcode in _REDUCTIONS:
        operands = computation.operand_arrays(instruction)
        return float(sum(array.size for arrays in operands for array in arrays))
    return float(_COSTS.get(instruction.opcode, 1) * sum(array.size for array in instruction.arrays))
