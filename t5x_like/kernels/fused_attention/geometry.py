"""Sizes of the kernels: blocks of positions, heads per step, the blocks that a mask skips, and costs."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

# Lanes of a TPU's vector registers. Blocks of positions are multiples of it.
LANES = 128
# Their rows.
SUBLANES = 8


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Static sizes of an attention problem on one device.

    The grid of a kernel is groups of heads x rows x blocks of queries and keys. A step computes `step_heads` query
    heads, which belong to `step_kv_heads` key heads.

    Attributes:
      batch: Rows.
      q_len: Queries per row.
      kv_len: Keys per row.
      heads: Query heads.
      kv_heads: Key heads.
      head_dim: Size of a head.
      block_q: Queries of a step, a multiple of 128.
      block_k: Keys of a step, a multiple of 128.
      causal: Whether keys after the query are masked.
      window, window_after: See `Mask`.
      prefix: Whether some keys are visible regardless of `causal`; no block is skipped then because of it.
      segments: Whether queries and keys have segments.
      biased: Whether scores have a relative bias.
      query_table: Whether scores have products of queries with a table of distances.
      key_table: Whether scores have products of keys with a table of distances.
      directions: Number of tables of each kind, of which each row has one.
      query_biases: Whether queries have biases in the products with keys and with their table.
      types: Whether queries have a value for keys of their type.
      ranks: Whether queries and keys have ranks.
      strided: See `blocks.Sizes`.
      scale: Factor of the scores.
      softcap: See `Scoring`.
      dropout_rate: Rate of the dropout of each attention weight.
      q_chunks: Parts of the queries of a row whose gradients are held on the core one after another.
      by_segments: Whether blocks without a common segment are skipped; see `segment_blocks`.
    """

    batch: int
    q_len: int
    kv_len: int
    heads: int
    kv_heads: int
    head_dim: int
    block_q: int
    block_k: int
    causal: bool = False
    window: int | None = None
    window_after: int | None = None
    prefix: bool = False
    segments: bool = False
    biased: bool = False
    query_table: bool = False
    key_table: bool = False
    directions: int = 1
    query_biases: bool = False
    types: bool = False
    ranks: bool = False
    strided: bool = True
    scale: float = 1.0
    softcap: float | None = None
    dropout_rate: float = 0.0
    q_chunks: int = 1
    by_segments: bool = False

    @property
    def q_blocks(self) -> int:
        """Number of blocks of queries."""
        return pl.cdiv(self.q_len, self.block_q)

    @property
    def k_blocks(self) -> int:
        """Number of blocks of keys."""
        return pl.cdiv(self.kv_len, self.block_k)

    @property
    def padded_q(self) -> int:
        """Number of queries in whole blocks."""
        return self.q_blocks * self.block_q

    @property
    def padded_k(self) -> int:
        """Number of keys in whole blocks."""
        return self.k_blocks * self.block_k

    @property
    def group(self) -> int:
        """Number of query heads per key head."""
        return self.heads // self.kv_heads

    @property
    def step_kv_heads(self) -> int:
        """Number of key heads of a step. Two heads of multi-head attention share a tile of the mask."""
        return 2 if self.group == 1 and self.kv_heads % 2 == 0 else 1

    @property
    def step_heads(self) -> int:
        """Number of query heads of a step."""
        return self.step_kv_heads * self.group

    @property
    def head_steps(self) -> int:
        """Number of groups of heads."""
        return self.kv_heads // self.step_kv_heads

    @property
    def _before(self) -> int:
        """How many positions a visible key can precede its query."""
        return self.padded_q + self.padded_k if self.window is None else self.window - 1

    @property
    def _after(self) -> int:
        """How many positions a visible key can follow its query."""
        if self.causal and not self.prefix:
            return 0
        return self._before if self.window_after is None else self.window_after - 1

    @property
    def query_distances(self) -> int:
        """Entries of a table of distances up to the query's own position, a multiple of 128; see `table_size`."""
        return table_size(self.padded_q, self.block_q + self.block_k, self.window)

    @property
    def key_distances(self) -> int:
        """Entries of a table of distances up to the key's own position, a multiple of 128; see `table_size`."""
        return table_size(self.padded_k, self.block_q + self.block_k, self.window)

    @property
    def distances(self) -> int:
        """Number of entries of a table of distances."""
        return self.query_distances + self.key_distances

    @property
    def skips(self) -> bool:
        """Whether blocks of keys may be invisible to a block of queries because of their positions or segments."""
        return self.window is not None or self._after == 0 or self.by_segments

    @property
    def reads_ranges(self) -> bool:
        """Whether the kernels read which blocks share segments."""
        return self.by_segments and self.q_blocks * self.k_blocks > 1

    def k_range(self, i):
        """Returns the first and the last block of keys that block `i` of the queries sees."""
        return _reach(i, self.block_q, self.block_k, self.k_blocks, self._before, self._after)

    def q_range(self, j):
        """Returns the first and the last block of queries that see block `j` of the keys."""
        return _reach(j, self.block_k, self.block_q, self.q_blocks, self._after, self._before)

    @property
    def k_visits(self) -> int:
        """Largest number of blocks of keys that a block of queries sees."""
        return max(1, max(last - first + 1 for first, last in map(self.k_range, range(self.q_blocks))))

    @property
    def q_visits(self) -> int:
        """Largest number of blocks of queries of a chunk that see a block of keys."""
        most = max(last - first + 1 for first, last in map(self.q_range, range(self.k_blocks)))
        return max(1, min(most, self.q_blocks // self.q_chunks))

    def k_block(self, i, visit, seen=None):
        """Returns the block of keys that block `i` of the queries visits, and whether it sees this block.

        Args:
          i: Block of queries.
          visit: Number of the visit.
          seen: First and last block of keys, `k_range` by default.
        """
        first, last = self.k_range(i) if seen is None else seen
        return jnp.maximum(jnp.minimum(first + visit, last), 0), first + visit <= last

    def q_block(self, j, chunk, visit, seen=None):
        """Returns the block of queries of a chunk that block `j` of the keys visits, and whether it sees the keys.

        Args:
          j: Block of keys.
          chunk: Chunk of queries.
          visit: Number of the visit.
          seen: First and last block of queries, `q_range` by default.
        """
        size = self.q_blocks // self.q_chunks
        first, last = self.q_range(j) if seen is None else seen
        first, last = jnp.maximum(first, chunk * size), jnp.minimum(last, (chunk + 1) * size - 1)
        # Without a visible block in the chunk, any of its blocks is read.
        block = jnp.clip(first + visit, chunk * size, jnp.maximum(last, chunk * size))
        return block, first + visit <= last

    @property
    def pairs(self) -> int:
        """Number of pairs of blocks that are computed, per row and head."""
        ranges = [self.k_range(i) for i in range(self.q_blocks)]
        return sum(max(0, int(last) - int(first) + 1) for first, last in ranges)


def table_size(padded: int, tile: int, window: int | None) -> int:
    """Returns the number of distances to one side in a table: of all positions, or of the tiles within a window.

    Args:
      padded: Number of positions in whole blocks.
      tile: Number of queries and keys of a tile.
      window: See `Mask`.
    """
    return padded if window is None else min(padded, pl.cdiv(window - 1 + tile, LANES) * LANES)


def _reach(index, block, other_block, other_blocks, before, after):
    """Returns the first and the last block with a position from `before` below a block to `after` above it."""
    start = index * block
    last = start + block - 1 + after
    if isinstance(index, int):
        return max(start - before, 0) // other_block, min(last // other_block, other_blocks - 1)
    first = jnp.maximum(start - before, 0)
    return jax.lax.div(first, other_block), jnp.minimum(jax.lax.div(last, other_block), other_blocks - 1)


@dataclasses.dataclass(frozen=True)
class ListGeometry:
    """Static sizes of attention with lists of blocks. The grid of a kernel is heads x rows x chunks of queries.

    Attributes:
      batch: Rows.
      length: Positions per row.
      heads: Heads.
      head_dim: Size of a head.
      size: Positions of a block.
      listed: Blocks of a list.
      chunk: Queries of a step, a multiple of 128 and of `size`.
      all_keys: Blocks of queries that see all keys.
      scale: Factor of the scores.
      dropout_rate: Rate of the dropout of each attention weight.
    """

    batch: int
    length: int
    heads: int
    head_dim: int
    size: int
    listed: int
    chunk: int
    all_keys: tuple[int, ...] = ()
    scale: float = 1.0
    dropout_rate: float = 0.0

    @property
    def num_chunks(self) -> int:
        """Number of chunks of queries."""
        return pl.cdiv(self.length, self.chunk)

    @property
    def padded(self) -> int:
        """Number of positions in whole chunks."""
        return self.num_chunks * self.chunk

    @property
    def num_blocks(self) -> int:
        """Number of blocks in whole chunks."""
        return self.padded // self.size

    @property
    def blocks_per_chunk(self) -> int:
        """Number of blocks of queries of a chunk."""
        return self.chunk // self.size

    @property
    def groups(self) -> int:
        """Number of lists that have all blocks of keys."""
        return pl.cdiv(self.num_blocks, self.listed)

    @property
    def pairs(self) -> int:
        """Number of pairs of blocks that are computed, per row and head."""
        return self.listed * (self.num_blocks + self.groups * len(self.all_keys))
