"""What every family returns."""

from flax import struct
from jaxtyping import Array, Float


@struct.dataclass
class Outputs:
    """A network's result.

    Attributes:
      hidden: what `unembed` reads.
      captured: what was asked for with `capture`, by name.
    """

    hidden: Float[Array, "batch length embed"]
    captured: dict[str, Array] = struct.field(default_factory=dict)
