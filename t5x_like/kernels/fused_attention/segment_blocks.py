"""Which blocks share a segment, so that the kernels skip the others: packed rows, and padding at the end of rows.

The kernels read the first and the last block of keys of each block of queries, and of queries of each block of keys.
Segments grow along a row, except for padding, which has segment 0, so nearly all blocks in between have a common
segment. In any other order, more blocks in between may have none, but no block with one is left out.
"""

import contextlib
import contextvars
import functools
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.fused_attention.operands import NO_SEGMENT

# First and last block of each block of each row, one after another, as a kernel reads them from its scalar memory.
Ranges = Int[Array, " rows*blocks*2"]
Segments = Int[Array, "rows length"]

# Segments of padding, after all others.
_PADDING = 2**30
# Rows over which `expected_pairs` is a mean, whose standard error is then about 1 %.
_SAMPLED_ROWS = 256
_LOWEST, _HIGHEST = -(2**31), 2**31 - 1
_expected = contextvars.ContextVar("segments per row", default=1)


def key_ranges(query_segments: Segments, key_segments: Segments, geometry: Geometry) -> Ranges:
    """Returns the first and the last block of keys for each block of queries; the last is -1 if there is none.

    Args:
      query_segments: Segments of the queries, in whole blocks.
      key_segments: Segments of the keys, in whole blocks; `NO_SEGMENT` for keys that no query sees.
      geometry: Sizes and the structure of the mask.
    """
    return _ranges(_common(query_segments, key_segments, geometry, jnp))


def query_ranges(query_segments: Segments, key_segments: Segments, geometry: Geometry) -> Ranges:
    """Returns the first and the last block of queries for each block of keys; see `key_ranges`."""
    return _ranges(jnp.swapaxes(_common(query_segments, key_segments, geometry, jnp), 1, 2))


def visits(ranges: Ranges, largest: int) -> Int[Array, ""]:
    """Returns the number of blocks that the longest range has, from 1 to `largest`."""
    first, last = ranges.reshape(-1, 2).T
    return jnp.clip(jnp.max(last - first) + 1, 1, largest).astype(jnp.int32)


def at(ranges, row, block, blocks: int):
    """Returns the range of a block of a row, given the number of blocks of a row."""
    start = 2 * (row * blocks + block)
    return ranges[start], ranges[start + 1]


@contextlib.contextmanager
def expected(segments: int) -> Iterator[None]:
    """Lets the costs of kernels that are traced in this context be those of packed rows.

    Args:
      segments: Number of segments of a row, which is cut at random positions.
    """
    token = _expected.set(segments)
    try:
        yield
    finally:
        _expected.reset(token)


def expected_pairs(geometry: Geometry) -> float:
    """Returns the mean number of pairs of blocks that are computed, per row and head, for the expected segments."""
    return _pairs(geometry, _expected.get())


@functools.cache
def _pairs(g: Geometry, segments: int) -> float:
    if segments == 1 or not g.reads_ranges:
        return g.pairs
    cuts = np.random.default_rng(0).random((_SAMPLED_ROWS, segments - 1, 1))
    lengths = ((g.padded_q, g.q_len), (g.padded_k, g.kv_len))
    queries, keys = (1 + np.sum(cuts * length <= np.arange(padded), axis=1) for padded, length in lengths)
    first, last = _first_and_last(_common(queries, keys, g, np), np)
    return float(np.sum(last - first + 1)) / _SAMPLED_ROWS


def _common(query_segments, key_segments, g: Geometry, numpy) -> Bool[Array, "rows q_blocks k_blocks"]:
    """Returns which blocks are near enough to see each other, and whose segments overlap."""
    lows, highs = zip(
        *(_bounds(x, g_block, numpy) for x, g_block in ((query_segments, g.block_q), (key_segments, g.block_k))),
        strict=True,
    )
    overlaps = (lows[0][:, :, None] <= highs[1][:, None]) & (lows[1][:, None] <= highs[0][:, :, None])
    reach = [[first <= j <= last for j in range(g.k_blocks)] for first, last in map(g.k_range, range(g.q_blocks))]
    return overlaps & np.array(reach)


def _bounds(segments, block: int, numpy):
    """Returns the lowest and the highest segment of each block, without `NO_SEGMENT`."""
    segments = numpy.where(segments == 0, _PADDING, segments).reshape(len(segments), -1, block)
    is_none = segments == NO_SEGMENT
    low = numpy.where(is_none, _HIGHEST, segments).min(axis=2)
    return low, numpy.where(is_none, _LOWEST, segments).max(axis=2)


def _first_and_last(common: Bool[Array, "rows blocks others"], numpy):
    """Returns the first and the last other block of each block, 0 and -1 if there is none."""
    last = common.shape[2] - 1 - numpy.argmax(common[:, :, ::-1], axis=2)
    return numpy.argmax(common, axis=2), numpy.where(common.any(axis=2), last, -1)


def _ranges(common: Bool[Array, "rows blocks others"]) -> Ranges:
    return jnp.stack(_first_and_last(common, jnp), axis=2).astype(jnp.int32).ravel()
