"""Properties of MobileBERT and IB-BERT only; test_families.py tests the properties of every family."""

import dataclasses

import jax
import numpy as np
import pytest
from families import FAMILIES, random_model, scanned

from t5x_like import parameters
from t5x_like.layers.norms import NoNorm
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence

CONFIG = FAMILIES["mobilebert"].config


def test_embeddings_match_manual_computation():
    model = random_model(CONFIG)
    token, position, token_type = (
        np.asarray(table.embedding[...])
        for table in (model.token_embedder, model.position_embedder, model.token_type_embedder)
    )
    batch = {
        "encoder_input_tokens": np.array([[7, 9, 5, 3, 0]], np.int32),
        "encoder_segment_ids": np.array([[1, 1, 2, 2, 0]], np.int32),
        "encoder_positions": np.array([[0, 1, 0, 1, 0]], np.int32),
    }
    none = np.zeros_like(token[0])
    # Next, this and previous token of the same segment.
    words = np.stack(
        [
            np.concatenate(each)
            for each in (
                (token[9], token[7], none),
                (none, token[9], token[7]),
                (token[3], token[5], none),
                (none, token[3], token[5]),
            )
        ]
    )
    words = words @ model.embedding_projection.kernel[...] + model.embedding_projection.bias[...]
    total = words + position[[0, 1, 0, 1]] + token_type[0]
    expected = total * model.embedding_norm.scale[...] + model.embedding_norm.bias[...]
    np.testing.assert_allclose(model.embed(batch)["encoder"][0, :4], expected, atol=1e-5)


def test_logits_read_token_embeddings_and_the_kernel_of_the_head():
    model = random_model(CONFIG)
    head = MaskedLM().init(jax.random.key(0), model)["masked_lm"]
    hidden = np.random.default_rng(0).normal(size=(1, 3, 12)).astype(np.float32)
    kernel = np.concatenate([np.asarray(model.token_embedder.embedding[...]).T, np.asarray(head.untied[...])])
    assert kernel.shape == (12, 40)
    np.testing.assert_allclose(head.logits(model, hidden), hidden @ kernel, atol=1e-5)


def test_next_sentence_head_without_pooler_reads_the_first_token():
    model = random_model(CONFIG)
    head = NextSentence(pooler=False).init(jax.random.key(0), model)["next_sentence"]
    assert parameters.named_leaves(head).keys() == {"classifier/kernel", "classifier/bias"}
    hidden = np.random.default_rng(0).normal(size=(2, 3, 12)).astype(np.float32)
    np.testing.assert_allclose(head(hidden)[:, 0], hidden[:, 0] @ head.classifier.kernel[...], atol=1e-6)


def test_norms_of_a_layer():
    layer = random_model(CONFIG).encoder.layers[0]
    for name in ("bottleneck", "attention_bottleneck", "attention", "mlp", "mlp_1", "expansion"):
        assert isinstance(getattr(layer, f"{name}_norm"), NoNorm)
    assert NoNorm(2)(np.float32([[[3.0, 5.0]]])).tolist() == [[[3.0, 5.0]]]


def test_parameter_names_and_axes():
    axes = parameters.logical_axes(jax.eval_shape(scanned(CONFIG).make, jax.random.key(0)))
    assert axes["embedding_projection/kernel"] == (None, "embed")
    assert axes["encoder/layers/bottleneck/kernel"] == ("layers", "embed", None)
    assert axes["encoder/layers/expansion/kernel"] == ("layers", None, "embed")
    assert axes["encoder/layers/attention/value/kernel"] == ("layers", "embed", "kv_heads", "kv")
    assert axes["encoder/layers/mlp_1/wo/kernel"] == ("layers", "mlp", "embed")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_mlps": 0}, "MobileBertConfig.num_mlps=0: must be a positive integer"),
        ({"embedding_dim": 13}, "MobileBertConfig.embedding_dim=13: must be at most embed_dim=12"),
        ({"attention_input": "wide"}, "MobileBertConfig.attention_input='wide': must be one of"),
        ({"normalization": "rms_norm"}, r"normalization='rms_norm': must be one of \['layer_norm', 'no_norm'\]"),
    ],
)
def test_invalid_config_raises(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)
