"""Operations of a program: what instructions do and which line of the traced code they come from."""

import dataclasses

from t5x_like.planning import hlo, kernels
from t5x_like.planning.walk import Work

# Arrays of a result that `Operation.result` names.
_MAX_ARRAYS = 2


@dataclasses.dataclass(frozen=True)
class Operation:
    """What one or several instructions do.

    Attributes:
      kind: `product` for a fusion with matrix products, the name of a kernel, or the opcode of other instructions.
      source: See `sources.Sources.of`.
      result: Dtypes and shapes of the first arrays of the result.
    """

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


def operation(module: hlo.Module, instruction: hlo.Instruction, work: Work) -> Operation:
    """Returns the operation of an instruction.

    Args:
      module: The program.
      instruction: An instruction of a scheduled computation.
      work: Its work.
    """
    kind = instruction.opcode
    if kind == "fusion" and work.flops:
        kind = "product"
    elif kind == "custom-call":
        kind = kernels.label(instruction)
    arrays = [f"{array.dtype}[{','.join(map(str, array.dims))}]" for array in instruction.arrays]
    more = ["…"] if len(arrays) > _MAX_ARRAYS else []
    return Operation(kind, module.sources.of(instruction.attributes), " ".join([*arrays[:_MAX_ARRAYS], *more]))
