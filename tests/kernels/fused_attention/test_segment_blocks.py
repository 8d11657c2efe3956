"""Blocks that share segments: which the kernels visit, that nothing changes, and their costs."""

import dataclasses
import unittest.mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import Case
from scorings import by_keywords

from t5x_like.kernels.fused_attention import attention, costs, segment_blocks
from t5x_like.kernels.fused_attention.blocks import Sizes
from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.fused_attention.operands import NO_SEGMENT
from t5x_like.kernels.masks import Mask

fused_attention = by_keywords(attention.fused_attention)
LENGTH, BLOCK = 640, 128
GEOMETRY = Geometry(
    batch=2, q_len=LENGTH, kv_len=LENGTH, heads=2, kv_heads=2, head_dim=64, block_q=BLOCK, block_k=BLOCK,
    segments=True, by_segments=True,
)  # fmt: skip


def rows(*lengths):
    """Returns the segments of a row per tuple of lengths; the rest is padding."""
    return np.array([np.pad(np.repeat(range(1, len(row) + 1), row), (0, LENGTH - sum(row))) for row in lengths])


PACKED = rows((100, 200, 50, 250), (640,))
ROWS = {
    "packed": (PACKED, PACKED),
    "cross-attention": (rows((300, 300), (128, 512)), rows((30, 600), (500, 5))),
    "unordered": (PACKED[:, ::-1], PACKED),
    "padding alone": (np.zeros_like(PACKED), np.where(rows((300,), (5,)), 0, NO_SEGMENT)),
    "a row without keys": (PACKED, np.where(np.arange(2)[:, None], PACKED, NO_SEGMENT)),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_all_blocks_with_visible_pairs_are_visited_and_few_others(name, causal):
    queries, keys = ROWS[name]
    g = dataclasses.replace(GEOMETRY, causal=causal)
    visible = queries[:, :, None] == keys[:, None]
    if causal:
        visible &= np.tri(LENGTH, dtype=bool)
    blocks = visible.reshape(2, 5, BLOCK, 5, BLOCK).any(axis=(2, 4))
    for function, expected in (
        (segment_blocks.key_ranges, blocks), (segment_blocks.query_ranges, blocks.swapaxes(1, 2)),
    ):  # fmt: skip
        ranges = function(jnp.asarray(queries), jnp.asarray(keys), g)
        found = np.zeros_like(expected)
        for row, block in np.ndindex(2, 5):
            first, last = segment_blocks.at(np.asarray(ranges), row, block, 5)
            found[row, block, first : last + 1] = True
        assert (found | ~expected).all()
        if name != "unordered":
            assert found.sum() - expected.sum() <= 2  # intervals of segments that touch in a gap
        most = found.sum(axis=2).max()
        assert segment_blocks.visits(ranges, 5) == max(most, 1)
        assert segment_blocks.visits(ranges, 1) == 1


@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("packed", {"bias": True}),
        ("packed", {"causal": True, "heads": 4}),
        ("packed", {"window": 150}),
        ("cross-attention", {}),
        ("padding alone", {}),
    ],
)
def test_skipping_changes_no_bit(name, options, chunks):
    queries, keys = map(jnp.asarray, ROWS[name])
    case = Case(LENGTH, LENGTH, **options)
    mask = dataclasses.replace(case.mask(), query_segments=queries, key_segments=keys)
    sizes = Sizes(BLOCK, BLOCK, 1 if chunks else 16 * 2**20)
    run = lambda: case.run(fused_attention, mask, interpret=True, sizes=sizes)  # noqa: E731
    found = run()
    with unittest.mock.patch.object(Geometry, "reads_ranges", False):
        expected = run()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_kernels_compute_only_the_visited_blocks():
    case = Case(LENGTH, LENGTH, batch=1)
    q, k, v, *_ = case.arrays()
    mask = Mask(query_segments=jnp.asarray(PACKED[:1]), key_segments=jnp.asarray(PACKED[:1]))
    # Keys of other segments are not even read: NaN in them reaches no query, as it does by products with weight 0.
    v = v.at[:, :100].set(jnp.nan)
    sizes = Sizes(BLOCK, BLOCK, 16 * 2**20)
    output = fused_attention(q, k, v, mask=mask, interpret=True, sizes=sizes)
    assert np.isfinite(output[:, 384:600]).all() and np.isnan(output[:, :100]).all()


def test_costs_are_of_the_expected_segments():
    whole = costs.forward(GEOMETRY, 2)
    with segment_blocks.expected(2):
        packed = costs.forward(GEOMETRY, 2)
        causal = costs.backward(dataclasses.replace(GEOMETRY, causal=True), 2)
        assert costs.forward(dataclasses.replace(GEOMETRY, by_segments=False), 2) == whole
    # A cut in block i of 5 has i blocks before it and 4 - i after it: these see each other and the block of the cut.
    expected = sum(i**2 + (4 - i) ** 2 + 2 * 4 + 1 for i in range(5)) / 5
    assert packed.flops / whole.flops == pytest.approx(expected / 25, rel=0.02)
    assert packed.transcendentals / whole.transcendentals == pytest.approx(expected / 25, rel=0.02)
    assert packed.bytes_accessed < whole.bytes_accessed
    # Half of the pairs of different blocks, and all of those of a block with itself.
    assert causal.flops / costs.backward(GEOMETRY, 2).flops == pytest.approx((expected + 5) / 2 / 25, rel=0.02)


def test_jit_does_not_retrace_for_other_rows():
    case = Case(LENGTH, LENGTH)
    q, k, v, *_ = case.arrays()
    sizes = Sizes(BLOCK, BLOCK, 16 * 2**20)

    @jax.jit
    def run(segments):
        mask = Mask(query_segments=segments, key_segments=segments)
        return fused_attention(q, k, v, mask=mask, interpret=True, sizes=sizes)

    one, other = run(jnp.asarray(PACKED)), run(jnp.asarray(PACKED[::-1]))
    assert run._cache_size() == 1
    assert not np.array_equal(one, other)
