"""T5's relative position buckets and biases, and rotations by positions, against the published formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.layers.positions import (
    RelativePositionBias,
    alibi_slopes,
    relative_position_bucket,
    symmetric_alibi,
)
from t5x_like.layers.rotary import Rotary


def test_bidirectional_buckets():
    # 16 buckets per direction: 8 for the distances 0 to 7, then 8 + floor(8 · log(d / 8) / log(128 / 8)), at most 15.
    distances = np.array([0, 1, 7, 8, 11, 12, 16, 23, 32, 64, 127, 128, 5000])
    expected = np.array([0, 1, 7, 8, 8, 9, 10, 11, 12, 14, 15, 15, 15])
    np.testing.assert_array_equal(relative_position_bucket(-distances, bidirectional=True), expected)
    np.testing.assert_array_equal(relative_position_bucket(distances[1:], bidirectional=True), expected[1:] + 16)


def test_alibi():
    np.testing.assert_allclose(alibi_slopes(8), 2.0 ** -np.arange(1, 9), rtol=1e-12)  # the paper's example
    # 12 heads: those of 8, and every other one of 16 heads from the first on, as in the released code.
    np.testing.assert_allclose(alibi_slopes(12)[8:], 2.0 ** np.array([-0.5, -1.5, -2.5, -3.5]), rtol=1e-12)
    assert alibi_slopes(1) == 2.0**-8
    bias = symmetric_alibi(2, 3, 4).materialize(jnp.zeros((1, 3, 2, 1)), jnp.zeros((1, 4, 2, 1)))
    distances = np.abs(np.arange(3)[:, None] - np.arange(4))
    np.testing.assert_allclose(bias[0], -(2.0 ** np.array([-4, -8]))[:, None, None] * distances, rtol=1e-6)


def test_odd_number_of_buckets():
    distances = np.array([0, 1, 2, 4, 11, 100])
    # 7 // 2 = 3 buckets per direction: 1 for the distance 0, then 1 + floor(2 · log(d) / log(20)), at most 2.
    expected = np.array([0, 1, 1, 1, 2, 2])
    sizes = dict(num_buckets=7, max_distance=20)
    np.testing.assert_array_equal(relative_position_bucket(-distances, bidirectional=True, **sizes), expected)
    np.testing.assert_array_equal(
        relative_position_bucket(distances[1:], bidirectional=True, **sizes), expected[1:] + 3
    )
    # 7 buckets: 3 for the distances 0 to 2, then 3 + floor(4 · log(d / 3) / log(20 / 3)), at most 6.
    expected = np.array([0, 1, 2, 3, 5, 6])
    np.testing.assert_array_equal(relative_position_bucket(-distances, bidirectional=False, **sizes), expected)


def test_causal_buckets():
    # 32 buckets: 16 for the distances 0 to 15, then 16 + floor(16 · log(d / 16) / log(128 / 16)), at most 31.
    distances = np.array([0, 15, 16, 18, 19, 32, 64, 127, 128, 5000])
    expected = np.array([0, 15, 16, 16, 17, 21, 26, 31, 31, 31])
    np.testing.assert_array_equal(relative_position_bucket(-distances, bidirectional=False), expected)
    assert (relative_position_bucket(distances, bidirectional=False) == 0).all()


@pytest.mark.parametrize("bidirectional", [True, False])
def test_bias_equals_the_table_entry_of_the_bucket(bidirectional):
    module = RelativePositionBias(3, bidirectional=bidirectional, num_buckets=8, max_distance=20, key=jax.random.key(0))
    q_len = kv_len = 30
    relative = np.arange(kv_len)[None] - np.arange(q_len)[:, None]
    buckets = relative_position_bucket(relative, bidirectional=bidirectional, num_buckets=8, max_distance=20)
    expected = np.asarray(module.table[...])[:, buckets][None]
    q, k = jnp.zeros((1, q_len, 3, 1)), jnp.zeros((1, kv_len, 3, 1))
    bias = module(q_len, kv_len).materialize(q, k)
    np.testing.assert_array_equal(bias, expected)
    for position in (0, 7, 29):
        step = jax.jit(module.at, static_argnums=1)(jnp.int32(position), kv_len)
        np.testing.assert_array_equal(step.values, expected[:, :, position : position + 1])


def test_initial_table_has_the_distribution_of_t5x():
    table = np.asarray(RelativePositionBias(64, bidirectional=True, num_buckets=256, key=jax.random.key(0)).table[...])
    limit = np.sqrt(3 * 2 / (64 + 256))  # uniform with variance 1 / fan_avg
    assert limit * 0.99 < np.abs(table).max() <= limit
    assert abs(table.std() / (limit / np.sqrt(3)) - 1) < 0.02


def test_rotation_multiplies_complex_numbers():
    """Entry i and entry i + 3 are the real and the imaginary part of a number that is multiplied by e^(i · angle)."""
    x = np.random.default_rng(0).normal(size=(1, 4, 2, 6)).astype(np.float32)
    positions = np.array([[0, 1, 5, 2]])
    angles = positions[:, :, None, None] * 100.0 ** (-2 * np.arange(3) / 6)
    rotated = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * angles)
    expected = np.concatenate([rotated.real, rotated.imag], axis=-1)
    np.testing.assert_allclose(Rotary(theta=100.0)(x, positions), expected, rtol=1e-5, atol=1e-6)
