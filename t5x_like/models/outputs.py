"""The result of a model."""

from flax import struct
from jaxtyping import Array, Float


@struct.dataclass
class Outputs:
    """The result of a model's trunk.

    Attributes:
      hidden: last hidden states, the input of `unembed`.
      captured: the arrays requested with `capture`, by name.
    """

    hidden: Float[Array, "batch length embed"]
    captured: dict[str, Array] = struct.field(default_factory=dict)
