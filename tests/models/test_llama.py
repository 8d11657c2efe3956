"""Properties of Llama only: parameter names, initial values, rotary positions, grouped-query attention."""

import dataclasses

import jax
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.models.llama import LlamaConfig

CONFIG = LlamaConfig(
    vocab_size=300, embed_dim=60, mlp_dim=200, num_heads=6, num_kv_heads=2, head_dim=16, num_layers=3, max_length=50
)
SCANNED = dataclasses.replace(CONFIG, scan_layers=True)


def test_parameter_names_and_axes():
    axes = parameters.logical_axes(jax.eval_shape(SCANNED.make, jax.random.key(0)))
    shapes = parameters.named_leaves(jax.eval_shape(SCANNED.make, jax.random.key(0)))
    assert axes["decoder/layers/attention/key/kernel"] == ("layers", "embed", "kv_heads", "kv")
    assert shapes["decoder/layers/attention/query/kernel"].shape == (3, 60, 6, 16)
    assert shapes["decoder/layers/attention/key/kernel"].shape == (3, 60, 2, 16)
    assert axes["decoder/layers/mlp/wi_1/kernel"] == ("layers", "embed", "mlp")
    assert axes["logits/kernel"] == ("embed", "vocab")
    assert not [name for name in shapes if name.endswith("bias")]


def test_optional_biases():
    def biases(**changes):
        config = dataclasses.replace(SCANNED, **changes)
        names = parameters.named_leaves(jax.eval_shape(config.make, jax.random.key(0)))
        return {name.split("/")[-2] for name in names if name.endswith("/bias")}

    assert biases(attention_bias=True) == {"query", "key", "value", "out"}
    assert biases(mlp_bias=True) == {"wi_0", "wi_1", "wo"}


def test_initial_values():
    found = parameters.named_leaves(jax.jit(SCANNED.make)(jax.random.key(0)))
    for name, leaf in found.items():
        if name.endswith("scale"):
            np.testing.assert_array_equal(leaf, 1)
        else:
            assert np.std(leaf) == pytest.approx(0.02, rel=0.03), name


def test_adjacent_query_heads_share_a_key_head():
    model = CONFIG.make(jax.random.key(0))
    batch = {"decoder_input_tokens": np.arange(6)[None]}
    names = tuple(f"decoder/layers/0/attention/{what}" for what in ("query", "key", "scores"))
    query, key, scores = model(batch, capture=names).captured.values()
    product = np.einsum("qhd,khd->hqk", query[0], np.repeat(key[0], 3, axis=1)) / 4
    visible = np.tril(np.ones((6, 6), bool))
    np.testing.assert_allclose(scores[0][:, visible], product[:, visible], rtol=1e-5, atol=1e-7)


def test_attention_scores_depend_on_relative_positions():
    model = CONFIG.make(jax.random.key(0))
    batch = {"decoder_input_tokens": np.full((1, 8), 7)}
    wanted = ("decoder/layers/0/attention/scores",)
    near = model(batch | {"decoder_positions": np.arange(8)[None]}, capture=wanted).captured[wanted[0]]
    far = model(batch | {"decoder_positions": np.arange(8)[None] + 30}, capture=wanted).captured[wanted[0]]
    np.testing.assert_allclose(near, far, rtol=1e-4, atol=1e-6)
    # All tokens are equal, so that scores depend on the distance only.
    np.testing.assert_allclose(near[0, 0, 5, 3], near[0, 0, 7, 5], rtol=1e-4)
    assert abs(near[0, 0, 7, 5] - near[0, 0, 7, 6]) > 1e-4
