"""Hugging Face directories of MobileBERT: layouts, heads with and without a pooler, unsupported models.

Round trips and invalid tensors are in test_huggingface.py, comparisons with transformers in tests/models.
"""

import dataclasses
import json

import jax
import numpy as np
import pytest
from families import FAMILIES, random_model

from t5x_like import interop, parameters
from t5x_like.errors import UserError
from t5x_like.interop import mobilebert as mapping
from t5x_like.interop import safetensors_files
from t5x_like.objectives import heads
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.sequence_classification import SequenceClassification

CONFIG = FAMILIES["mobilebert"].config
TINY = FAMILIES["mobilebert_tiny"].config


def write(config, objective, directory, **options):
    model = random_model(config)
    params = {"model": model, "objective": objective.init(jax.random.key(0), model) if objective else {}}
    interop.to_huggingface(params, config, str(directory), **options)
    return params, dict(safetensors_files.Tensors(str(directory))), json.loads((directory / "config.json").read_text())


def test_tensor_without_elements_is_read(tmp_path):
    # transformers writes it if token embeddings are as large as hidden states.
    config = dataclasses.replace(CONFIG, embedding_dim=CONFIG.embed_dim)
    params, tensors, _ = write(config, MaskedLM(), tmp_path)
    tensors["cls.predictions.dense.weight"] = np.zeros((0, config.vocab_size), np.float32)
    safetensors_files.write(str(tmp_path), tensors)
    expected = parameters.stack(parameters.named_leaves(params))
    jax.tree.map(np.testing.assert_array_equal, interop.read(str(tmp_path), config), expected)


def test_tensors_have_expected_layout(tmp_path):
    params, tensors, hf_config = write(CONFIG, Joint([MaskedLM(), NextSentence(pooler=False)]), tmp_path)
    layer, head = params["model"].encoder.layers[1], params["objective"]["masked_lm"]
    # The last feed-forward block is not in `ffn`.
    np.testing.assert_array_equal(
        tensors["mobilebert.encoder.layer.1.ffn.0.intermediate.dense.weight"], layer.mlp.wi.kernel[...].T
    )
    np.testing.assert_array_equal(
        tensors["mobilebert.encoder.layer.1.intermediate.dense.weight"], layer.mlp_1.wi.kernel[...].T
    )
    assert tensors["mobilebert.encoder.layer.1.attention.self.value.weight"].shape == (8, 12)
    assert tensors["mobilebert.embeddings.embedding_transformation.weight"].shape == (12, 24)
    np.testing.assert_array_equal(tensors["cls.predictions.dense.weight"], head.untied[...])
    assert tensors["cls.predictions.dense.weight"].shape == (4, 40)
    assert not [name for name in tensors if "pooler" in name] and hf_config["classifier_activation"] is False


@pytest.mark.parametrize(
    ("config", "form"), [(CONFIG, heads.FirstToken()), (TINY, heads.PooledFirstToken(dropout_rate=0.3))]
)
def test_pooler_of_a_classifier_round_trips(config, form, tmp_path):
    objective, rate = SequenceClassification(("a", "b", "c"), head=form), form.dropout_rate
    _, _, hf_config = write(config, objective, tmp_path, labels=objective.labels, dropout_rate=rate)
    assert hf_config["architectures"] == ["MobileBertForSequenceClassification"]
    assert hf_config["classifier_activation"] == isinstance(form, heads.PooledFirstToken)
    head = interop.task_head(str(tmp_path))
    assert (head.form, head.labels) == (form, ("a", "b", "c"))
    assert interop.head_form(str(tmp_path), head.name) == form


def test_form_of_a_new_head_follows_the_directory(tmp_path):
    write(CONFIG, MaskedLM(), tmp_path)
    assert interop.head_form(str(tmp_path), "multiple_choice") == heads.FirstToken()
    update_config(tmp_path, "classifier_activation", None)  # the default of transformers
    assert interop.head_form(str(tmp_path), "multiple_choice") == heads.PooledFirstToken()


def update_config(directory, key, value):
    """Sets a key of config.json, or removes it if the value is None."""
    file = directory / "config.json"
    stored = json.loads(file.read_text()) | {key: value}
    file.write_text(json.dumps({key: value for key, value in stored.items() if value is not None}))


def test_shared_bottleneck_that_is_not_used_is_ignored(tmp_path):
    params, tensors, _ = write(TINY, None, tmp_path)
    prefix = "mobilebert.encoder.layer.0.bottleneck.attention"
    tensors[f"{prefix}.dense.weight"] = np.ones((8, 12), np.float32)
    safetensors_files.write(str(tmp_path), tensors)
    update_config(tmp_path, "key_query_shared_bottleneck", True)
    config, model = interop.from_huggingface(str(tmp_path))
    assert config.attention_input == "bottleneck"
    np.testing.assert_array_equal(model.token_embedder.embedding[...], params["model"].token_embedder.embedding[...])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("trigram_input", False, "trigram_input False: not supported. The only supported value is True"),
        ("use_bottleneck", False, "use_bottleneck False"),
        ("key_query_shared_bottleneck", False, "not supported by transformers' MobileBERT"),
        ("normalization_type", "rms", "normalization_type 'rms': not supported. Supported: no_norm, layer_norm"),
        ("num_attention_heads", 3, "intra_bottleneck_size 8: not divisible by num_attention_heads 3"),
    ],
)
def test_unsupported_config_raises(key, value, message, tmp_path):
    write(CONFIG, None, tmp_path)
    update_config(tmp_path, key, value)
    with pytest.raises(UserError, match=message):
        interop.from_huggingface(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "heads", "message"),
    [
        ({"head_dim": 5}, (), "head_dim=5: .* requires bottleneck_dim / num_heads = 8 / 2"),
        ({"attention_input": "hidden"}, (), "attention_input='hidden': not supported by transformers' MobileBERT"),
        ({}, ("objective/discriminator/bias",), "no MobileBERT class of transformers has just these heads"),
    ],
)
def test_unsupported_model_raises(changes, heads, message):
    with pytest.raises(UserError, match=message):
        mapping.config_to_huggingface(dataclasses.replace(CONFIG, **changes), heads)
