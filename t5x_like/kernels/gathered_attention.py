"""Attention that scores only the blocks of keys that a mask shows, with plain matrix products on any device.

Queries are split into blocks. The keys that a block of queries may see are gathered: the neighboring blocks within a
window (Longformer, Beltagy et al. 2020, arXiv:2004.05150, section 3.1), or the listed blocks (BigBird, Zaheer et al.
2020, arXiv:2007.14062, section 2), and the global keys of the row. Operations and memory grow with the length of a row,
not with its square.
"""

import dataclasses
import functools
import itertools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from t5x_like.kernels import score_products
from t5x_like.kernels.contraction import widened
from t5x_like.kernels.masks import MASK_VALUE, Mask
from t5x_like.kernels.reference_attention import reference
from t5x_like.kernels.scoring import Scoring
from t5x_like.kernels.softmax import softmax

TITLE = "gathered blocks of keys"

# The conditions of a mask that the gathered form reads.
MASKS = frozenset({"causal", "window", "segments", "key_valid", "global_keys", "blocks"})
# The conditions that hide whole blocks of keys.
SPARSE = frozenset({"window", "blocks"})
# Smallest and largest number of positions of a block within a window. Larger blocks visit more keys outside of the
# window; the products of smaller ones run at a lower rate.
SMALLEST_BLOCK, LARGEST_BLOCK = 16, 128
# A row must have at least this many times as many keys as a query visits, since gathering costs as much as some of the
# products.
MIN_SAVING = 1.5

# Dimensions of products per row, head and block of queries.
_BATCH = ((0, 1, 2), (0, 1, 2))


def block_size(mask: Mask) -> int:
    """Returns the number of positions of a block.

    For windows, it is the largest power of two up to half of one side, between `SMALLEST_BLOCK` and `LARGEST_BLOCK`.
    """
    if mask.blocks is not None:
        return mask.blocks.size
    half = (mask.window - 1) // 2
    return min(max(1 << half.bit_length() >> 1, SMALLEST_BLOCK), LARGEST_BLOCK)


