"""Relative position biases of attention scores."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.kernels.relative_bias import PrefixedBias, RelativeBias
from t5x_like.kernels.score_bias import DenseBias, ScoreBias


def relative_position_bucket(
    relative: Int[np.ndarray, "..."], *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128
) -> Int[np.ndarray, "..."]:
    """Maps relative positions to T5's buckets (Raffel et al. 2020, section 2.1).

    Half of the buckets hold a single distance each. The other buckets grow logarithmically up to `max_distance`. All
    larger distances share the last bucket.

    Args:
      relative: Key position minus query position.
      bidirectional: Whether half of the buckets, rounded down, are for keys after the query. Otherwise all buckets are
        for keys at or before the query, and keys after the query have distance 0.
      num_buckets: Number of buckets.
      max_distance: Distance from which all distances share a bucket.

    Returns:
      Bucket indices in [0, num_buckets), int32.
    """
    first = np.zeros_like(relative)
    if bidirectional:
        num_buckets //= 2
        first = np.where(relative > 0, num_buckets, 0)
        distance = np.abs(relative)
    else:
        distance = np.maximum(-relative, 0)
    exact = num_buckets // 2
    # Float32 and its epsilon, as in T5X: they decide the rounding where the logarithm is an integer.
    ratio = np.log(distance.astype(np.float32) / exact + np.finfo(np.float32).eps) / np.log(max_distance / exact)
    logarithmic = np.minimum(exact + (ratio * (num_buckets - exact)).astype(np.int32), num_buckets - 1)
    return (first + np.where(distance < exact, distance, logarithmic)).astype(np.int32)


def alibi_slopes(heads: int) -> Float[np.ndarray, " heads"]:
    """Returns the slope of each head of ALiBi (Press et al. 2022, arXiv:2108.12409, section 3, and its code).

    With n heads, a power of 2, they are 2^(-8/n), 2^(-16/n), … Other numbers have the slopes of the next lower power,
    then every other slope of the next higher one.

    Args:
      heads: Number of attention heads.
    """
    lower = 2 ** (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * number / lower) for number in range(1, lower + 1)]
    return np.array(slopes + [2.0 ** (-4 * number / lower) for number in range(1, 2 * lower, 2)][: heads - lower])


def symmetric_alibi(heads: int, q_len: int, kv_len: int) -> RelativeBias:
    """Returns ALiBi's bias of an encoder: minus the slope of the head times the distance, before and after the query.

    Args:
      heads: Number of attention heads.
      q_len: Number of queries.
      kv_len: Number of keys.
    """
    distances = np.abs(np.arange(1 - q_len, kv_len))
    return RelativeBias(jnp.asarray(-alibi_slopes(heads)[:, None] * distances, jnp.float32))


class RelativePositionBias(nnx.Module):
    """A learned bias per head and bucket, shared by the layers of a stack (Raffel et al. 2020, section 2.1).

    Args:
      heads: Number of attention heads.
      bidirectional, num_buckets, max_distance: See `relative_position_bucket`.
      key: Random key for the initial values, which are uniform with variance `2 / (heads + num_buckets)`.

    Attributes:
      table: float32 `[heads, relpos_buckets]`.
      prefix_length: Number of keys before the first position; see `adapters.prefix`.
    """

    def __init__(
        self, heads: int, *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128, key: jax.Array
    ):
        initialize = jax.nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        self.table = nnx.Param(initialize(key, (heads, num_buckets), jnp.float32), axes=("heads", "relpos_buckets"))
        self.bidirectional, self.num_buckets, self.max_distance = bidirectional, num_buckets, max_distance
        self.prefix_length = 0

    def __call__(self, q_len: int, kv_len: int, *, bidirectional: bool | None = None) -> ScoreBias:
        """Returns the bias of all pairs of queries and keys, which `kernels.attention` expands.

        Args:
          q_len: Number of queries.
          kv_len: Number of keys.
          bidirectional: Replaces the constructor's value; None keeps it.
        """
        return self.after_prefix(RelativeBias(self._values(1 - q_len, kv_len - 1, bidirectional)), bidirectional)

    def at(self, position: Int[Array, ""], kv_len: int, num_positions: int = 1) -> ScoreBias:
        """Returns the bias of a decoding step.

        Args:
          position: Position of the first query, which may be traced.
          kv_len: Number of keys; positions of queries are smaller.
          num_positions: Number of queries.
        """
        values = self._values(1 - kv_len, kv_len - 1)
        starts = [kv_len - 1 - position - number for number in range(num_positions)]
        rows = [jax.lax.dynamic_slice_in_dim(values, start, kv_len, axis=1) for start in starts]
        return self.after_prefix(DenseBias(jnp.stack(rows, axis=1)[None]))

    def after_prefix(self, tokens: ScoreBias, bidirectional: bool | None = None) -> ScoreBias:
        """Returns a bias that also has the keys of the prefix, if there is one.

        Args:
          tokens: The bias of the keys after the prefix.
          bidirectional: See `__call__`.
        """
        if not self.prefix_length:
            return tokens
        return PrefixedBias(tokens, self._values(-self.max_distance, -1, bidirectional)[:, ::-1], self.prefix_length)

    def _values(self, first: int, last: int, bidirectional: bool | None = None) -> Float[Array, "heads relative"]:
        """Returns the biases of the relative positions from `first` to `last`."""
        return self.of_distances(np.arange(first, last + 1), bidirectional=bidirectional)

    def of_distances(
        self, distances: Int[np.ndarray, "..."], *, bidirectional: bool | None = None
    ) -> Float[Array, "heads ..."]:
        """Returns the biases of relative positions, the key's position minus the query's.

        Args:
          distances: The relative positions.
          bidirectional: See `__call__`.
        """
        bucket = relative_position_bucket(
            distances,
            bidirectional=self.bidirectional if bidirectional is None else bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        # A product with one-hot columns instead of a gather. Its gradient is a product as well; the gradient of a
        # gather is a scatter, which is not deterministic on GPU.
        one_hot = (np.arange(self.num_buckets)[:, None] == bucket.reshape(-1)).astype(np.float32)
        values = jnp.matmul(self.table[...], one_hot, precision=jax.lax.Precision.HIGHEST)
        return values.reshape(-1, *bucket.shape)
