"""Custom calls of XLA's compiler for GPUs: products of cuBLAS, attention of cuDNN, and kernels of Triton."""

import dataclasses
import math
import re
from collections.abc import Sequence

from t5x_like.planning.hlo import Computation, Instruction

_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CUBLAS = ("__cublas$gemm", "__cublas$lt$matmul")
_ATTENTION = "__cudnn$fmha"
_BACKWARD = "Backward"
_TRITON = "__gpu$xla.gpu.triton"
_NAME = re.compile(r'\bname = "(\w+)"')
# What `kernels/triton_attention/costs.py` writes. Other kernels of Triton have no cost.
_COST = re.compile(
    r"flops=(?P<flops>\d+) exponentials=(?P<exponentials>\d+) operations=(?P<operations>\d+) bytes=(?P<hbm_bytes>\d+)"
)
# Products per score of the forward and backward pass of flash attention: of queries and keys, and of weights and
# values; in the backward pass, the scores again and four gradients.
_PRODUCTS, _BACKWARD_PRODUCTS = 2, 5
# Measured time over that of products and elementwise operations, on an H200: of the Triton kernels, the median of ten
# cases with heads of 64, and of cuDNN's forward and backward pass with 32 heads of 64 and a causal mask. Larger heads
# have not been measured with cuDNN.
_TRITON_FACTOR, _FORWARD_FACTOR, _BACKWARD_FACTOR, _SMALL_HEAD = 1.25, 2.3, 3.7, 64
# Rate of products by the bytes of an element, relative to bfloat16. By default, float32 is rounded to TF32.
_FLOAT32 = 4
_RELATIVE_RATES = {_FLOAT32: 0.5, 1: 2.0}


@dataclasses.dataclass(frozen=True)
class Call:
    """One execution of a custom call.

    Attributes:
      flops: FLOPs of its matrix products.
      hbm_bytes: Bytes of its operands and results, without workspaces.
      exponentials: Exponentials that are not part of a product.
      operations: Other elementwise operations.
      factor: How many times as long it takes as its products and elementwise operations.
    """

    flops: float
    hbm_bytes: float
    exponentials: float = 0.0
    operations: float = 0.0
    factor: float = 1.0


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
        is_backward = _BACKWARD in target(instruction)
        products = _BACKWARD_PRODUCTS if is_backward else _PRODUCTS
        head_dim = computation.operand_arrays(instruction)[0][0].dims[-1]
        number = scores(instruction)
        factor = (_BACKWARD_FACTOR if is_backward else _FORWARD_FACTOR) if head_dim <= _SMALL_HEAD else 1.0
        flops = 2.0 * products * number * head_dim
        return Call(flops, _bytes(computation, instruction), exponentials=number, factor=factor)
    if target(instruction) == _TRITON and (cost := _COST.search(instruction.attributes)):
        return Call(**{name: float(value) for name, value in cost.groupdict().items()}, factor=_TRITON_FACTOR)
    return None


def is_product(instruction: Instruction) -> bool:
    """Returns whether an instruction is a matrix product of cuBLAS."""
    return target(instruction).startswith(_CUBLAS)


def is_attention(instruction: Instruction) -> bool:
    """Returns whether an instruction is an attention of cuDNN."""
    return target(instruction).startswith(_ATTENTION)


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


def relative_rate(computation: Computation, instruction: Instruction) -> float:
    """Returns the rate of the products of an instruction on tensor cores, relative to products of bfloat16."""
    if not is_product(instruction):
        return 1.0
    return _RELATIVE_RATES.get(_operand_bytes(computation, instruction), 1.0)


def _operand_bytes(computation: Computation, instruction: Instruction) -> int:
    """Returns the bytes of an element of the first operand, 0 without operands."""
    operands = computation.operand_arrays(instruction)
    return int(operands[0][0].bytes / max(1, operands[0][0].size)) if operands and operands[0] else 0


def is_exact(computation: Computation, instruction: Instruction) -> bool:
    """Returns whether an instruction is a product in float32 whose operands are not rounded to TF32."""
    is_float32 = is_product(instruction) and _operand_bytes(computation, instruction) == _FLOAT32
    return is_float32 and re.search(r'"operand_precision": ?\[[^\]]*HIGHEST', instruction.attributes) is not None


def triton_name(instruction: Instruction) -> str | None:
    """Returns the name of a kernel of Triton, or None for other instructions."""
    name = _NAME.search(instruction.attributes) if target(instruction) == _TRITON else None
    return name and name[1]


def target(instruction: Instruction) -> str:
    """Returns the target of a custom call; an empty string for other instructions."""
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
