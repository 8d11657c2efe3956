"""Norms that multiply by 1 + scale, have no bias, or normalize queries and keys; limits of scores; kinds of layers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from t5x_like.kernels import gathered_attention
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.reference_attention import reference
from t5x_like.kernels.score_bias import DenseBias
from t5x_like.kernels.scoring import Scoring
from t5x_like.layers.attention import MultiHeadAttention, Sizes
from t5x_like.layers.initializers import normal
from t5x_like.layers.layer_kinds import over_layers, shortest
from t5x_like.layers.norms import LayerNorm, ProjectionNorm, RMSNorm, UnitOffsetRMSNorm
from t5x_like.layers.rotary import Rotary

X = np.random.default_rng(0).normal(size=(2, 5, 4, 6)).astype(np.float32)


def test_unit_offset_norm_adds_one_and_starts_at_zero():
    norm, plain = UnitOffsetRMSNorm(6), RMSNorm(6)
    np.testing.assert_array_equal(norm.scale[...], np.zeros(6))
    np.testing.assert_array_equal(norm(X), plain(X))
    norm.scale[...], plain.scale[...] = jnp.arange(6.0), 1 + jnp.arange(6.0)
    np.testing.assert_array_equal(norm(X), plain(X))


def test_layer_norm_without_bias():
    norm, plain = LayerNorm(6, bias=False), LayerNorm(6)
    assert not hasattr(norm, "bias")
    np.testing.assert_array_equal(norm(X), plain(X))


@pytest.mark.parametrize("copies", [1, 3])
def test_projection_norm_normalizes_all_heads_together(copies):
    norm = ProjectionNorm(4, 6, epsilon=1e-6, axis="heads")
    norm.scale[...] = jnp.arange(24.0).reshape(4, 6)
    expected = X / np.sqrt(np.mean(X**2, axis=(2, 3), keepdims=True) + 1e-6) * np.arange(24.0).reshape(4, 6)
    found = norm(np.repeat(X, copies, axis=2))
    np.testing.assert_allclose(found, np.repeat(expected, copies, axis=2), rtol=1e-5, atol=1e-6)


def attention(**options):
    init = normal(1.0)
    return MultiHeadAttention(Sizes(8), heads=4, head_dim=6, kv_heads=2, init=init, key=jax.random.key(0), **options)


def test_queries_and_keys_are_normalized_before_they_are_rotated():
    x = np.random.default_rng(0).normal(size=(1, 5, 8)).astype(np.float32)
    with_norms, plain = attention(norms=(RMSNorm(6, axis="kv"), RMSNorm(6, axis="kv"))), attention()
    options = {"mask": Mask(), "rotary": Rotary(100.0), "capture": frozenset({"query", "key"})}
    captured, unrotated = with_norms(x, **options)[1], plain(x, **options | {"rotary": None})[1]
    for name in ("query", "key"):
        expected = Rotary(100.0)(RMSNorm(6)(unrotated[name]), jnp.arange(5)[None])
        np.testing.assert_allclose(captured[name], expected, rtol=1e-5, atol=1e-6)


def test_biases_of_some_projections():
    found = attention(bias=("query", "value"))
    assert [getattr(found, name).has_bias for name in ("query", "key", "value", "out")] == [True, False, True, False]


def test_softcap_limits_scores_before_the_mask():
    q, k = X, X[:, :, :2]
    scoring = Scoring(Mask(causal=True), scale=2.0)
    plain, capped = (reference(q, k, k, each) for each in (scoring, dataclasses.replace(scoring, softcap=1.5)))
    visible = np.tri(5, dtype=bool)
    np.testing.assert_allclose(
        np.asarray(capped.scores)[..., visible],
        (1.5 * np.tanh(np.asarray(plain.scores) / 1.5))[..., visible],
        rtol=1e-5,
    )
    assert np.all(np.asarray(capped.scores)[..., ~visible] < -1e9)
    with pytest.raises(ValueError, match="softcap=1.5 with a bias"):
        dataclasses.replace(scoring, softcap=1.5, bias=DenseBias(jnp.zeros((1, 1, 5, 5))))


@pytest.mark.parametrize("causal", [False, True])
def test_gathered_blocks_limit_scores(causal):
    x = np.random.default_rng(1).normal(size=(1, 150, 2, 4)).astype(np.float32)
    scoring = Scoring(Mask(causal=causal, window=9), scale=2.0, softcap=1.5)
    assert gathered_attention.unsupported_reason(None, x, x, scoring) is None
    found = gathered_attention.attention(x, x, x, scoring)
    assert_close({"output": found}, {"output": reference(x, x, x, scoring).output})


def test_patterns_may_end_with_an_incomplete_repetition():
    assert over_layers((None, 3, 3), 4) == [None, 3, 3, None]
    for pattern, number in (((None, 3, 3), 4), ((None,), 5), ((1, 2, 3), 3), ((3, 3, None), 5)):
        assert shortest(over_layers(pattern, number)) == pattern
