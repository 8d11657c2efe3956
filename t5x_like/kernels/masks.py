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


@functools.partial(jax.tree_util.register_dataclass, data_fields=["keys"], meta_fields=["size", "all_keys"])
@dataclasses.dataclass(frozen=True)
class BlockLists:
    """The blocks of keys that each block of queries sees (BigBird, Zaheer et al. 2020, section 2).

    Attributes:
      keys: Indices of blocks of keys; negative entries are ignored. A block that occurs n times in a list counts n
        times in the softmax, as if its keys were repeated.
      size: Number of positions of a block.
      all_keys: Blocks of queries that see all keys, whatever their lists are.
    """

    keys: Int[Array, "heads query_blocks listed"]
    size: int
    all_keys: tuple[int, ...] = ()

    def counts(self, q_len: int, kv_len: int) -> Int[Array, "heads q_len kv_len"]:
        """Returns how often each query sees each key.

        Args:
          q_len: Number of queries per row.
          kv_len: Number of keys per row.

        Returns:
          One matrix per head, or one for all heads if `keys` has one.

        Raises:
          ValueError: There are fewer lists than blocks of queries.
        """
        self.check(q_len)
        blocks = jnp.arange(-(-kv_len // self.size))
        counts = jnp.sum(self.keys[..., None] == blocks, axis=2, dtype=jnp.int32)
        if self.all_keys:
            counts = counts.at[:, list(self.all_keys)].set(1)
        return jnp.repeat(jnp.repeat(counts, self.size, axis=1), self.size, axis=2)[:, :q_len, :kv_len]

    def check(self, q_len: int) -> None:
        """Raises ValueError if there are fewer lists than blocks of queries."""
        if self.keys.shape[1] * self.size < q_len:
            raise ValueError(f"{self.keys.shape[1]} lists of blocks of {self.size} do not cover {q_len} queries")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        *("query_segments", "key_segments", "key_valid", "prefix", "dense"),
        *("query_ranks", "key_ranks", "global_keys", "blocks"),
    ],
    meta_fields=["causal", "window", "window_after", "strict_ranks", "max_global_keys"],
)
@dataclasses.dataclass(frozen=True)
class Mask:
    """The keys that each query may attend to. A key must satisfy all conditions that are given.

    Attributes:
      causal: Whether keys after the query are masked. Positions count from the start of the row, also in packed rows.
      window: Masks keys at a distance of `window` positions or more from the query; None for no limit.
      window_after: Replaces `window` for the keys after the query; None for `window`.
      query_segments: Segment of each query. A query attends only to keys of its own segment.
      key_segments: Segment of each key; required with `query_segments`.
      key_valid: False masks a key for all queries, such as padding.
      prefix: True for keys that are visible regardless of `causal`, such as the inputs of a prefix language model.
      dense: An arbitrary mask, True where a query may attend to a key.
      query_ranks: Rank of each query, which sees the keys of its own rank and of lower ranks. The masks of UniLM (Dong
        et al. 2019, section 2.3) and of a permutation (Yang et al. 2019, section 2.2) are ranks.
      key_ranks: Rank of each key; required with `query_ranks`.
      strict_ranks: Whether a query sees keys of lower ranks only.
      global_keys: True for keys that are visible regardless of `window` and `blocks`.
      max_global_keys: Largest number of global keys per row; later keys are not global. None for no limit.
      blocks: The blocks of keys that each block of queries sees.
    """

    causal: bool = False
    window: int | None = None
    window_after: int | None = None
    query_segments: Int[Array, "batch q_len"] | None = None
    key_segments: Int[Array, "batch kv_len"] | None = None
    key_valid: Bool[Array, "batch kv_len"] | None = None
    prefix: Bool[Array, "batch kv_len"] | None = None
    dense: Bool[Array, "batch q_len kv_len"] | None = None
    query_ranks: Int[Array, "batch q_len"] | None = None
    key_ranks: Int[Array, "batch kv_len"] | None = None
    strict_ranks: bool = False
    global_keys: Bool[Array, "batch kv_len"] | None = None
    max_global_keys: int | None = None
    blocks: BlockLists | None = None

    def __post_init__(self):
        if (self.query_segments is None) != (self.key_segments is None):
            raise ValueError("query_segments and key_segments of a mask must be given together")
        if (self.query_ranks is None) != (self.key_ranks is None):
            raise ValueError("query_ranks and key_ranks of a mask must be given together")
        if self.strict_ranks and self.query_ranks is None:
            raise ValueError("strict_ranks requires query_ranks and key_ranks")
        if self.global_keys is not None and self.window is None and self.blocks is None:
            raise ValueError("global_keys requires window or blocks: without them, all keys are global")
        if self.max_global_keys is not None and self.global_keys is None:
            raise ValueError(f"max_global_keys={self.max_global_keys} requires global_keys")
        for name in ("window", "window_after"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise ValueError(
                    f"{name}={size} is not a positive integer. A window of 1 masks all keys but the query's own."
                )
        if self.window_after is not None and self.window is None:
            raise ValueError(f"window_after={self.window_after} requires window, the limit for the other keys")
        if self.prefix is not None and not self.causal:
            raise ValueError("prefix requires causal=True: without causal masking, all keys are visible")

    @property
    def conditions(self) -> frozenset[str]:
        """Names of the conditions that are given."""
        given = {
            "causal": self.causal or None,
            "window": self.window,
            "window_after": self.window_after,
            "segments": self.query_segments,
            "key_valid": self.key_valid,
            "prefix": self.prefix,
            "dense": self.dense,
            "ranks": self.query_ranks,
            "global_keys": self.global_keys,
            "blocks": self.blocks,
        }
        return frozenset(name for name, value in given.items() if value is not None)

    def materialize(self, q_len: int, kv_len: int) -> Bool[Array, "rows heads q_len kv_len"] | None:
        """Returns the dense matrix, True where a query may attend to a key.

        Args:
          q_len: Number of queries per row.
          kv_len: Number of keys per row.

        Returns:
          `[rows, heads, q_len, kv_len]`, where `rows` is `batch`, or 1 if all rows have the same mask, and `heads` is 1
          unless `blocks` has a list per head. None if no key is masked.
        """
        queries, keys = jnp.arange(q_len)[:, None], jnp.arange(kv_len)[None, :]
        conditions = []
        if self.causal:
            visible = (keys <= queries)[None]
            if self.prefix is not None:
                visible = visible | self.prefix[:, None, :]
            conditions.append(visible)
        if self.window is not None:
            after = self.window if self.window_after is None else self.window_after
            near = (queries - keys < self.window) & (keys - queries < after)
            conditions.append(self._or_global(near[None]))
        if self.query_segments is not None:
            conditions.append(self.query_segments[:, :, None] == self.key_segments[:, None, :])
        if self.query_ranks is not None:
            compare = operator.lt if self.strict_ranks else operator.le
            conditions.append(compare(self.key_ranks[:, None, :], self.query_ranks[:, :, None]))
        if self.key_valid is not None:
            conditions.append(jnp.broadcast_to(self.key_valid[:, None, :], (len(self.key_valid), q_len, kv_len)))
        if self.dense is not None:
            conditions.append(self.dense)
        conditions = [condition[:, None] for condition in conditions]
        if self.blocks is not None:
            listed = jax.vmap(self._or_global, in_axes=1, out_axes=1)(self.blocks.counts(q_len, kv_len)[None] > 0)
            conditions.append(listed)
        return functools.reduce(operator.and_, conditions) if conditions else None

    @property
    def limited_global_keys(self) -> Bool[Array, "batch kv_len"] | None:
        """The global keys up to the limit of their number."""
        if self.global_keys is None or self.max_global_keys is None:
            return self.global_keys
        return self.global_keys & (jnp.cumsum(self.global_keys, axis=1) <= self.max_global_keys)

    @property
    def global_positions(self) -> tuple[Int[Array, "batch global"], Bool[Array, "batch global"]]:
        """Positions of `max_global_keys` keys per row, global keys first, and which of these keys are global."""
        given = self.limited_global_keys
        positions = jnp.argsort(~given, axis=1, stable=True)[:, : self.max_global_keys]
        return positions, jnp.take_along_axis(given, positions, axis=1)

    def _or_global(self, visible: Bool[Array, "rows q_len kv_len"]) -> Bool[Array, "rows q_len kv_len"]:
        shared = self.limited_global_keys
        return visible if shared is None else visible | shared[:, None, :]
