"""Properties of the families of rotary layers: parameters with heads, the first layer of ModernBERT, initial values."""

import dataclasses

import gin
import jax
import numpy as np
import pytest
from families import FAMILIES, example_batch, random_model, scanned
from family_cases.modernbert import MODERNBERT

from t5x_like import parameters
from t5x_like.layers.layer_kinds import LayerKind
from t5x_like.layers.rope_scaling import Linear
from t5x_like.layers.rotary import Rotary
from t5x_like.models import build
from t5x_like.models.gemma import Gemma3Config
from t5x_like.models.smollm3 import SmolLM3Config
from t5x_like.objectives.masked_lm import MaskedLM


@pytest.mark.parametrize("name", sorted(MODERNBERT))
def test_masked_lm_file_has_published_parameter_counts(name):
    gin.clear_config()
    gin.add_config_file_search_path("gin_configs")
    gin.parse_config_file(f"gin_configs/models/{name}.gin")
    config = gin.query_parameter("MODEL/gin.macro.value").scoped_configurable_fn()
    model = build.stacked_shapes(config)
    head = jax.eval_shape(lambda: MaskedLM().init(jax.random.key(0), model))
    assert (parameters.count(model), parameters.count((model, head))) == MODERNBERT[name]
    with open(f"gin_configs/models/{name}.gin") as file:
        assert "{:,} parameters; {:,} with the masked-LM head.".format(*MODERNBERT[name]) in file.readline()
    gin.clear_config()


def test_attention_of_the_first_layer_of_modernbert_reads_the_embeddings_as_they_are():
    config = FAMILIES["modernbert"].config
    batch, name = example_batch(FAMILIES["modernbert"]), "encoder/layers/0/attention/query"
    for each in (config, scanned(config)):
        model = random_model(each)
        assert model.attention_norms.scale.shape == (config.num_layers - 1, config.embed_dim)
        embedded = model.embed(batch)["encoder"]
        kernel = random_model(config).encoder.layers[0].attention.query.kernel[...]
        expected = config.layer_kinds[0].rotary(
            np.einsum("ble,ehk->blhk", embedded, kernel), np.broadcast_to(np.arange(7), (2, 7))
        )
        np.testing.assert_allclose(model(batch, capture=(name,)).captured[name], expected, rtol=2e-5, atol=2e-5)


def test_layers_with_a_window_rotate_by_their_own_base():
    config = dataclasses.replace(Gemma3Config(), rope_scaling=Linear(8.0))
    local = LayerKind(1024, Rotary(10000.0))
    assert config.layer_kinds == (local,) * 5 + (LayerKind(None, Rotary(1e6, Linear(8.0))),)
    assert [kind.rotary is None for kind in SmolLM3Config().layer_kinds] == [False, False, False, True]


def test_kernels_of_modernbert_that_write_to_the_residual_stream_are_smaller():
    sizes = dict(embed_dim=64, mlp_dim=128, num_heads=4, num_kv_heads=4, head_dim=16)
    config = dataclasses.replace(FAMILIES["modernbert"].config, **sizes)
    model = config.make(jax.random.key(0))
    layer, depth = model.encoder.layers[1], 2 * config.num_layers
    for kernel, stddev in (
        (layer.attention.query, 0.02),
        (layer.mlp.wi_0, 0.02),
        (layer.attention.out, 0.02 / depth**0.5),
        (layer.mlp.wo, 0.02 / depth**0.5),
    ):
        # Truncation at two standard deviations leaves 0.88 of the standard deviation.
        assert np.std(kernel.kernel[...]) == pytest.approx(0.88 * stddev, rel=0.1)
        assert np.abs(kernel.kernel[...]).max() <= 2 * stddev


def test_gemma_multiplies_embeddings_by_the_root_of_their_size():
    config = FAMILIES["gemma1"].config
    model, batch = random_model(config), example_batch(FAMILIES["gemma1"])
    expected = model.token_embedder(batch["decoder_input_tokens"]) * np.float32(config.embed_dim**0.5)
    np.testing.assert_array_equal(model.embed(batch)["decoder"], expected)
