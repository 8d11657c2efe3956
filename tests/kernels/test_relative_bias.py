"""Matrices with constant diagonals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.kernels.relative_bias import RelativeBias, toeplitz


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (3, 3), (2, 5), (5, 2)])
def test_toeplitz_values_and_gradient(q_len, kv_len):
    values = np.arange(2 * (q_len + kv_len - 1), dtype=np.float32).reshape(2, -1) + 1
    matrix = toeplitz(jnp.asarray(values), q_len, kv_len)
    for h, i, j in np.ndindex(2, q_len, kv_len):
        assert matrix[h, i, j] == values[h, j - i + q_len - 1]
    # The gradient of a relative position is the sum over its diagonal.
    counts = jax.grad(lambda values: jnp.sum(toeplitz(values, q_len, kv_len)[0]))(jnp.asarray(values))[0]
    np.testing.assert_array_equal(
        counts, [np.trace(np.ones((q_len, kv_len)), offset=d) for d in range(1 - q_len, kv_len)]
    )


def test_bias_is_shared_by_all_rows():
    values = jnp.arange(8.0).reshape(2, 4)
    q, k = jnp.zeros((1, 3, 2, 1)), jnp.zeros((1, 2, 2, 1))
    np.testing.assert_array_equal(RelativeBias(values).materialize(q, k), toeplitz(values, 3, 2)[None])
