"""The results of networks."""

from flax import struct
from jaxtyping import Array, Float


@struct.dataclass
class Outputs:
    """The result of a model's trunk, and of the other networks that an objective runs.

    Attributes:
      hidden: Last hidden states, the input of `unembed`.
      captured: The arrays requested with `capture`, by name.
      carry: Name -> array `[batch, …]` of the state for the next batch; empty for a network without state.
      networks: Name of another network, such as a teacher -> what it computed.
    """

    hidden: Float[Array, "batch length embed"]
    captured: dict[str, Array] = struct.field(default_factory=dict)
    carry: dict[str, Array] = struct.field(default_factory=dict)
    networks: "dict[str, Outputs]" = struct.field(default_factory=dict)