def _neighbors(mask: Mask) -> tuple[int, int]:
    """Returns how many blocks before and after its own a block of queries sees within a window."""
    reach = -(-(mask.window - 1) // block_size(mask))
    return reach, 0 if mask.causal else reach


def visited_keys(mask: Mask) -> int:
    """Returns the number of keys that the gathered form scores per query."""
    blocks = sum(_neighbors(mask)) + 1 if mask.blocks is None else mask.blocks.keys.shape[2]
    return blocks * block_size(mask) + (mask.max_global_keys or 0)


def unsupported_reason(
    mesh: Mesh | None,
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    scoring: Scoring,
) -> str | None:
    """Returns why the gathered form does not compute an attention, or computes it no faster, or None.

    The form does not depend on `mesh`. `kernels.attention` describes the other arguments; `q` and `k` may be shapes.
    """
    mask, dropout, length, kv_len = scoring.mask, scoring.dropout, q.shape[1], k.shape[1]
    if len(given := mask.conditions & SPARSE) != 1:
        return f"its mask has {'both' if given else 'neither'} a window {'and' if given else 'nor'} lists of blocks"
    if others := mask.conditions - MASKS:
        return f"gathered keys do not have these conditions of the mask: {', '.join(sorted(others))}"
    if mask.causal and not mask.conditions.isdisjoint({"global_keys", "blocks"}):
        return "its mask is causal, with global keys or lists of blocks"
    if mask.global_keys is not None and mask.max_global_keys is None:
        return "the number of its global keys is not limited"
    if scoring.bias is not None:
        return "it has a bias"
    if dropout.rate and dropout.broadcast_dims:
        return "its dropout shares decisions"
    if length != kv_len:
        return f"it has {length} queries and {kv_len} keys"
    if visited_keys(mask) * MIN_SAVING > kv_len:
        return f"a query would visit {visited_keys(mask)} of {kv_len} keys"
    return None


def attention(
    q: Float[Array, "batch length heads kv"],
    k: Float[Array, "batch length kv_heads kv"],
    v: Float[Array, "batch length kv_heads kv"],
    scoring: Scoring,
) -> Float[Array, "batch length heads kv"]:
    """Computes `kernels.attention.attention` for the visible blocks of keys.

    The result equals the reference up to rounding, with two exceptions. A query that sees no key averages the values of
    the keys that it visits; such queries are padding. Dropout has the same distribution and other random bits.
    `unsupported_reason` says what a scoring may have.
    """
    mask, length = scoring.mask, q.shape[1]
    gather = _Gather(mask, length)
    output = _gathered(q, k, v, gather, scoring)
    if not gather.all_keys:
        return output[:, :length]
    positions = np.concatenate([gather.positions_of(block) for block in gather.all_keys])
    positions = positions[positions < length]
    segments = None if mask.query_segments is None else mask.query_segments[:, positions]
    rest = Mask(query_segments=segments, key_segments=mask.key_segments, key_valid=mask.key_valid)
    second_key = None if scoring.dropout_key is None else jax.random.fold_in(scoring.dropout_key, 1)
    second = dataclasses.replace(scoring, mask=rest, dropout_key=second_key)
    others = reference(q[:, positions], k, v, second).output
    return _interleave(output, others, gather)[:, :length]


def _gathered(q, k, v, gather: "_Gather", scoring: Scoring) -> Array:
    """Computes the attention of the blocks of queries that see some keys only; see `attention`."""
    batch, _, heads, head_dim = q.shape
    blocks = gather.mask.blocks
    if blocks is not None and len(blocks.keys) > 1:  # the heads of a group see different keys
        k, v = (jnp.repeat(x, heads // k.shape[2], axis=2) for x in (k, v))
    kv_heads, size, number = k.shape[2], gather.size, len(gather.queries)
    group = heads // kv_heads
    # The queries of a block, for all heads of a group, become the rows of one product.
    rows = gather.query_blocks(q).reshape(batch, kv_heads, group, number, size, head_dim)
    rows = jnp.swapaxes(rows, 2, 3).reshape(batch, kv_heads, number, group * size, head_dim)
    scores = scoring.scaled(widened(_products, rows, gather.keys(k), jnp.float32))
    hidden = jnp.where(gather.visible(), 0.0, MASK_VALUE)
    scores = scores.reshape(batch, kv_heads, number, group, size, -1) + hidden[:, :, :, None]
    weights = softmax(scores.reshape(batch, kv_heads, number, group * size, -1))
    weights = scoring.dropout(weights, scoring.dropout_key).astype(v.dtype)
    output = score_products.average(weights, gather.keys(v)).reshape(batch, kv_heads, number, group, size, head_dim)
    return output.transpose(0, 2, 4, 1, 3, 5).reshape(batch, number * size, heads, head_dim)


def _products(rows: Array, keys: Array, *, result_dtype: DTypeLike | None) -> Array:
    return lax.dot_general(rows, keys, (((4,), (4,)), _BATCH), preferred_element_type=result_dtype)


def _interleave(output: Array, others: Array, gather: "_Gather") -> Array:
    """Joins the blocks of queries that see some keys with those that see all keys, in the order of positions."""
    sources, parts = {False: output, True: others}, []
    for is_other, run in itertools.groupby(range(gather.number), lambda block: block in gather.all_keys):
        taken = len(list(run)) * gather.size
        parts.append(sources[is_other][:, :taken])
        sources[is_other] = sources[is_other][:, taken:]
    return jnp.concatenate(parts, axis=1)


class _Gather:
    """Gathers arrays, such as keys and segments, by the keys that each block of queries visits.

    Args:
      mask: The keys that each query may attend to.
      length: Number of positions of a row.

    Attributes:
      size: Number of positions of a block.
      number: Number of blocks of a row.
      all_keys: Blocks of queries that see all keys, which are not gathered.
      queries: The other blocks of queries.
    """

    def __init__(self, mask: Mask, length: int):
        if mask.blocks is not None:
            mask.blocks.check(length)
        self.mask, self.length = mask, length
        self.size = block_size(mask)
        self.number = -(-length // self.size)
        self.all_keys = () if mask.blocks is None else tuple(sorted(set(mask.blocks.all_keys)))
        self.queries = np.array([block for block in range(self.number) if block not in self.all_keys])
        self.global_positions = self.has_global = None
        if mask.global_keys is not None:
            self.global_positions, self.has_global = mask.global_positions

    def positions_of(self, blocks: int | np.ndarray) -> np.ndarray:
        """Returns the positions of blocks, as the last dimension."""
        return np.asarray(blocks)[..., None] * self.size + np.arange(self.size)

    def query_blocks(self, x: Float[Array, "batch length heads kv"]) -> Float[Array, "batch heads blocks size kv"]:
        """Returns the blocks of queries of an array per query."""
        blocks = _blocks(x, self.size, self.number)
        return blocks[:, :, self.queries] if self.all_keys else blocks

    def keys(self, x: Float[Array, "batch length heads kv"]) -> Float[Array, "batch heads blocks visited kv"]:
        """Returns the visited blocks of an array per key, followed by the global keys."""
        gathered = self._visited(_blocks(x, self.size, self.number))
        if self.global_positions is None:
            return gathered
        shared = jnp.take_along_axis(x, self.global_positions[:, :, None, None], axis=1).swapaxes(1, 2)[:, :, None]
        shared = jnp.broadcast_to(shared, (*gathered.shape[:3], *shared.shape[3:]))
        return jnp.concatenate([gathered, shared], axis=3)

    def _visited(self, x: Float[Array, "batch heads blocks size kv"]) -> Float[Array, "batch heads blocks visited kv"]:
        """Returns the blocks that each block visits, one after another."""
        if self.mask.blocks is None:
            before, after = _neighbors(self.mask)
            x = jnp.pad(x, ((0, 0), (0, 0), (before, after), (0, 0), (0, 0)))
            shifted = [x[:, :, i : i + self.number] for i in range(before + after + 1)]
            return jnp.concatenate(shifted, axis=3)
        lists = jnp.maximum(self._lists, 0)
        # Values that all heads share are gathered by the lists of each head.
        x = jnp.broadcast_to(x, (len(x), max(x.shape[1], len(lists)), *x.shape[2:]))
        if len(lists) == 1:
            visited = jnp.take(x, lists[0], axis=2)
        else:
            visited = jax.vmap(lambda x, listed: jnp.take(x, listed, axis=1), in_axes=(1, 0), out_axes=1)(x, lists)
        return visited.reshape(*visited.shape[:3], -1, x.shape[-1])

    @property
    def _lists(self) -> Int[Array, "heads blocks listed"]:
        return self.mask.blocks.keys[:, self.queries]

    def visible(self) -> Bool[Array, "rows heads blocks size visited"]:
        """Returns which of the gathered keys each query sees; `rows` and `heads` may be 1."""
        mask = self.mask
        conditions = [self._by_position()]
        if mask.query_segments is not None:
            segments = self.query_blocks(mask.query_segments[:, :, None, None])
            conditions.append(segments == self._per_key(mask.key_segments))
        if mask.key_valid is not None:
            conditions.append(self._per_key(mask.key_valid))
        return functools.reduce(operator.and_, conditions)

    def _per_key(self, x: Array) -> Array:
        """Gathers a value per key, `[batch length]`, to `[batch heads blocks 1 visited]`."""
        return jnp.swapaxes(self.keys(x[:, :, None, None]), 3, 4)

    def _by_position(self) -> Bool[Array, "rows heads blocks size visited"]:
        """Returns the gathered keys that each query sees by their positions, and the global keys."""
        mask = self.mask
        if mask.blocks is None:
            before, after = _neighbors(mask)
            starts = (np.arange(-before, after + 1) + self.queries[:, None])[None]
        else:
            starts = self._lists
        keys = (starts[..., None] * self.size + np.arange(self.size)).reshape(1, *starts.shape[:2], 1, -1)
        queries = self.positions_of(self.queries)[None, None, :, :, None]
        visible = jnp.asarray((keys >= 0) & (keys < self.length))
        if mask.window is not None:
            visible &= jnp.abs(queries - keys) < mask.window
        if mask.causal:
            visible &= keys <= queries
        return visible if mask.global_keys is None else self._with_global(queries, visible)

    def _with_global(self, queries: Array, visible: Array) -> Array:
        """Appends which global keys each query sees: the ones that it does not see in the blocks that it visits."""
        positions, has_global = (x[:, None, None, None] for x in (self.global_positions, self.has_global))
        if self.mask.window is not None:
            is_visited = jnp.abs(queries - positions) < self.mask.window
        else:
            listed = self._lists[None, :, :, :, None] == positions // self.size
            is_visited = jnp.any(listed, axis=3, keepdims=True)
        added = has_global & ~is_visited
        shape = jnp.broadcast_shapes(visible.shape[:-1], added.shape[:-1])
        return jnp.concatenate([jnp.broadcast_to(x, (*shape, x.shape[-1])) for x in (visible, added)], axis=-1)


def _blocks(x: Float[Array, "batch length heads kv"], size: int, number: int) -> Array:
    """Splits positions into blocks, `[batch heads blocks size kv]`, and fills the last one with zeros."""
    batch, length, heads, dim = x.shape
    x = jnp.pad(jnp.swapaxes(x, 1, 2), ((0, 0), (0, 0), (0, number * size - length), (0, 0)))
    return x.reshape(batch, heads, number, size, dim)
