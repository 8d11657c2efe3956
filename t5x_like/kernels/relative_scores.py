"""Scores of contents, distances and token types: the relative attention of Transformer-XL and XLNet.

Dai et al. (2019, arXiv:1901.02860, section 3.3) add the score of a distance to the score of a content, each with a bias
of its own. Yang et al. (2019, section 2.5) add a score of whether two tokens are of the same segment.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from t5x_like.kernels.contraction import einsum_in_float32
from t5x_like.kernels.score_bias import ScoreTerms

# Largest period of the sinusoids is 2π times this number (Vaswani et al. 2017, section 3.5).
_PERIOD = 10000.0


def sinusoids(distances: Float[np.ndarray, " relative"], size: int) -> Float[np.ndarray, "relative size"]:
    """Returns the sines of distances, then their cosines, at size / 2 frequencies.

    Args:
      distances: Position of a query minus position of a key.
      size: Size of a vector, even.
    """
    angles = distances[:, None] / _PERIOD ** (np.arange(0, size, 2) / size)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).astype(np.float32)


@struct.dataclass
class DistanceScores:
    """What is added to the product of a query q and a key: scale · (q · r + b). Implements `ScoreBias`.

    Entry `key - query + q_len - 1` belongs to a query and a key at these indices.

    Attributes:
      vectors: R, the vector of the distance.
      scores: B, the score of the distance.
    """

    vectors: Float[Array, "relative heads kv"]
    scores: Float[Array, "relative heads"]

    def terms(self, q: Array, k: Array, *, scale: float = 1.0, **_) -> ScoreTerms:
        """Returns the terms of the scores; see `ScoreBias.terms`."""
        return ScoreTerms(diagonals=scale * self.scores.T, query_table=self.vectors[None])

    def materialize(
        self,
        q: Float[Array, "batch q_len heads kv"],
        k: Float[Array, "batch kv_len heads kv"],
        *,
        query_positions: Int[Array, "rows q_len"],
        key_positions: Int[Array, "rows kv_len"],
        scale: float = 1.0,
        dropout_key: jax.Array | None = None,
    ) -> Float[Array, "batch heads q_len kv_len"]:
        """Returns the scores of all pairs of queries and keys; see `ScoreBias.materialize`."""
        products = einsum_in_float32("bqhd,rhd->bhqr", q, self.vectors)
        entries = key_positions[:, None, :] - query_positions[:, :, None] + q.shape[1] - 1
        entries = jnp.broadcast_to(entries[:, None], (*products.shape[:3], k.shape[1]))
        return scale * jnp.take_along_axis(products + self.scores.T[:, None], entries, axis=-1)


@struct.dataclass
class RelativeScores:
    """What is added to the product of a query q and a key k. Implements `ScoreBias`.

    It is scale · (u · k + (q + v) · r + (q + w) · s), where u, v and w are biases, r is the projected vector of the
    distance, and s the vector of two tokens of the same type, or of different types.

    Attributes:
      relative: Projected vectors of distances, in descending order to 1 - q_len; of rows whose text is reversed, the
        second direction.
      content_bias: U.
      position_bias: V.
      type_bias: W.
      types: Vectors for the same type and for another one.
      query_types: Token types of the queries.
      key_types: Token types of the keys without a prefix.
      is_reversed: 1 for rows whose text is reversed; None if `relative` has one direction.
      length: Number of leading queries, whose positions are those of the last keys; None: 0.
      target_positions: Positions of the other queries, different ones in a row; None if they are not known.
    """

    relative: Float[Array, "directions relative heads kv"]
    content_bias: Float[Array, "heads kv"]
    position_bias: Float[Array, "heads kv"]
    type_bias: Float[Array, "heads kv"]
    types: Float[Array, "2 heads kv"]
    query_types: Int[Array, "batch q_len"]
    key_types: Int[Array, "batch kv_len"]
    is_reversed: Int[Array, " batch"] | None = None
    length: int | None = struct.field(pytree_node=False, default=None)
    target_positions: Int[Array, "batch targets"] | None = None

    def terms(
        self,
        q: Float[Array, "batch q_len heads kv"],
        k: Float[Array, "batch kv_len heads kv"],
        *,
        scale: float = 1.0,
        dropout_key: jax.Array | None = None,
    ) -> ScoreTerms | None:
        """Returns the terms of the scores, or None in a step of decoding; see `ScoreBias.terms`.

        Per query, (q + w) · s has one value for the same type and one for other types. A value that all keys have does
        not change the softmax, so the difference is left.
        """
        targets = None if self.target_positions is None else self.target_positions.shape[1]
        if self.length is None or self.relative.shape[1] != k.shape[1] + self.length - 1:
            return None
        if q.shape[1] != self.length + (targets or 0):
            return None
        of_types = einsum_in_float32("bqhd,thd->tbhq", q + self.type_bias, self.types)
        return ScoreTerms(
            query_table=self.relative,
            direction=self.is_reversed,
            content_bias=self.content_bias,
            position_bias=self.position_bias,
            same_type=of_types[0] - of_types[1],
            query_types=self.query_types,
            key_types=self.key_types,
            further=self.target_positions if targets else None,
        )

    def materialize(
        self,
        q: Float[Array, "batch q_len heads kv"],
        k: Float[Array, "batch kv_len heads kv"],
        *,
        query_positions: Int[Array, "rows q_len"],
        key_positions: Int[Array, "rows kv_len"],
        scale: float = 1.0,
        dropout_key: jax.Array | None = None,
    ) -> Float[Array, "batch heads q_len kv_len"]:
        """Returns the scores of all pairs of queries and keys; see `ScoreBias.materialize`."""
        of_content = einsum_in_float32("hd,bkhd->bhk", self.content_bias, k)
        of_types = self._type_scores(q, k.shape[1])
        return scale * (of_content[:, :, None] + of_types + self._position_scores(q, query_positions, key_positions))

    def _position_scores(self, q: Array, query_positions: Array, key_positions: Array) -> Array:
        """Returns (q + v) · r for the distance of each query and key."""
        if self.is_reversed is None:
            scores = einsum_in_float32("bqhd,rhd->bhqr", q + self.position_bias, self.relative[0])
        else:
            chosen = jnp.where(self.is_reversed[:, None, None, None] > 0, self.relative[1], self.relative[0])
            scores = einsum_in_float32("bqhd,brhd->bhqr", q + self.position_bias, chosen)
        num_distances, kv_len, length = self.relative.shape[1], key_positions.shape[1], self.length or 0
        if num_distances != kv_len + length - 1:  # a prefix, or a step of decoding
            length = 0
        found = [_shift(scores[:, :, :length], kv_len)] if length else []
        if length < q.shape[1]:
            distances = query_positions[:, length:, None] - key_positions[:, None, :]
            # Column c has the distance kv_len - 1 - c, where kv_len counts the keys that the table was made for.
            columns = jnp.clip(self.largest_distance - distances, 0, num_distances - 1)
            rest = scores[:, :, length:]
            columns = jnp.broadcast_to(columns[:, None], (*rest.shape[:3], kv_len))
            found.append(jnp.take_along_axis(rest, columns, axis=-1))
        return found[0] if len(found) == 1 else jnp.concatenate(found, axis=2)

    @property
    def largest_distance(self) -> int:
        """Distance of the first vector: the distances end at 1 - length, or at 0 in a step of decoding."""
        return self.relative.shape[1] - (self.length or 1)

    def _type_scores(self, q: Array, kv_len: int) -> Array:
        """Returns (q + w) · s for the types of each query and key; the keys of a prefix have type 0."""
        scores = einsum_in_float32("bqhd,thd->bhqt", q + self.type_bias, self.types)
        keys = jnp.pad(self.key_types, ((0, 0), (kv_len - self.key_types.shape[1], 0)))
        differs = self.query_types[:, :, None] != keys[:, None, :]
        return jnp.where(differs[:, None], scores[..., 1:], scores[..., :1])


def _shift(scores: Float[Array, "batch heads q_len relative"], kv_len: int) -> Float[Array, "batch heads q_len kv_len"]:
    """Returns column q_len - 1 - i + j of row i as its column j, without a gather (Dai et al. 2019, appendix B).

    There are kv_len + q_len - 1 columns. Rows of one column less, read from the q_len-th element on, begin one column
    earlier each.
    """
    batch, heads, length, width = scores.shape
    if length == 1:
        return scores
    flat = scores.reshape(batch, heads, length * width)[:, :, length - 1 : length - 1 + length * (width - 1)]
    return flat.reshape(batch, heads, length, width - 1)[..., :kv_len]
