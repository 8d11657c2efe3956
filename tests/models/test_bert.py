"""Properties of BERT and RoBERTa only; test_families.py tests the properties of every family."""

import dataclasses

import jax
import numpy as np
import pytest
from families import FAMILIES, example_batch, hidden, random_model, scanned, tokens

from t5x_like import parameters

BERT, ROBERTA = FAMILIES["bert"], FAMILIES["roberta"]


def test_padding_id_of_config_is_masked():
    batch = {"encoder_input_tokens": np.array([[0, 5, 6, 1]], np.int32)}
    other = {"encoder_input_tokens": np.array([[0, 5, 6, 7]], np.int32)}
    roberta = random_model(ROBERTA.config)
    without = {"encoder_input_tokens": batch["encoder_input_tokens"][:, :3]}
    np.testing.assert_allclose(hidden(roberta, batch)[:, :3], hidden(roberta, without), atol=2e-5)
    assert np.abs(hidden(roberta, batch)[:, :3] - hidden(roberta, other)[:, :3]).max() > 1e-3
    swapped = {"encoder_input_tokens": np.array([[9, 5, 6, 7]], np.int32)}
    assert np.abs(hidden(roberta, other)[:, 1:] - hidden(roberta, swapped)[:, 1:]).max() > 1e-3


# ---- embeddings ---------------------------------------------------------------------------------------------------


def test_embeddings_match_manual_computation():
    model = random_model(ROBERTA.config)
    tables = model.embeddings
    token, position, token_type = (
        np.asarray(table.embedding[...])
        for table in (tables.token_embedder, tables.position_embedder, tables.token_type_embedder)
    )
    assert position.shape == (18, 12)
    batch = {"encoder_input_tokens": np.array([[7, 9]], np.int32), "encoder_positions": np.array([[3, 0]], np.int32)}
    total = np.stack([token[7] + position[5] + token_type[0], token[9] + position[2] + token_type[0]])
    normed = (total - total.mean(-1, keepdims=True)) / np.sqrt(total.var(-1, keepdims=True) + 1e-5)
    expected = normed * model.embeddings.norm.scale[...] + model.embeddings.norm.bias[...]
    np.testing.assert_allclose(model.embed(batch)["encoder"][0], expected, atol=1e-5)


def test_default_positions_and_token_types():
    model, batch = random_model(BERT.config), example_batch(BERT) | {"token_types": tokens(2, 7, seed=1) % 2}
    full = {
        "encoder_input_tokens": batch["encoder_input_tokens"],
        "encoder_positions": np.tile(np.arange(7, dtype=np.int32), (2, 1)),
        "token_types": np.zeros((2, 7), np.int32),
    }
    bare = {"encoder_input_tokens": batch["encoder_input_tokens"]}
    np.testing.assert_array_equal(hidden(model, bare), hidden(model, full))
    assert np.abs(hidden(model, bare) - hidden(model, batch)).max() > 1e-3


@pytest.mark.parametrize(
    ("family", "changes"),
    [(ROBERTA, {}), (FAMILIES["etc"], {"num_token_types": 2}), (FAMILIES["mobilebert"], {"num_token_types": 1})],
)
def test_a_model_with_one_token_type_ignores_the_second_text(family, changes):
    """BERT's template marks the second text, whatever the model; ETC has another type for its global tokens."""
    model, batch = random_model(dataclasses.replace(family.config, **changes)), example_batch(family)
    found = hidden(model, batch | {"token_types": tokens(2, 7, seed=1) % 2})
    np.testing.assert_array_equal(found, hidden(model, batch))
    assert np.isfinite(found).all()


# ---- captures, names, configuration --------------------------------------------------------------------------------


def test_capture_embeddings_and_scores():
    model, batch = random_model(BERT.config), example_batch(BERT)
    names = ("encoder/embedding", "encoder/layers/1/hidden", "encoder/layers/0/attention/scores")
    outputs = jax.jit(lambda model: model(batch, capture=names))(model)
    np.testing.assert_allclose(outputs.captured["encoder/embedding"], model.embed(batch)["encoder"], atol=2e-5)
    np.testing.assert_array_equal(outputs.captured["encoder/layers/1/hidden"], outputs.hidden)
    assert outputs.captured["encoder/layers/0/attention/scores"].shape == (2, 2, 7, 7)


def test_initial_kernels_are_truncated_at_two_standard_deviations():
    mlp = jax.jit(scanned(BERT.config).make)(jax.random.key(0)).encoder.layers.mlp
    kernel = np.asarray(mlp.wi.kernel[...])
    assert np.abs(kernel).max() <= 0.04 and kernel.std() > 0.015
    np.testing.assert_array_equal(mlp.wi.bias[...], 0)


def test_parameter_names_and_axes():
    axes = parameters.logical_axes(jax.eval_shape(scanned(BERT.config).make, jax.random.key(0)))
    assert axes["encoder/layers/attention/query/kernel"] == ("layers", "embed", "heads", "kv")
    assert axes["encoder/layers/attention/query/bias"] == ("layers", "heads", "kv")
    assert axes["encoder/layers/mlp/wi/kernel"] == ("layers", "embed", "mlp")
    assert axes["embeddings/token_embedder/embedding"] == ("vocab", "embed")
    assert axes["embeddings/position_embedder/embedding"] == ("positions", "embed")
    assert axes["embeddings/token_type_embedder/embedding"] == ("token_types", "embed")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, r"BertConfig.num_layers=0: must be a positive integer"),
        ({"max_length": True}, r"BertConfig.max_length=True: must be a positive integer"),
        ({"position_offset": -1}, r"BertConfig.position_offset=-1: must be a non-negative integer"),
        ({"padding_id": -1}, r"BertConfig.padding_id=-1: must be a non-negative integer"),
        ({"activations": ("gelu_new",)}, r"unknown: \['gelu_new'\]"),
        ({"attention_dropout_rate": 1.0}, r"attention_dropout_rate=1.0: must be in \[0, 1\)"),
        ({"norm_epsilon": 0.0}, r"norm_epsilon=0.0: must be positive"),
        ({"remat": "some"}, r"BertConfig.remat='some': must be one of"),
    ],
)
def test_invalid_config_raises(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(BERT.config, **changes)
