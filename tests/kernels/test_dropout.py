"""Dropout rate, broadcasting, dtype, gradients, devices and keys."""

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import partitioning
from t5x_like.kernels.dropout import dropout, split_key

KEY = jax.random.key(0)


def test_rate_and_mean():
    y = dropout(jnp.ones((200, 200)), 0.3, KEY)
    assert abs(np.mean(y == 0) - 0.3) < 0.01
    np.testing.assert_allclose(y[y != 0], 1 / 0.7, rtol=1e-6)


def test_decisions_are_shared_along_broadcast_dims():
    y = np.asarray(dropout(jnp.ones((3, 50, 40)), 0.5, KEY, broadcast_dims=(-2,)))
    assert (y == y[:, :1]).all()
    assert len(np.unique(y, axis=0)) == 3


def test_is_the_identity_without_key_or_rate():
    x = jnp.ones((4, 4))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, KEY) is x


def test_preserves_dtype():
    assert dropout(jnp.ones(8, jnp.bfloat16), 0.1, KEY).dtype == jnp.bfloat16


def kept(key, shape=(64, 64, 64), rate=0.3):
    return np.asarray(dropout(jnp.ones(shape), rate, key) != 0)


def test_decisions_are_independent():
    decisions, variance = kept(KEY), 0.3 * 0.7
    # Of neighbors along each dimension, of the corners of rectangles, and of two keys.
    pairs = [
        *(decisions == np.roll(decisions, 1, axis=axis) for axis in range(3)),
        decisions ^ np.roll(decisions, 1, axis=1) == np.roll(decisions ^ np.roll(decisions, 1, axis=1), 1, axis=2),
        decisions == kept(jax.random.key(1)),
    ]
    equal = 1 - 2 * variance
    expected = [equal, equal, equal, 1 - 2 * equal * (1 - equal), equal]
    tolerance = 4 * np.sqrt(0.25 / decisions.size)  # four standard deviations of the mean of independent decisions
    np.testing.assert_allclose([pair.mean() for pair in pairs], expected, atol=tolerance)
    for axis in range(3):  # no row or column is dropped more often than others
        others = tuple(other for other in range(3) if other != axis)
        spread = decisions.mean(axis=others).std()
        assert spread < 2 * np.sqrt(variance / 64**2)


def test_gradient_repeats_the_decisions_without_a_stored_mask():
    x = jax.random.normal(jax.random.key(1), (4, 32, 16))
    y, pullback = jax.vjp(lambda x: dropout(x, 0.3, KEY, broadcast_dims=(-2,)), x)
    np.testing.assert_array_equal(pullback(x)[0], y)
    assert max(leaf.size for leaf in jax.tree.leaves(pullback)) == 2


def test_decisions_do_not_depend_on_devices():
    x = jnp.ones((8, 16, 32))
    partitioner = partitioning.Partitioner(ici={"fsdp": -1})

    def sharded(x):
        return dropout(partitioning.shard(x, "batch", None, None), 0.3, KEY)

    assert partitioner.mesh.size > 1
    np.testing.assert_array_equal(partitioner.jit(sharded)(x), dropout(x, 0.3, KEY))


def test_split_key_returns_distinct_keys_or_nones():
    first, second = split_key(KEY, 2)
    assert not np.array_equal(jax.random.key_data(first), jax.random.key_data(second))
    assert split_key(None, 3) == (None, None, None)
