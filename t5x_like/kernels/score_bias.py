"""Biases of attention scores: the interface that an attention asks, and a bias that is a matrix already."""

from typing import Protocol

import jax
from flax import struct
from jaxtyping import Array, Float, Int


class ScoreBias(Protocol):
    """What is added to the scaled scores of an attention: a pytree, whose arrays have gradients.

    A bias holds parameters and inputs that several layers share. The attention asks it when its queries and keys are
    known, after the exchange of positions for heads (`kernels.head_exchange`), and passes the same heads.
    """

    @property
    def diagonals(self) -> Float[Array, "heads relative"] | None:
        """The bias per head and distance, if it depends on nothing else: what a fused kernel reads.

        Entry `key - query + q_len - 1` is the bias of a query and a key at these indices. None for other biases, which
        fused kernels leave to the reference implementation.
        """

    def materialize(
        self,
        q: Float[Array, "batch q_len heads kv"],
        k: Float[Array, "batch kv_len kv_heads kv"],
        *,
        query_positions: Int[Array, "rows q_len"],
        key_positions: Int[Array, "rows kv_len"],
        scale: float = 1.0,
        dropout_key: jax.Array | None = None,
    ) -> Float[Array, "rows heads q_len kv_len"]:
        """Returns the bias of all pairs of queries and keys.

        Args:
          q: queries.
          k: keys.
          query_positions: positions of the queries, whose rows are `batch`, or 1 if all rows have the same. A step of
            decoding has a single one.
          key_positions: positions of the keys: the slots of a cache, or negative ones of a memory.
          scale: factor of the scores.
          dropout_key: random key for dropout; None disables dropout.

        Returns:
          The bias, whose rows are `batch`, or 1 if all rows have the same.
        """


@struct.dataclass
class DenseBias:
    """A bias that is given as a matrix. Implements `ScoreBias`.

    Attributes:
      values: the bias of all pairs; a size of 1 stands for all rows, queries or keys.
    """

    values: Float[Array, "rows heads q_len kv_len"]

    @property
    def diagonals(self) -> None:
        """None: a matrix may have any values."""
        return None

    def materialize(self, q: Array, k: Array, **_) -> Float[Array, "rows heads q_len kv_len"]:
        """Returns the matrix; see `ScoreBias.materialize`."""
        return self.values
