"""Keys and values before all others of an attention, which every query sees (prefix tuning, Li and Liang 2021)."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from t5x_like.kernels import score_products
from t5x_like.kernels.contraction import einsum_in_float32
from t5x_like.kernels.masks import Mask


@struct.dataclass
class Prefix:
    """Keys and values that all rows share. No mask hides them.

    Attributes:
      key: The keys. Heads are repeated if the attention has copies of its key heads.
      value: The values.
    """

    key: Float[Array, "prefix kv_heads kv"]
    value: Float[Array, "prefix kv_heads kv"]

    @property
    def length(self) -> int:
        """Number of keys."""
        return len(self.key)

    def prepend(self, k: Float[Array, "batch kv_len kv_heads kv"]) -> Float[Array, "batch prefix+kv_len kv_heads kv"]:
        """Returns keys after the keys of the prefix."""
        return _prepend(self.key, k)

    def scores(
        self, q: Float[Array, "batch q_len kv_heads group kv"], k: Float[Array, "batch kv_len kv_heads kv"]
    ) -> Float[Array, "batch kv_heads group q_len prefix+kv_len"]:
        """Returns the inner products of queries and all keys in float32; see `score_products.scores`."""
        if not _is_step(q.shape[1] * q.shape[3], q.shape[-1]):
            return score_products.scores(q, self.prepend(k))
        own = einsum_in_float32("bqhgd,phd->bhgqp", q, _for_heads(self.key, k))
        return jnp.concatenate([own, score_products.scores(q, k)], axis=-1)

    def averages(
        self,
        weights: Float[Array, "batch kv_heads group q_len prefix+kv_len"],
        v: Float[Array, "batch kv_len kv_heads kv"],
    ) -> Float[Array, "batch q_len kv_heads group kv"]:
        """Returns the averages of all values; see `score_products.averages`."""
        if not _is_step(weights.shape[2] * weights.shape[3], v.shape[-1]):
            return score_products.averages(weights, _prepend(self.value, v))
        own = jnp.einsum("bhgqp,phd->bqhgd", weights[..., : self.length], _for_heads(self.value, v))
        return own + score_products.averages(weights[..., self.length :], v)

    def show(self, visible: Bool[Array, "rows heads q_len kv_len"]) -> Bool[Array, "rows heads q_len prefix+kv_len"]:
        """Returns a mask that also has the keys of the prefix, which are visible."""
        return jnp.pad(visible, ((0, 0), (0, 0), (0, 0), (self.length, 0)), constant_values=True)

    def positions(
        self,
        mask: Mask,
        query_positions: Int[Array, "rows q_len"] | None,
        key_positions: Int[Array, "rows kv_len"] | None,
        *,
        lengths: tuple[int, int],
    ) -> tuple[Int[Array, "rows q_len"], Int[Array, "rows prefix+kv_len"]]:
        """Returns the positions of queries and of all keys, which a bias reads: -1 is the last key of the prefix.

        Args:
          mask: The mask of the attention. Positions that are not given restart in each of its segments, so that the
            prefix is as far from each segment as from the first one.
          query_positions: Positions of the queries, or None.
          key_positions: Positions of the keys, or None.
          lengths: Numbers of queries and of keys per row.
        """
        given = (query_positions, mask.query_segments), (key_positions, mask.key_segments)
        queries, keys = (
            positions_in_segments(segments, length) if positions is None else positions
            for (positions, segments), length in zip(given, lengths, strict=True)
        )
        before = jnp.broadcast_to(jnp.arange(-self.length, 0), (len(keys), self.length))
        return queries, jnp.concatenate([before, keys], axis=1)


def _prepend(prefix: Array, x: Array) -> Array:
    rows = jnp.broadcast_to(_for_heads(prefix, x), (len(x), len(prefix), *x.shape[2:]))
    return jnp.concatenate([rows, x], axis=1)


def _for_heads(prefix: Array, x: Array) -> Array:
    """Repeats the heads of a prefix where shards hold copies of heads (`head_exchange.kv_head_copies`)."""
    copies = x.shape[2] // prefix.shape[1]
    return (jnp.repeat(prefix, copies, axis=1) if copies > 1 else prefix).astype(x.dtype)


def _is_step(queries: int, size: int) -> bool:
    """Returns whether scores are smaller than keys, as in a step of decoding.

    The scores of the prefix and of the other keys are then joined, because joined keys would be a copy of the cache.
    """
    return queries <= size


def positions_in_segments(segments: Int[Array, "rows length"] | None, length: int) -> Int[Array, "rows length"]:
    """Returns 0, 1, 2 … along each segment, or along each row without segments."""
    index = jnp.arange(length)[None]
    if segments is None:
        return index
    starts = jnp.diff(segments, axis=1, prepend=segments[:, :1]) != 0
    return index - jax.lax.cummax(jnp.where(starts, index, 0), axis=1)
