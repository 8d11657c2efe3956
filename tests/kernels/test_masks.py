"""Masks against matrices written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.kernels.masks import Mask


def rows(mask, q_len, kv_len):
    """The matrix as rows of `x` (visible) and `.` (hidden)."""
    matrix = np.broadcast_to(mask.materialise(q_len, kv_len), (1, 1, q_len, kv_len))[0, 0]
    return ["".join("x" if visible else "." for visible in row) for row in matrix]


def test_nothing_hidden_needs_no_matrix():
    assert Mask().materialise(3, 4) is None


def test_causal():
    assert rows(Mask(causal=True), 3, 3) == ["x..", "xx.", "xxx"]


def test_prefix_is_seen_by_all():
    assert rows(Mask(causal=True, prefix=jnp.array([[True, True, False, False]])), 4, 4) == [
        "xx..",
        "xx..",
        "xxx.",
        "xxxx",
    ]


def test_a_packed_row_has_a_prefix_in_each_segment():
    segments = jnp.array([[1, 1, 2, 2, 2]])
    prefix = jnp.array([[True, False, True, True, False]])
    mask = Mask(causal=True, prefix=prefix, query_segments=segments, key_segments=segments)
    assert rows(mask, 5, 5) == ["x....", "xx...", "..xx.", "..xx.", "..xxx"]


def test_window():
    assert rows(Mask(window=2), 4, 4) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert rows(Mask(causal=True, window=2), 4, 4) == ["x...", "xx..", ".xx.", "..xx"]


def test_segments_isolate_and_padding_sees_padding():
    segments = jnp.array([[1, 1, 2, 0]])
    assert rows(Mask(query_segments=segments, key_segments=segments), 4, 4) == ["xx..", "xx..", "..x.", "...x"]
    cross = Mask(query_segments=jnp.array([[1, 2]]), key_segments=jnp.array([[1, 1, 2, 0]]))
    assert rows(cross, 2, 4) == ["xx..", "..x."]


def test_padded_keys_are_hidden_from_all():
    assert rows(Mask(key_valid=jnp.array([[True, True, False]])), 2, 3) == ["xx.", "xx."]


def test_conditions_add_up():
    dense = jnp.array([[[0, 1, 1], [1, 1, 1], [1, 0, 1]]], bool)
    assert rows(Mask(causal=True, dense=dense, key_valid=jnp.array([[True, True, False]])), 3, 3) == [
        "...",
        "xx.",
        "x..",
    ]


def test_a_mask_passes_through_jit_with_its_structure():
    mask = Mask(causal=True, key_valid=jnp.array([[True, False]]))
    assert jax.jit(lambda mask: mask)(mask).causal is True
    np.testing.assert_array_equal(jax.jit(lambda mask: mask.materialise(2, 2))(mask), mask.materialise(2, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query_segments": jnp.ones((1, 2), int)}, "together or neither"),
        ({"window": 0}, "window=0 must be at least 1"),
        ({"prefix": jnp.array([[True]])}, "needs causal=True"),
    ],
)
def test_masks_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Mask(**arguments)
