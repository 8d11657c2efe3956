"""Disentangled attention: biases of positions out of order, and invalid configurations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, random_model

from t5x_like.errors import UserError
from t5x_like.models.disentangled import DisentangledBias, DisentangledConfig


def test_bias_reads_the_positions_that_it_is_given():
    """As in a step over a cache, whose slots are out of order, or with a memory before the row."""
    model = random_model(FAMILIES["disentangled"].config)
    attention = model.encoder.layers[0].attention
    bias = DisentangledBias(model.relative_embedder.embedding[...], attention.position_query, attention.position_key)
    q, k = np.random.default_rng(0).normal(size=(2, 2, 9, 2, 6)).astype(np.float32)
    positions, slots = jnp.arange(9)[None], np.array([5, 6, 0, 1, 2, 3, 4])
    whole = bias.materialize(q, k, query_positions=positions, key_positions=positions, scale=0.3)
    options = {"query_positions": positions[:, 4:6] - 7, "key_positions": jnp.asarray(slots)[None] - 7, "scale": 0.3}
    step = jax.jit(lambda q, k: bias.materialize(q, k, **options))(q[:, 4:6], k[:, slots])
    np.testing.assert_allclose(step, whole[:, :, 4:6][..., slots], atol=1e-5)
    assert bias.diagonals is None


def test_invalid_max_distance_raises():
    with pytest.raises(UserError, match="max_distance=0"):
        DisentangledConfig(max_distance=0)
