"""Custom calls of XLA's compiler for GPUs: matrix products of cuBLAS and attention of cuDNN."""

import dataclasses
import math
import re
from collections.abc import Sequence

from t5x_like.planning.hlo import Computation, Instruction

_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CUBLAS = ("__cublas$gemm", "__cublas$lt$matmul")
_ATTENTION = "__cudnn$fmha"
_BACKWARD = "Backward"
# Products per score of the forward and backward pass of flash attention: of queries and keys, and of weights and
# values; in the backward pass, the scores again and four gradients.
_PRODUCTS, _BACKWARD_PRODUCTS = 2, 5
# Rate of products by the bytes of an element, relative to bfloat16. float32 is rounded to TF32.
_RELATIVE_RATES = {4: 0.5, 1: 2.0}


@dataclasses.dataclass(frozen=True)
class Call:
    """One execution of a custom call.

    Attributes:
      flops: FLOPs of its matrix products.
      hbm_bytes: Bytes of its operands and results, without workspaces.
    """

    flops: float
    hbm_bytes: float


def call(computation: Computation, instruction: Instruction) -> Call | None:
    """Reads the work of a custom call from its configuration.

    Args:
      computation: The computation of the instruction.
      instruction: Any instruction.

    Returns:
      The work; None for other instructions.
    """
    if is_product(instruction):
        return Call(_product_flops(computation, instruction), _bytes(computation, instruction))
    if is_attention(instruction):
        products = _BACKWARD_PRODUCTS if _BACKWARD in _target(instruction) else _PRODUCTS
        head_dim = computation.operand_arrays(instruction)[0][0].dims[-1]
        return Call(2.0 * products * scores(instruction) * head_dim, _bytes(computation, instruction))
    return None


def is_product(instruction: Instruction) -> bool:
    """Returns whether an instruction is a matrix product of cuBLAS."""
    return _target(instruction).startswith(_CUBLAS)


def is_attention(instruction: Instruction) -> bool:
    """Returns whether an instruction is an attention of cuDNN."""
    return _target(instruction).startswith(_ATTENTION)


def scores(instruction: Instruction) -> float:
    """Returns the number of scores that an attention of cuDNN computes.

    Under a causal mask, they are half of all, or those of the keys in a window before each query.
    """
    shape = re.search(r'"intermediate_tensor_shape": ?\{.*?"dimensions": ?\[([^\]]*)\]', instruction.attributes)
    if shape is None:
        return 0.0
    sizes = [int(size) for size in re.findall(r"\d+", shape[1])]
    window = re.search(r'"sliding_window_length": ?"?(\d+)', instruction.attributes)
    keys = int(window[1]) if window else 0
    if 0 < keys < sizes[-1]:
        return float(math.prod(sizes[:-2]) * (sizes[-2] * keys - keys * (keys - 1) / 2))
    whole = math.prod(sizes)
    return whole / 2 if re.search(r'"mask_type": ?"[A-Z_]*CAUSAL', instruction.attributes) else float(whole)


def exponentials(instruction: Instruction) -> float:
    """Returns the number of exponentials of an attention of cuDNN, one per score; 0 for other instructions."""
    return scores(instruction) if is_attention(instruction) else 0.0


def relative_rate(computation: Computation, instruction: Instruction) -> float:
    """Returns the rate of the products of an instruction, relative to products of bfloat16."""
    operands = computation.operand_arrays(instruction) if is_product(instruction) else []
    if not operands or not operands[0]:
        return 1.0
    return _RELATIVE_RATES.get(int(operands[0][0].bytes / max(1, operands[0][0].size)), 1.0)


def _target(instruction: Instruction) -> str:
    match = _TARGET.search(instruction.attributes) if instruction.opcode == "custom-call" else None
    return match[1] if match else ""


def _product_flops(computation: Computation, instruction: Instruction) -> float:
    left = computation.operand_arrays(instruction)[0][0]
    numbers = re.search(r'"lhs_contracting_dimensions": ?\[([^\]]*)\]', instruction.attributes)
    contracted: Sequence[int] = [int(dim) for dim in re.findall(r"\d+", numbers[1])] if numbers else ()
    return 2.0 * instruction.arrays[0].size * math.prod(left.dims[dim] for dim in contracted)


def _bytes(computation: Computation, instruction: Instruction) -> float:
    """Returns the bytes of operands and results. A result of bytes is the workspace."""
    read = [array for arrays in computation.operand_arrays(instruction) for array in arrays]
    written = [array for array in instruction.arrays if array.dtype not in ("s8", "u8")]
    return float(sum(array.bytes for array in [*read, *written]))
