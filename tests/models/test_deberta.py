"""DeBERTa: rows of relative positions, positions out of order, the convolution, and invalid configurations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, random_model

from t5x_like.errors import UserError
from t5x_like.kernels.masks import Mask
from t5x_like.models.deberta import DebertaConfig, DisentangledBias, RelativePositions
from t5x_like.models.deberta_v2 import DebertaV2Config
from t5x_like.objectives.enhanced_masked_lm import EnhancedMaskedLM


def test_bias_reads_the_positions_that_it_is_given():
    """As in a step over a cache, whose slots are out of order, or with a memory before the row."""
    model = random_model(FAMILIES["deberta"].config)
    projections, positions = model.encoder.layers[0].attention.table_projections, model.config.relative_positions
    bias = DisentangledBias(model.relative_table(), *projections, positions)
    q, k = np.random.default_rng(0).normal(size=(2, 2, 9, 2, 6)).astype(np.float32)
    places, slots = jnp.arange(9)[None], np.array([5, 6, 0, 1, 2, 3, 4])
    whole = bias.materialize(q, k, query_positions=places, key_positions=places, scale=0.3)
    options = {"query_positions": places[:, 4:6] - 7, "key_positions": jnp.asarray(slots)[None] - 7, "scale": 0.3}
    step = jax.jit(lambda q, k: bias.materialize(q, k, **options))(q[:, 4:6], k[:, slots])
    np.testing.assert_allclose(step, whole[:, :, 4:6][..., slots], atol=1e-5)
    of_short_text = bias.replace(length=3)
    assert positions.limits(3) == (1, 5) and len(bias.relative) == 6
    options = {"query_positions": places[:, :3], "key_positions": places[:, :3], "scale": 0.3}
    found = of_short_text.materialize(q[:, :3], k[:, :3], **options)
    np.testing.assert_allclose(found, whole[:, :, :3, :3], atol=1e-5)
    assert bias.terms(q, k) is None


@pytest.mark.parametrize("name", ["deberta", "deberta_v2"])
def test_table_of_relative_positions_has_dropout(name):
    """The attention has no other dropout here, so its output does not depend on the key without that of the table."""
    model = random_model(dataclasses.replace(FAMILIES[name].config, dropout_rate=0.3))
    x = np.random.default_rng(0).normal(size=(1, 7, model.config.embed_dim)).astype(np.float32)
    mask = Mask(key_valid=jnp.ones((1, 7), bool))

    @jax.jit
    def attend(key):
        attention = model.encoder.layers[0].attention
        return attention(x, mask=mask, relative=model.relative_table(), dropout_key=key)[0]

    first, second, exact = attend(jax.random.key(1)), attend(jax.random.key(2)), attend(None)
    np.testing.assert_array_equal(first, attend(jax.random.key(1)))
    assert min(np.abs(first - second).max(), np.abs(first - exact).max()) > 0.01


def test_published_buckets_are_exact_up_to_half_and_logarithmic_beyond():
    positions = RelativePositions(512, 256)
    rows = positions.table_rows(np.arange(-600, 601))
    assert (np.diff(rows) >= 0).all() and set(rows) == set(range(512))
    np.testing.assert_array_equal(rows[600 - 128 : 600 + 129], np.arange(128, 385))
    # By hand: 128 + ceil(ln(200 / 128) / ln(511 / 128) * 127) = 128 + ceil(40.94) = 169.
    assert positions.table_rows(np.array([200, -200])).tolist() == [256 + 169, 256 - 169]
    np.testing.assert_array_equal(positions.rows(jnp.arange(-600, 601)), rows)


def test_convolution_reads_neighbors_of_the_own_segment_alone():
    model = random_model(FAMILIES["deberta_v2"].config)
    x = np.random.default_rng(0).normal(size=(1, 5, 12)).astype(np.float32)
    segments = jnp.array([[1, 1, 2, 2, 0]])
    kernel, bias = (np.asarray(leaf[...]) for leaf in (model.convolution.kernel, model.convolution.bias))
    expected = np.stack(
        [
            x[0, 0] @ kernel[1] + x[0, 1] @ kernel[2],
            x[0, 0] @ kernel[0] + x[0, 1] @ kernel[1],
            x[0, 2] @ kernel[1] + x[0, 3] @ kernel[2],
            x[0, 2] @ kernel[0] + x[0, 3] @ kernel[1],
        ]
    )
    found = model.convolution(x, segments)[0, :4]
    np.testing.assert_allclose(found, jax.nn.gelu(expected + bias, approximate=False), atol=1e-5)


def test_new_kernels_and_tables_are_normal_and_not_truncated():
    model = DebertaV2Config(vocab_size=400, embed_dim=64, mlp_dim=64, num_heads=2, head_dim=32, num_layers=1).make(
        jax.random.key(0)
    )
    table = np.asarray(model.embeddings.token_embedder.embedding[...])
    assert table.std() == pytest.approx(0.02, rel=0.02) and np.abs(table).max() > 3 * 0.02


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (DebertaConfig, {"max_distance": 0}, "max_distance=0"),
        (DebertaConfig, {"position_offset": 2}, "position_offset=2: not supported by DebertaConfig"),
        (DebertaV2Config, {"position_buckets": 7}, "position_buckets=7"),
        (DebertaV2Config, {"position_buckets": 64, "max_distance": 33}, "max_distance=33"),
        (DebertaV2Config, {"conv_size": 2}, "conv_size=2 is even"),
        (DebertaV2Config, {"conv_activation": "sine"}, "conv_activation='sine' is unknown"),
    ],
)
def test_invalid_configurations_raise(config, changes, message):
    with pytest.raises(UserError, match=message):
        config(**changes)


def test_enhanced_mask_decoder_of_another_model_raises():
    model = random_model(FAMILIES["bert"].config)
    with pytest.raises(UserError, match="the model is a BertConfig. Give a DebertaConfig"):
        EnhancedMaskedLM().init(jax.random.key(0), model)
