"""Dense matrices of structured masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.kernels.masks import BlockLists, Mask


def rows(mask, q_len, kv_len):
    """Returns the matrix as strings of `x` (visible) and `.` (masked)."""
    matrix = np.broadcast_to(mask.materialize(q_len, kv_len), (1, 1, q_len, kv_len))[0, 0]
    return ["".join("x" if visible else "." for visible in row) for row in matrix]


def test_empty_mask_has_no_matrix():
    assert Mask().materialize(3, 4) is None


def test_causal():
    assert rows(Mask(causal=True), 3, 3) == ["x..", "xx.", "xxx"]


def test_prefix_is_visible_to_all_queries():
    assert rows(Mask(causal=True, prefix=jnp.array([[True, True, False, False]])), 4, 4) == [
        "xx..",
        "xx..",
        "xxx.",
        "xxxx",
    ]


def test_prefix_applies_within_packed_segments():
    segments = jnp.array([[1, 1, 2, 2, 2]])
    prefix = jnp.array([[True, False, True, True, False]])
    mask = Mask(causal=True, prefix=prefix, query_segments=segments, key_segments=segments)
    assert rows(mask, 5, 5) == ["x....", "xx...", "..xx.", "..xx.", "..xxx"]


def test_window_of_another_size_after_the_query():
    assert rows(Mask(window=1, window_after=3), 4, 4) == ["xxx.", ".xxx", "..xx", "...x"]
    with pytest.raises(ValueError, match="window_after=3 requires window"):
        Mask(window_after=3)


def test_window():
    assert rows(Mask(window=2), 4, 4) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert rows(Mask(causal=True, window=2), 4, 4) == ["x...", "xx..", ".xx.", "..xx"]


def test_segments_are_isolated():
    segments = jnp.array([[1, 1, 2, 0]])
    assert rows(Mask(query_segments=segments, key_segments=segments), 4, 4) == ["xx..", "xx..", "..x.", "...x"]
    cross = Mask(query_segments=jnp.array([[1, 2]]), key_segments=jnp.array([[1, 1, 2, 0]]))
    assert rows(cross, 2, 4) == ["xx..", "..x."]


def test_invalid_keys_are_masked_for_all_queries():
    assert rows(Mask(key_valid=jnp.array([[True, True, False]])), 2, 3) == ["xx.", "xx."]


def test_all_conditions_apply():
    dense = jnp.array([[[0, 1, 1], [1, 1, 1], [1, 0, 1]]], bool)
    assert rows(Mask(causal=True, dense=dense, key_valid=jnp.array([[True, True, False]])), 3, 3) == [
        "...",
        "xx.",
        "x..",
    ]


# UniLM's masks of a row with two source tokens and two target tokens (Dong et al. 2019, figure 1).
UNILM = {
    "bidirectional": ([0, 0, 0, 0], ["xxxx", "xxxx", "xxxx", "xxxx"]),
    "left to right": ([0, 1, 2, 3], ["x...", "xx..", "xxx.", "xxxx"]),
    "right to left": ([3, 2, 1, 0], ["xxxx", ".xxx", "..xx", "...x"]),
    "sequence to sequence": ([0, 0, 1, 2], ["xx..", "xx..", "xxx.", "xxxx"]),
}


@pytest.mark.parametrize(("ranks", "expected"), UNILM.values(), ids=UNILM)
def test_ranks_are_the_masks_of_unilm(ranks, expected):
    ranks = jnp.array([ranks])
    assert rows(Mask(query_ranks=ranks, key_ranks=ranks), 4, 4) == expected


def test_strict_ranks_are_the_mask_of_a_permutation():
    order = jnp.array([[2, 0, 3, 1]])  # the second token is predicted first, and then the last one
    assert rows(Mask(query_ranks=order, key_ranks=order, strict_ranks=True), 4, 4) == [".x.x", "....", "xx.x", ".x.."]


def test_global_keys_are_visible_outside_of_windows_and_blocks():
    first = jnp.array([[True, False, False, False, False]])
    assert rows(Mask(window=1, global_keys=first), 5, 5) == ["x....", "xx...", "x.x..", "x..x.", "x...x"]
    blocks = BlockLists(jnp.array([[[0, -1], [1, 2], [2, -1]]]), 2)
    assert rows(Mask(blocks=blocks), 5, 5) == ["xx...", "xx...", "..xxx", "..xxx", "....x"]
    assert rows(Mask(blocks=blocks, global_keys=first), 5, 5) == ["xx...", "xx...", "x.xxx", "x.xxx", "x...x"]


def test_block_lists_that_are_too_short_raise():
    with pytest.raises(ValueError, match="2 lists of blocks of 2 do not cover 5 queries"):
        Mask(blocks=BlockLists(jnp.zeros((1, 2, 1), int), 2)).materialize(5, 5)


def test_conditions_are_the_names_of_what_is_given():
    assert Mask().conditions == frozenset()
    ranks = jnp.zeros((1, 2), int)
    mask = Mask(causal=True, window=2, query_ranks=ranks, key_ranks=ranks)
    assert mask.conditions == {"causal", "window", "ranks"}


def test_mask_structure_is_static_under_jit():
    mask = Mask(causal=True, key_valid=jnp.array([[True, False]]))
    assert jax.jit(lambda mask: mask)(mask).causal is True
    np.testing.assert_array_equal(jax.jit(lambda mask: mask.materialize(2, 2))(mask), mask.materialize(2, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query_segments": jnp.ones((1, 2), int)}, "must be given together"),
        ({"query_ranks": jnp.ones((1, 2), int)}, "query_ranks and key_ranks of a mask must be given together"),
        ({"strict_ranks": True}, "strict_ranks requires query_ranks and key_ranks"),
        ({"global_keys": jnp.ones((1, 2), bool)}, "global_keys requires window or blocks"),
        ({"window": 0}, "window=0 is not a positive integer"),
        ({"prefix": jnp.array([[True]])}, "requires causal=True"),
    ],
)
def test_invalid_masks_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        Mask(**arguments)
