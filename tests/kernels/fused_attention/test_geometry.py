"""Blocks, the blocks that a mask skips, and costs."""

import dataclasses
import itertools

import numpy as np
import pytest

from t5x_like.kernels.fused_attention import blocks, costs
from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.masks import Mask

GEOMETRY = Geometry(
    batch=3, q_len=512, kv_len=512, heads=4, kv_heads=2, head_dim=64, block_q=128, block_k=256, causal=True
)


@pytest.mark.parametrize(
    ("length", "largest", "expected"),
    [(114, 512, 128), (512, 512, 512), (640, 512, 384), (1024, 512, 512), (1, 256, 128)],
)
def test_blocks_cover_a_length_with_little_padding(length, largest, expected):
    assert blocks.block_size(length, largest) == expected


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("window", "after"), [(None, None), (1, None), (100, None), (129, 300), (300, None)])
@pytest.mark.parametrize("lengths", [(512, 512), (384, 1024), (1024, 256)])
def test_exactly_the_blocks_with_visible_pairs_are_computed(causal, window, after, lengths):
    sizes = dict(zip(("q_len", "kv_len"), lengths, strict=True))
    geometry = dataclasses.replace(GEOMETRY, causal=causal, window=window, window_after=after, **sizes)
    visible = Mask(causal=causal, window=window, window_after=after).materialize(*lengths)
    visible = np.ones((1, 1, *lengths), bool) if visible is None else np.asarray(visible)
    tiles = visible[0, 0].reshape(geometry.q_blocks, 128, geometry.k_blocks, 256).any(axis=(1, 3))
    expected = [(int(i), int(j)) for i, j in np.argwhere(tiles)]
    assert geometry.pairs == len(expected)
    visits = itertools.product(range(geometry.q_blocks), range(geometry.k_visits))
    blocks = [(i, *geometry.k_block(i, visit)) for i, visit in visits]
    assert [(i, int(j)) for i, j, is_computed in blocks if is_computed] == expected
    assert all(0 <= j < geometry.k_blocks for _, j, _ in blocks)
    for chunks in (1, geometry.q_blocks):
        geometry = dataclasses.replace(geometry, q_chunks=chunks)
        visits = itertools.product(range(chunks), range(geometry.k_blocks), range(geometry.q_visits))
        blocks = [(j, c, *geometry.q_block(j, c, visit)) for c, j, visit in visits]
        assert sorted((int(i), j) for j, _, i, is_computed in blocks if is_computed) == expected
        assert all(i * chunks // geometry.q_blocks == c for _, c, i, _ in blocks)


def test_steps_of_a_window_grow_with_the_length():
    short, long = (dataclasses.replace(GEOMETRY, causal=False, window=129, q_len=n, kv_len=n) for n in (1024, 8192))
    assert (short.k_visits, short.q_visits) == (long.k_visits, long.q_visits) == (2, 4)


def test_prefix_disables_skipping_of_later_keys():
    assert dataclasses.replace(GEOMETRY, prefix=True).pairs == GEOMETRY.q_blocks * GEOMETRY.k_blocks


@pytest.mark.parametrize(
    ("heads", "kv_heads", "expected"), [(24, 24, (2, 2, 12)), (25, 25, (1, 1, 25)), (32, 8, (4, 1, 8))]
)
def test_heads_of_a_step(heads, kv_heads, expected):
    geometry = dataclasses.replace(GEOMETRY, heads=heads, kv_heads=kv_heads)
    assert (geometry.step_heads, geometry.step_kv_heads, geometry.head_steps) == expected


def test_chunks_of_queries_fit_into_the_memory_of_the_core():
    long = dataclasses.replace(GEOMETRY, q_len=8192, kv_len=8192, heads=32, kv_heads=8, head_dim=128)
    for sizes in (*blocks.SIZES.values(), blocks.DEFAULT):
        chunks = blocks.q_chunks(long, 2, sizes)
        assert long.q_blocks % chunks == 0
        assert long.padded_q // chunks * 4 * 128 * 8 <= sizes.vmem_bytes / 2
    assert blocks.q_chunks(GEOMETRY, 2, blocks.DEFAULT) == 1


def test_costs_count_the_products_of_visible_blocks():
    # Blocks of 256 keys are visible to 4 blocks and to 2 blocks of 128 queries.
    scores = 3 * 4 * 6 * 128 * 256
    assert GEOMETRY.pairs == 6
    forward, backward = costs.forward(GEOMETRY, 2), costs.backward(GEOMETRY, 2)
    assert forward.flops == 2 * (2 * scores * 64) and backward.flops == 5 * (2 * scores * 64)
    assert forward.transcendentals == backward.transcendentals == scores


def test_costs_count_the_bytes_of_a_single_block():
    geometry = dataclasses.replace(GEOMETRY, block_q=512, block_k=512, causal=False, biased=True)
    queries, keys, statistics = 2 * 3 * 512 * 4 * 64, 2 * 3 * 512 * 2 * 64, 4 * 3 * 4 * 512
    assert costs.forward(geometry, 2).bytes_accessed == 2 * queries + 2 * keys + statistics + 4 * 4 * 1024
    # Read: q, the output's gradient, k, v, statistics and biases. Written: the gradients of q, k, v and the biases.
    expected = 3 * queries + 4 * keys + 2 * statistics + 4 * 4 * 1024 + 4 * 3 * 4 * 1024
    assert costs.backward(geometry, 2).bytes_accessed == expected


def test_elementwise_work_of_bias_and_dropout_counts_as_exponentials():
    geometry = Geometry(1, 512, 512, 2, 2, 64, block_q=512, block_k=512)
    scores = 2 * 512 * 512
    both = dataclasses.replace(geometry, biased=True, dropout_rate=0.1)
    assert costs.forward(both, 2).transcendentals == round(1.9 * scores)
    assert costs.backward(both, 2).transcendentals == round(3.0 * scores)


def test_costs_count_the_products_with_tables_of_distances():
    geometry = Geometry(1, 512, 512, 2, 2, 64, block_q=256, block_k=512, query_table=True, key_table=True)
    product = 2 * 2 * 512 * 512 * 64
    # 128 queries and 512 keys have 640 distances, 128 keys and 256 queries have 384.
    ranges = 640 / 512 + 384 / 256
    assert costs.forward(geometry, 2).flops == round((2 + ranges) * product)
    assert costs.backward(geometry, 2).flops == round((5 + 3 * ranges) * product)
    without = dataclasses.replace(geometry, query_table=False, key_table=False)
    tables = 2 * 2 * 64 * 1024
    assert costs.forward(geometry, 2).bytes_accessed - costs.forward(without, 2).bytes_accessed == 2 * tables
    assert costs.backward(geometry, 2).bytes_accessed - costs.backward(without, 2).bytes_accessed == (2 + 4) * tables
