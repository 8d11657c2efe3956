"""Biases of attention scores that depend on the distance between query and key alone."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from t5x_like.kernels.score_bias import ScoreBias, ScoreTerms, misfit


@struct.dataclass
class RelativeBias:
    """A bias per head and relative position, which is a matrix with constant diagonals. Implements `ScoreBias`.

    A fused kernel expands the vector tile by tile, so the matrix of all pairs does not exist in memory.

    Attributes:
      values: Entry `key - query + q_len - 1` is the bias of a query and a key at these positions.
    """

    values: Float[Array, "heads relative"]

    def terms(self, q: Array, k: Array, **_) -> ScoreTerms:
        """Returns the values; see `ScoreBias.terms`."""
        self._check(q, k)
        return ScoreTerms(diagonals=self.values)

    def materialize(self, q: Array, k: Array, **_) -> Float[Array, "1 heads q_len kv_len"]:
        """Returns the bias of all pairs, `q_len + kv_len - 1` of which differ; see `ScoreBias.materialize`."""
        self._check(q, k)
        return toeplitz(self.values, q.shape[1], k.shape[1])[None]

    def _check(self, q: Array, k: Array) -> None:
        """Raises ValueError unless there is a value for each head and distance."""
        if self.values.shape != (q.shape[2], q.shape[1] + k.shape[1] - 1):
            raise misfit(self.values, q, k)


@struct.dataclass
class PrefixedBias:
    """The bias of tokens, and of the keys of a prefix before the first position. Implements `ScoreBias`.

    Attributes:
      tokens: The bias of the keys after the prefix.
      before: Entry d - 1 is the bias of a key d positions before the query; keys further away have the last entry.
      length: Number of keys of the prefix.
    """

    tokens: ScoreBias
    before: Float[Array, "heads distances"]
    length: int = struct.field(pytree_node=False)

    def terms(self, q: Array, k: Array, **_) -> None:
        """None: in packed rows, the distance to the prefix is not the difference of two indices."""
        return None

    def materialize(
        self, q: Array, k: Array, *, query_positions: Int[Array, "rows q_len"], **options
    ) -> Float[Array, "rows heads q_len prefix+kv_len"]:
        """Returns the bias of all pairs of queries and keys; see `ScoreBias.materialize`."""
        tokens = self.tokens.materialize(q, k[:, self.length :], query_positions=query_positions, **options)
        distance = query_positions[..., None] + self.length - jnp.arange(self.length)
        own = jnp.take(self.before, jnp.minimum(distance, self.before.shape[1]) - 1, axis=1, mode="clip")
        own, rows = jnp.swapaxes(own, 0, 1), max(len(tokens), len(query_positions))
        return jnp.concatenate([jnp.broadcast_to(x, (rows, *x.shape[1:])) for x in (own, tokens)], axis=-1)


def toeplitz(values: Float[Array, "heads relative"], q_len: int, kv_len: int) -> Float[Array, "heads q_len kv_len"]:
    """Builds matrices whose entry (i, j) is `values[j - i + q_len - 1]`, without a gather.

    `values` and one zero are repeated with a period that is one entry longer than a row. Each row therefore starts one
    entry earlier in the period than the row before.

    Args:
      values: One value for each of the `q_len + kv_len - 1` relative positions.
      q_len: Number of rows.
      kv_len: Number of columns.

    Returns:
      One matrix per head.
    """
    heads, period = values.shape[0], q_len + kv_len
    period_values = jnp.concatenate(
        [values[:, q_len - 1 :], jnp.zeros((heads, 1), values.dtype), values[:, : q_len - 1]], axis=1
    )
    repeated = jnp.tile(period_values, (1, q_len))[:, : q_len * (period - 1)]
    return repeated.reshape(heads, q_len, period - 1)[:, :, :kv_len]
