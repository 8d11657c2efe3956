"""Hugging Face directories of T5Gemma 1 and 2: defaults, names, keys of both versions of transformers, and refusals."""

import dataclasses

import pytest
from families import FAMILIES, random_model

from t5x_like import interop
from t5x_like.errors import UserError
from t5x_like.interop.registry import family_of_type
from t5x_like.models.gemma import Gemma3Config
from t5x_like.models.t5gemma import T5Gemma2Config, T5GemmaConfig

FULL, SLIDING = "full_attention", "sliding_attention"


def read(model_type, **keys):
    return family_of_type(model_type, "config.json").config_from_json({"model_type": model_type, **keys})


def test_files_without_keys_have_the_defaults_of_transformers():
    assert read("t5gemma") == T5GemmaConfig()
    sizes = {
        "hidden_size": 12,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 6,
    }
    found = read("t5gemma", encoder=sizes, dropout_rate=0.1, attention_dropout=0.2, tie_word_embeddings=False)
    assert (found.encoder.embed_dim, found.decoder.embed_dim, found.encoder.attention_windows) == (
        12,
        2304,
        (4096, None),
    )
    assert {(part.dropout_rate, part.attention_dropout_rate) for part in found.parts.values()} == {(0.1, 0.2)}
    assert not found.decoder.tied_embeddings
    stack = Gemma3Config(embed_dim=2304, mlp_dim=9216, num_layers=26, attention_windows=(4096,) * 5 + (None,))
    assert read("t5gemma2") == T5Gemma2Config(encoder=stack, decoder=stack)


def test_keys_of_transformers_5_are_read():
    rope = {FULL: {"rope_type": "default", "rope_theta": 500.0}, SLIDING: {"rope_type": "default", "rope_theta": 7.0}}
    stack = {"num_hidden_layers": 3, "layer_types": [SLIDING, FULL, SLIDING], "rope_parameters": rope}
    found = read("t5gemma2", encoder={"text_config": stack, "eoi_token_index": 5}, decoder=stack)
    assert {(part.rope_theta, part.local_rope_theta) for part in found.parts.values()} == {(500.0, 7.0)}
    assert {part.attention_windows for part in found.parts.values()} == {(4096, None)} and found.end_of_image_id == 5


@pytest.mark.parametrize(
    ("model_type", "keys", "message"),
    [
        ("t5gemma", {"encoder": {"hidden_activation": "mish"}}, "encoder: hidden_activation 'mish': not supported"),
        ("t5gemma", {"decoder": {"use_bidirectional_attention": True}}, "decoder: use_bidirectional_attention True"),
        ("t5gemma", {"decoder": {"attention_bias": True}}, "decoder: attention_bias True: not supported"),
        ("t5gemma", {"is_encoder_decoder": False}, "is_encoder_decoder False: not supported"),
        ("t5gemma", {"encoder": []}, "encoder \\[\\]: must be an object"),
        ("t5gemma2", {"decoder": {"attn_logit_softcapping": 5.0}}, "decoder: attn_logit_softcapping 5.0"),
        ("t5gemma2", {"encoder": {"vision_config": {"hidden_size": 1152}}}, "vision_config: images are not supported"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(model_type, keys, message):
    with pytest.raises(UserError, match=message) as refused:
        read(model_type, **keys)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("t5gemma2", {"merged_attention": False}, "merged_attention=False: not supported by transformers' T5Gemma2"),
        ("t5gemma2", {"shared_embeddings": False}, "shared_embeddings=False: not supported by transformers' T5Gemma2"),
        ("t5gemma", {"shared_embeddings": True}, "shared_embeddings=True: not supported by transformers' T5Gemma"),
    ],
)
def test_models_that_transformers_lacks_are_not_exported(name, changes, message, tmp_path):
    config = dataclasses.replace(FAMILIES[name].config, **changes)
    with pytest.raises(UserError, match=message):
        interop.to_huggingface({"model": random_model(config)}, config, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_names_of_tensors():
    config = FAMILIES["t5gemma"].config
    names = interop.tensors_to_huggingface({"model": random_model(config)}, config).keys()
    layer = "model.decoder.layers.1"
    assert {f"{layer}.cross_attn.k_proj.weight", f"{layer}.pre_cross_attn_layernorm.weight"} <= names
    assert {f"{layer}.self_attn.q_proj.weight", f"{layer}.post_self_attn_layernorm.weight"} <= names
    assert {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"} <= names
    assert "lm_head.out_proj.weight" not in names and "model.encoder.layers.1.cross_attn.k_proj.weight" not in names
