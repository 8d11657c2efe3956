"""Custom calls in HLO: Pallas kernels with the costs that they declare, and the libraries that XLA calls on GPUs."""

import dataclasses
import re

from t5x_like.planning import gpu_calls
from t5x_like.planning.hlo import Computation, Instruction

_ESTIMATE = re.compile(r'"cost_estimate":\{([^}]*)\}')
# Targets by which the compiler marks arrays, checks indices, and prepares, starts and completes communication. They do
# no work.
_MARKERS = (
    *("AllocateBuffer", "AssumeGatherIndicesInBound", "AsyncCollectiveDone", "AsyncCollectiveStart"),
    *("ConcatBitcast", "PrepareAsyncCallDone", "PrepareAsyncCallStart", "SliceId", "ZeroCrop"),
)
# Cycles of a core for a transcendental function of a kernel, with the elementwise work around it: what the compiler's
# static schedules of fused attention (`--xla_jf_dump_llo_text`, schedule-analysis_final_bundles) take beyond the matrix
# products at their peak. On v5e, v5p and v6e it is 0.0023 to 0.0036 in the forward pass, and less in the backward pass
# of v5e and v5p, where products and elementwise work overlap.
CYCLES_PER_TRANSCENDENTAL = 0.0031
# Element types that the matrix units multiply.
_MATRIX_TYPES = ("bf16", "f16")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One execution of a custom call.

    Attributes:
      flops: FLOPs of its cost estimate; 0 without one.
      hbm_bytes: Bytes of its cost estimate that are not in memories on the chip; without one, the bytes of its operands
        and results, each read or written once.
      estimated: Whether it has a cost estimate.
    """

    flops: float
    hbm_bytes: float
    estimated: bool


def kernel(computation: Computation, instruction: Instruction) -> Kernel | None:
    """Reads the cost of a custom call from its cost estimate (`pl.pallas_call(…, cost_estimate=…)`), or of a library.

    Args:
      computation: The computation of the instruction.
      instruction: Any instruction.

    Returns:
      The kernel; None for other instructions, and for custom calls that do no work.
    """
    if instruction.opcode != "custom-call" or is_marker(instruction):
        return None
    if (called := gpu_calls.call(computation, instruction)) is not None:
        return Kernel(called.flops, called.hbm_bytes, estimated=True)
    arrays = [array for arrays in computation.operand_arrays(instruction) for array in arrays] + [*instruction.arrays]
    in_hbm = sum(array.bytes for array in arrays if array.memory == 0)
    found = _estimate(instruction)
    if found is None:
        return Kernel(0.0, in_hbm, estimated=False)
    on_chip = sum(array.bytes for array in arrays if array.memory != 0)
    return Kernel(
        flops=max(0.0, found.get("flops", 0.0)),
        hbm_bytes=max(0.0, found.get("bytes_accessed", 0.0) - on_chip),
        estimated=True,
    )


def vector_cycles(instruction: Instruction) -> float:
    """Returns the cycles that the vector units of one core need for a kernel; 0 without a cost estimate."""
    return CYCLES_PER_TRANSCENDENTAL * (_estimate(instruction) or {}).get("transcendentals", 0.0)


def _estimate(instruction: Instruction) -> dict[str, float] | None:
    """Returns the numbers of a cost estimate, or None without one."""
    match = _ESTIMATE.search(instruction.attributes)
    return match and {name: float(value) for name, value in re.findall(r'"(\w+)":"(-?\d+)"', match[1])}


def is_marker(instruction: Instruction) -> bool:
    """Returns whether a custom call does no work."""
    return gpu_calls.target(instruction) in _MARKERS


def label(instruction: Instruction) -> str:
    """Returns the name of a kernel without the number of the instruction, and its target if it is not Pallas."""
    if triton_name := gpu_calls.triton_name(instruction):
        return triton_name
    name = re.sub(r"(\.\d+|\.clone)+$", "", instruction.name)
    kind = gpu_calls.target(instruction)
    return name if kind == "tpu_custom_call" else f"{name} ({kind})"


def fill(computation: Computation, instruction: Instruction, matrix_unit: int) -> float:
    """Estimates the part of the matrix units that the products of a kernel use.

    It assumes a kernel of attention. Its products contract the last dimension of an operand, or return it. It is the
    size of a head, or in `kernels/fused_attention` the number of positions. If it is not a multiple of the size of a
    matrix unit, a part of the last unit is idle.

    Args:
      computation: The computation of the kernel.
      instruction: The kernel.
      matrix_unit: Rows and columns of a matrix unit.

    Returns:
      A number above 0, at most 1.
    """
    sizes = [
        array.dims[-1]
        for arrays in computation.operand_arrays(instruction)
        for array in arrays
        if array.dtype in _MATRIX_TYPES and len(array.dims) > 1 and array.dims[-1] > 1  # not a number per row
    ]
    return min((size / (-(-size // matrix_unit) * matrix_unit) for size in sizes), default=1.0)
