"""Dropout rate, broadcasting, dtype and keys."""

import jax
import jax.numpy as jnp
import numpy as np

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


def test_split_key_returns_distinct_keys_or_nones():
    first, second = split_key(KEY, 2)
    assert not np.array_equal(jax.random.key_data(first), jax.random.key_data(second))
    assert split_key(None, 3) == (None, None, None)
