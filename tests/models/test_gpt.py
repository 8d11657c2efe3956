"""Properties of GPT, GPT-2 and GPT-3 only: parameter names, initial values, attention scale."""

import dataclasses

import jax
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.models.gpt import GPTConfig

CONFIG = GPTConfig(vocab_size=300, embed_dim=64, mlp_dim=256, num_heads=4, head_dim=16, num_layers=8, max_length=200)
SCANNED = dataclasses.replace(CONFIG, scan_layers=True)
POST = dataclasses.replace(SCANNED, norm_position="post")


def leaves(config):
    return parameters.named_leaves(jax.jit(config.make)(jax.random.key(0)))


def test_parameter_names_and_axes():
    axes = parameters.logical_axes(jax.eval_shape(SCANNED.make, jax.random.key(0)))
    assert axes["token_embedder/embedding"] == ("vocab", "embed")
    assert axes["position_embedder/embedding"] == ("positions", "embed")
    assert axes["decoder/layers/attention/query/kernel"] == ("layers", "embed", "heads", "kv")
    assert axes["decoder/layers/attention/query/bias"] == ("layers", "heads", "kv")
    assert axes["decoder/layers/mlp/wi/bias"] == ("layers", "mlp")
    assert axes["decoder/norm/bias"] == ("embed_vector",)
    assert "logits/kernel" not in axes


def test_final_norm_exists_only_with_pre_norm():
    assert "decoder/norm/scale" in parameters.named_leaves(jax.eval_shape(SCANNED.make, jax.random.key(0)))
    assert "decoder/norm/scale" not in parameters.named_leaves(jax.eval_shape(POST.make, jax.random.key(0)))


@pytest.mark.parametrize(
    ("config", "positions", "residual"),
    # GPT-2: 0.02 divided by the square root of 2 · 8 residual projections.
    [(SCANNED, 0.01, 0.02 / 4), (POST, 0.02, 0.02)],
    ids=["gpt2", "gpt1"],
)
def test_initial_values(config, positions, residual):
    found = leaves(config)
    expected = {
        "token_embedder/embedding": 0.02,
        "position_embedder/embedding": positions,
        "decoder/layers/attention/query/kernel": 0.02,
        "decoder/layers/attention/value/kernel": 0.02,
        "decoder/layers/attention/out/kernel": residual,
        "decoder/layers/mlp/wi/kernel": 0.02,
        "decoder/layers/mlp/wo/kernel": residual,
    }
    for name, stddev in expected.items():
        assert np.std(found[name]) == pytest.approx(stddev, rel=0.03), name
    for name, leaf in found.items():
        if name.endswith("bias"):
            assert not np.any(leaf), name


def test_attention_scores_are_scaled_by_head_dim():
    model = CONFIG.make(jax.random.key(0))
    batch = {"decoder_input_tokens": np.arange(6)[None]}
    names = tuple(f"decoder/layers/0/attention/{what}" for what in ("query", "key", "scores"))
    query, key, scores = model(batch, capture=names).captured.values()
    product = np.einsum("qhd,khd->hqk", query[0], key[0]) / 4
    visible = np.tril(np.ones((6, 6), bool))
    np.testing.assert_allclose(scores[0][:, visible], product[:, visible], rtol=1e-5, atol=1e-7)
