"""Positions as biases on attention scores."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int


def relative_position_bucket(
    relative: Int[np.ndarray, "..."], *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128
) -> Int[np.ndarray, "..."]:
    """The bucket of T5's relative positions (Raffel et al. 2020, section 2.1).

    Half of the buckets are for single distances, the others grow logarithmically up to `max_distance`; all that is
    further shares the last one.

    Args:
      relative: key position minus query position.
      bidirectional: half of the buckets, rounded down, for keys after the query, as many for the others; otherwise all
        are for keys at or before the query, and keys after it count as distance 0.
      num_buckets: number of buckets.
      max_distance: from which on all distances are alike.
    """
    first = np.zeros_like(relative)
    if bidirectional:
        num_buckets //= 2
        first = np.where(relative > 0, num_buckets, 0)
        distance = np.abs(relative)
    else:
        distance = np.maximum(-relative, 0)
    exact = num_buckets // 2
    # Float32 and its epsilon as T5X has them: they decide at distances where the logarithm is a whole number.
    ratio = np.log(distance.astype(np.float32) / exact + np.finfo(np.float32).eps) / np.log(max_distance / exact)
    logarithmic = np.minimum(exact + (ratio * (num_buckets - exact)).astype(np.int32), num_buckets - 1)
    return (first + np.where(distance < exact, distance, logarithmic)).astype(np.int32)


class RelativePositionBias(nnx.Module):
    """A learnt bias for each head and bucket, shared by the layers of a stack.

    Attributes:
      table: float32 `[heads, relpos_buckets]`.
    """

    def __init__(
        self, heads: int, *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128, key: jax.Array
    ):
        """Args:
        heads: number of attention heads.
        bidirectional, num_buckets, max_distance: see `relative_position_bucket`.
        key: for the initial values, uniform with variance `2 / (heads + num_buckets)`.
        """
        initialise = jax.nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        self.table = nnx.Param(initialise(key, (heads, num_buckets), jnp.float32), axes=("heads", "relpos_buckets"))
        self.bidirectional, self.num_buckets, self.max_distance = bidirectional, num_buckets, max_distance

    def __call__(
        self, q_len: int, kv_len: int, *, bidirectional: bool | None = None
    ) -> Float[Array, "1 heads q_len kv_len"]:
        """The bias of every query and key of a row; `bidirectional` where it is not the constructor's."""
        return toeplitz(self._values(1 - q_len, kv_len - 1, bidirectional), q_len, kv_len)[None]

    def at(self, position: Int[Array, ""], kv_len: int) -> Float[Array, "1 heads 1 kv_len"]:
        """The bias of the query at `position`, which may be traced, and every key."""
        values = self._values(1 - kv_len, kv_len - 1)
        return jax.lax.dynamic_slice_in_dim(values, kv_len - 1 - position, kv_len, axis=1)[None, :, None, :]

    def _values(self, first: int, last: int, bidirectional: bool | None = None) -> Float[Array, "heads relative"]:
        """The biases of the relative positions from `first` to `last`."""
        bucket = relative_position_bucket(
            np.arange(first, last + 1),
            bidirectional=self.bidirectional if bidirectional is None else bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        # A product with one-hot columns: its gradient is one too, and the same every time, unlike a scatter's on a GPU.
        one_hot = (np.arange(self.num_buckets)[:, None] == bucket).astype(np.float32)
        return jnp.matmul(self.table[...], one_hot, precision=jax.lax.Precision.HIGHEST)


def toeplitz(values: Float[Array, "heads relative"], q_len: int, kv_len: int) -> Float[Array, "heads q_len kv_len"]:
    """The matrices whose entry (i, j) is `values[j - i + q_len - 1]`, without a gather.

    `values` and one filler repeat with a period one longer than a row, so each row starts one entry earlier in the
    period.

    Args:
      values: one for each of the `q_len + kv_len - 1` relative positions.
      q_len, kv_len: numbers of rows and columns.
    """
    heads, period = values.shape[0], q_len + kv_len
    once = jnp.concatenate(
        [values[:, q_len - 1 :], jnp.zeros((heads, 1), values.dtype), values[:, : q_len - 1]], axis=1
    )
    repeated = jnp.tile(once, (1, q_len))[:, : q_len * (period - 1)]
    return repeated.reshape(heads, q_len, period - 1)[:, :, :kv_len]
