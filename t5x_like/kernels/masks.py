"""Structured attention masks.

A backend that supports the structure of a mask does not need its dense matrix.
"""

import dataclasses
import functools
import operator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

# Added to the scores of masked keys. The value is finite, so a query without visible keys averages all values instead
# of returning NaN. It is so large that float32 rounds the original score away.
MASK_VALUE = -1e10


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["query_segments", "key_segments", "key_valid", "prefix", "dense"],
    meta_fields=["causal", "window"],
)
@dataclasses.dataclass(frozen=True)
class Mask:
    """The keys that each query may attend to. A key must satisfy all conditions that are given.

    Attributes:
      causal: whether keys after the query are masked. Positions count from the start of the row, also in packed rows.
      window: masks keys at a distance of `window` positions or more from the query; None for no limit.
      query_segments: segment of each query. A query attends only to keys of its own segment.
      key_segments: segment of each key; required with `query_segments`.
      key_valid: False masks a key for all queries, such as padding.
      prefix: True for keys that are visible regardless of `causal`, such as the inputs of a prefix language model.
      dense: an arbitrary mask, True where a query may attend to a key.
    """

    causal: bool = False
    window: int | None = None
    query_segments: Int[Array, "batch q_len"] | None = None
    key_segments: Int[Array, "batch kv_len"] | None = None
    key_valid: Bool[Array, "batch kv_len"] | None = None
    prefix: Bool[Array, "batch kv_len"] | None = None
    dense: Bool[Array, "batch q_len kv_len"] | None = None

    def __post_init__(self):
        if (self.query_segments is None) != (self.key_segments is None):
            raise ValueError("query_segments and key_segments of a mask must be given together")
        if self.window is not None and self.window < 1:
            raise ValueError(
                f"window={self.window} is not a positive integer. A window of 1 masks all keys but the query's own."
            )
        if self.prefix is not None and not self.causal:
            raise ValueError("prefix requires causal=True: without causal masking, all keys are visible")

    def materialize(self, q_len: int, kv_len: int) -> Bool[Array, "rows 1 q_len kv_len"] | None:
        """Returns the dense matrix, True where a query may attend to a key.

        Args:
          q_len: number of queries per row.
          kv_len: number of keys per row.

        Returns:
          `[rows, 1, q_len, kv_len]`, where `rows` is `batch`, or 1 if all rows have the same mask. None if no key is
          masked.
        """
        queries, keys = jnp.arange(q_len)[:, None], jnp.arange(kv_len)[None, :]
        conditions = []
        if self.causal:
            visible = (keys <= queries)[None]
            if self.prefix is not None:
                visible = visible | self.prefix[:, None, :]
            conditions.append(visible)
        if self.window is not None:
            conditions.append((jnp.abs(queries - keys) < self.window)[None])
        if self.query_segments is not None:
            conditions.append(self.query_segments[:, :, None] == self.key_segments[:, None, :])
        if self.key_valid is not None:
            conditions.append(jnp.broadcast_to(self.key_valid[:, None, :], (len(self.key_valid), q_len, kv_len)))
        if self.dense is not None:
            conditions.append(self.dense)
        return functools.reduce(operator.and_, conditions)[:, None] if conditions else None
