"""Attention masks as structure: a backend that knows the structure never needs the dense matrix."""

import dataclasses
import functools
import operator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["query_segments", "key_segments", "key_valid", "prefix", "dense"],
    meta_fields=["causal", "window"],
)
@dataclasses.dataclass(frozen=True)
class Mask:
    """Which keys each query may attend to; a key must satisfy every condition that is given.

    Attributes:
      causal: keys after the query are hidden. Positions count from the start of the row, whatever is packed into it.
      window: keys this many positions away from the query, or further, are hidden; None for no limit.
      query_segments, key_segments: a query sees the keys of its own segment; given together or not at all.
      key_valid: False hides a key from every query, as for padding.
      prefix: True for keys that are seen in spite of `causal`, as those of a prefix language model's input.
      dense: anything else, as a matrix.
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
            raise ValueError("a mask takes query_segments and key_segments together or neither")
        if self.window is not None and self.window < 1:
            raise ValueError(
                f"window={self.window} must be at least 1: a window of 1 leaves each query its own position"
            )
        if self.prefix is not None and not self.causal:
            raise ValueError("prefix needs causal=True: without it every key is seen anyway")

    def materialise(self, q_len: int, kv_len: int) -> Bool[Array, "rows 1 q_len kv_len"] | None:
        """The mask as a matrix, True where a query sees a key.

        Args:
          q_len, kv_len: how many queries and keys there are in a row.

        Returns:
          `[batch, 1, q_len, kv_len]`, with 1 instead of `batch` where all rows are alike; None where nothing is hidden.
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
