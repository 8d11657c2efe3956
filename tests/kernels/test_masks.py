"""Dense matrices of structured masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.kernels.masks import Mask


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


def test_mask_structure_is_static_under_jit():
    mask = Mask(causal=True, key_valid=jnp.array([[True, False]]))
    assert jax.jit(lambda mask: mask)(mask).causal is True
    np.testing.assert_array_equal(jax.jit(lambda mask: mask.materialize(2, 2))(mask), mask.materialize(2, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query_segments": jnp.ones((1, 2), int)}, "must be given together"),
        ({"window": 0}, "window=0 is not a positive integer"),
        ({"prefix": jnp.array([[True]])}, "requires causal=True"),
    ],
)
def test_invalid_masks_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        Mask(**arguments)
