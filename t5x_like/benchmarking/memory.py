"""Memory of a compiled program, as the compiler reports it."""

import dataclasses
from typing import Any

from t5x_like.planning.compilation import peak_memory


@dataclasses.dataclass(frozen=True)
class ProgramMemory:
    """Memory of a program in bytes per device.

    Attributes:
      peak: Arguments, results, temporaries, and the program itself.
      temporaries: Temporaries; None if the compiler does not report them by themselves.
    """

    peak: float
    temporaries: float | None


def of_program(compiled: Any, platform: str) -> ProgramMemory:
    """Returns the memory of a compiled program.

    On CPU and GPU the temporaries are one allocation, which `peak_memory_in_bytes` does not include. On TPU their sum
    has temporaries that are not alive at the same time; see `planning.compilation.peak_memory`.

    Args:
      compiled: The compiled program.
      platform: `cpu`, `gpu` or `tpu`.
    """
    stats = compiled.memory_analysis()
    if platform == "tpu":
        return ProgramMemory(peak_memory(stats), None)
    arguments = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    temporaries = float(stats.temp_size_in_bytes)
    return ProgramMemory(arguments + temporaries + stats.generated_code_size_in_bytes, temporaries)
