"""Attention to a window and to global tokens equals a softmax over all keys, computed densely."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.kernels import local_global_attention
from t5x_like.kernels.dropout import NO_DROPOUT
from t5x_like.kernels.local_global_attention import GlobalKeys, Window

ROWS, LENGTH, GLOBALS, HEADS, SIZE, TABLE = 2, 23, 4, 3, 5, 7
RNG = np.random.default_rng(0)
SEGMENTS = np.array([[1] * 9 + [2] * 10 + [0] * 4, [1] * 23])
IS_VISIBLE = RNG.integers(0, 2, (ROWS, LENGTH, GLOBALS)).astype(bool)
IS_OWN = RNG.integers(0, 2, (ROWS, LENGTH, GLOBALS)).astype(bool)
OTHER, OWN = 5, 2


def dense(q, k, v, relative, global_key, global_value, radius, rows):
    index = np.arange(LENGTH)
    distance = index[None] - index[:, None]
    ids = rows[np.clip(distance, -2 * radius - 1, 2 * radius + 1) + 2 * radius + 1]
    ids = np.concatenate([np.broadcast_to(ids, (ROWS, LENGTH, LENGTH)), np.where(IS_OWN, OWN, OTHER)], axis=-1)[:, None]
    seen = (np.abs(distance) <= radius) & (SEGMENTS[:, :, None] == SEGMENTS[:, None])
    seen = np.concatenate([seen, IS_VISIBLE], axis=-1)[:, None]
    keys, values = jnp.concatenate([k, global_key], axis=1), jnp.concatenate([v, global_value], axis=1)
    scores = 0.3 * jnp.einsum("bqhd,bkhd->bhqk", q, keys)
    scores += jnp.take_along_axis(relative, jnp.broadcast_to(ids, scores.shape), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(seen, scores, -1e10)), values)


@pytest.mark.parametrize("radius", [1, 3, 30])
def test_output_and_gradients_equal_dense_attention(radius):
    shapes = [(ROWS, LENGTH, HEADS, SIZE)] * 3 + [(ROWS, HEADS, LENGTH, TABLE)] + [(ROWS, GLOBALS, HEADS, SIZE)] * 2
    arrays = [RNG.normal(size=shape).astype(np.float32) for shape in shapes]
    rows = RNG.integers(0, TABLE, 4 * radius + 3)

    def blocked(q, k, v, relative, global_key, global_value):
        window = Window(radius, jnp.asarray(SEGMENTS))
        between = jnp.where(IS_OWN[:, None], relative[..., OWN, None], relative[..., OTHER, None])
        globals_ = GlobalKeys(global_key, global_value, jnp.asarray(IS_VISIBLE), between)
        near = local_global_attention.scores_of_rows(
            relative, jnp.asarray(rows)[window.distances + 2 * radius + 1], window
        )
        options = {"window": window, "globals_": globals_, "scale": 0.3, "dropout": NO_DROPOUT}
        return local_global_attention.attention(q, k, v, near, **options)

    weights = RNG.normal(size=shapes[0])

    def run(function):
        return jax.jit(jax.value_and_grad(lambda arrays: jnp.sum(weights * function(*arrays))))(arrays)

    (found, gradients), (value, expected) = run(blocked), run(lambda *arrays: dense(*arrays, radius, rows))
    np.testing.assert_allclose(found, value, rtol=1e-5)
    for one, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
