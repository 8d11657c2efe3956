"""Biases of attention scores: the interface that an attention asks, and a bias that is a matrix already."""

from typing import Protocol

import jax
from flax import struct
from jaxtyping import Array, Float, Int


@struct.dataclass
class ScoreTerms:
    """A bias as terms that a fused kernel adds to the scores tile by tile; a term that is None is zero.

    Entry `key - query + q_len - 1` of a table belongs to a query and a key at these indices.

    Attributes:
      diagonals: A value per head and distance.
      query_table: Vectors that a query is multiplied with, times the scale of the scores. They are multiplied in the
        dtype of the query; their gradients are summed in their own.
      key_table: Vectors that a key is multiplied with, likewise.
      direction: Which of the first dimension of these tables a row reads; None for the first.
      content_bias: Added to the queries in products with keys.
      position_bias: Added to the queries in products with `query_table`; required with `content_bias`.
      same_type: A value per query for keys of its type, times the scale of the scores.
      query_types: Types of the queries; required with `same_type`.
      key_types: Types of the keys; required with `same_type`.
      further: Indices of queries whose distances the last queries have, different ones in a row; `q_len` in tables does
        not count them. None: no query.
    """

    diagonals: Float[Array, "heads relative"] | None = None
    query_table: Float[Array, "directions relative heads kv"] | None = None
    key_table: Float[Array, "directions relative heads kv"] | None = None
    direction: Int[Array, " batch"] | None = None
    content_bias: Float[Array, "heads kv"] | None = None
    position_bias: Float[Array, "heads kv"] | None = None
    same_type: Float[Array, "batch heads q_len"] | None = None
    query_types: Int[Array, "batch q_len"] | None = None
    key_types: Int[Array, "batch kv_len"] | None = None
    further: Int[Array, "batch further"] | None = None


class ScoreBias(Protocol):
    """What is added to the scaled scores of an attention: a pytree, whose arrays have gradients.

    A bias holds parameters and inputs that several layers share. The attention asks it when its queries and keys are
    known, after the exchange of positions for heads (`kernels.head_exchange`), and passes the same heads.
    """

    def terms(
        self,
        q: Float[Array, "batch q_len heads kv"],
        k: Float[Array, "batch kv_len kv_heads kv"],
        *,
        scale: float = 1.0,
        dropout_key: jax.Array | None = None,
    ) -> ScoreTerms | None:
        """Returns the terms of the bias, what a fused kernel reads, for positions 0, 1, 2 … along each row.

        None for a bias that is not a sum of such terms, which fused kernels leave to the reference implementation.
        `materialize` describes the arguments.
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
          q: Queries.
          k: Keys.
          query_positions: Positions of the queries, whose rows are `batch`, or 1 if all rows have the same. A step of
            decoding has a single one.
          key_positions: Positions of the keys: the slots of a cache, or negative ones of a memory.
          scale: Factor of the scores.
          dropout_key: Random key for dropout; None disables dropout.

        Returns:
          The bias, whose rows are `batch`, or 1 if all rows have the same.
        """


@struct.dataclass
class DenseBias:
    """A bias that is given as a matrix. Implements `ScoreBias`.

    Attributes:
      values: The bias of all pairs; a size of 1 stands for all rows, queries or keys.
    """

    values: Float[Array, "rows heads q_len kv_len"]

    def terms(self, q: Array, k: Array, **_) -> None:
        """None: a matrix may have any values."""
        return None

    def materialize(self, q: Array, k: Array, **_) -> Float[Array, "rows heads q_len kv_len"]:
        """Returns the matrix; see `ScoreBias.materialize`."""
        return self.values


def misfit(bias: Array, q: Array, k: Array) -> ValueError:
    """Returns the error of a bias whose shape does not fit queries and keys."""
    return ValueError(f"bias {bias.shape} does not broadcast to the scores of queries {q.shape} and keys {k.shape}")


def bias_key(dropout_key: jax.Array | None) -> jax.Array | None:
    """Returns the random key of a bias, derived from the key of the dropout of the attention weights."""
    return None if dropout_key is None else jax.random.fold_in(dropout_key, 0)
