"""Operations of a program: what instructions do and which line of the traced code they come from."""

import dataclasses

from t5x_like.planning import breakdown, gpu_calls, hlo, kernels
from t5x_like.planning.walk import Work

# Arrays of a result that `Operation.result` names.
_MAX_ARRAYS = 2


@dataclasses.dataclass(frozen=True)
class Operation:
    """What one or several instructions do.

    Attributes:
      part: The part of the step that it belongs to, one of `breakdown.PARTS`.
      kind: `product` for matrix products and fusions with them, the name of a kernel, or the opcode of other
        instructions.
      source: See `sources.Sources.of`.
      result: Dtypes and shapes of the first arrays of the result.
    """

    part: str
    kind: str
    source: str
    result: str


@dataclasses.dataclass
class Share:
    """What an operation takes in one execution of a program on one device.

    Attributes:
      seconds: Expected time.
      flops: FLOPs of matrix products and kernels.
      hbm_bytes: Bytes read from and written to HBM.
      times: Number of executions.
    """

    seconds: float = 0.0
    flops: float = 0.0
    hbm_bytes: float = 0.0
    times: int = 0

    def add(self, other: "Share", times: int = 1) -> None:
        """Adds another share, multiplied by `times`."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + times * getattr(other, field.name))


def operation(module: hlo.Module, instruction: hlo.Instruction, work: Work, *, is_transfer: bool) -> Operation:
    """Returns the operation of an instruction.

    Args:
      module: The program.
      instruction: An instruction of a scheduled computation.
      work: Its work.
      is_transfer: Whether it starts or completes a collective.
    """
    kind = instruction.opcode
    if (kind == "fusion" and work.flops) or gpu_calls.is_product(instruction):
        kind = "product"
    elif kind == "custom-call":
        kind = kernels.label(instruction)
    arrays = [f"{array.dtype}[{','.join(map(str, array.dims))}]" for array in instruction.arrays]
    more = ["…"] if len(arrays) > _MAX_ARRAYS else []
    part = breakdown.part_of(module, instruction, work, is_transfer=is_transfer)
    return Operation(part, kind, module.sources.of(instruction.attributes), " ".join([*arrays[:_MAX_ARRAYS], *more]))
