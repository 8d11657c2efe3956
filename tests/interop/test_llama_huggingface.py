"""Hugging Face directories of Llama and Mistral: tensor layouts, rotary positions, unsupported models."""

import dataclasses
import json

import numpy as np
import pytest
from families import random_model
from stored_weights import rewrite

from t5x_like import interop
from t5x_like.interop import llama as mapping
from t5x_like.interop import safetensors_files
from t5x_like.layers.rope_scaling import Dynamic, Linear, Llama3, Yarn
from t5x_like.models.llama import LlamaConfig

LLAMA = LlamaConfig(
    vocab_size=31,
    embed_dim=10,
    mlp_dim=14,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    num_layers=2,
    max_length=40,
    rope_theta=500.0,
    attention_bias=True,
    mlp_bias=True,
)
MISTRAL = dataclasses.replace(LLAMA, attention_windows=(7,), attention_bias=False, mlp_bias=False, tied_embeddings=True)


@pytest.fixture(params=[LLAMA, MISTRAL], ids=["llama", "mistral"])
def written(request, tmp_path):
    model = random_model(request.param)
    interop.to_huggingface({"model": model}, model.config, str(tmp_path))
    return request.param, model, tmp_path


def test_kernels_have_expected_layout(written):
    _, model, directory = written
    tensors, layer = safetensors_files.Tensors(str(directory)), model.decoder.layers[1]
    # [outputs inputs], outputs ordered by head.
    key = tensors["model.layers.1.self_attn.k_proj.weight"]
    assert key.shape == (2 * 6, 10) and key[1 * 6 + 2, 5] == layer.attention.key.kernel[5, 1, 2]
    out = tensors["model.layers.1.self_attn.o_proj.weight"]
    assert out.shape == (10, 4 * 6) and out[5, 3 * 6 + 2] == layer.attention.out.kernel[3, 2, 5]
    np.testing.assert_array_equal(tensors["model.layers.1.mlp.gate_proj.weight"].T, layer.mlp.wi_0.kernel)
    np.testing.assert_array_equal(tensors["model.layers.1.mlp.up_proj.weight"].T, layer.mlp.wi_1.kernel)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"])
def test_frequencies_in_old_files_are_ignored(written, name):
    rewrite(written[2], lambda t: t.update({name: np.ones(3, np.float32)}))
    interop.from_huggingface(str(written[2]))


def test_untied_logits_raise_for_tied_config(tmp_path):
    interop.to_huggingface({"model": random_model(MISTRAL)}, MISTRAL, str(tmp_path))
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    interop.from_huggingface(str(tmp_path))
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["lm_head.weight"] + 1}))
    with pytest.raises(ValueError, match="'lm_head.weight' differs from 'model.embed_tokens.weight'"):
        interop.from_huggingface(str(tmp_path))


def update_config(directory, **changes):
    file = directory / "config.json"
    hf_config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in hf_config.items() if value != "absent"}))


def test_rope_parameters_of_transformers_5_are_read(written):
    config, _, directory = written
    new = {"rope_type": "default", "rope_theta": config.rope_theta}
    update_config(directory, rope_theta="absent", rope_parameters=new)
    assert interop.from_huggingface(str(directory))[0] == config


LENGTH = {"original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "factor": 4.0}, Linear(4.0)
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}, Dynamic(4.0, 40)
LLAMA3 = (
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | LENGTH,
    Llama3(original_max_length=16),
)
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0} | LENGTH, Yarn(4.0, 16, beta_fast=16.0)
DEEPSEEK = {"mscale": 0.7, "mscale_all_dim": 1.5, "truncate": False}


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        LINEAR,
        DYNAMIC,
        LLAMA3,
        YARN,
        (YARN[0] | {"attention_factor": 1.25}, dataclasses.replace(YARN[1], attention_scale=1.25)),
        (YARN[0] | DEEPSEEK, dataclasses.replace(YARN[1], mscale=0.7, mscale_all_dim=1.5, truncate=False)),
        ({"rope_type": "yarn", "factor": 4}, Yarn(4.0, 40)),
    ],
)
@pytest.mark.parametrize("spelling", ["rope_type", "type", "rope_parameters"])
def test_rope_scaling_round_trips(written, keys, scaling, spelling, tmp_path):
    config, model, directory = written
    keys = dict(keys)
    if spelling == "rope_parameters":
        update_config(directory, rope_theta="absent", rope_parameters=keys | {"rope_theta": config.rope_theta})
    else:
        update_config(directory, rope_scaling={spelling: keys.pop("rope_type")} | keys)
    found = interop.from_huggingface(str(directory))[0]
    expected = dataclasses.replace(config, rope_scaling=scaling, max_length=160 if isinstance(scaling, Dynamic) else 40)
    assert found == expected
    interop.to_huggingface({"model": model}, found, str(tmp_path / "out"))
    hf_config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert hf_config["max_position_embeddings"] == 40 and hf_config["rope_theta"] == config.rope_theta
    written_scaling = hf_config["rope_scaling"]
    assert written_scaling.items() >= {k: v for k, v in keys.items() if k not in ("rope_type", "type")}.items()
    assert interop.config_from_huggingface(str(tmp_path / "out")) == expected


def test_max_length_may_differ(written):
    config, _, directory = written
    interop.read(str(directory), dataclasses.replace(config, max_length=1000))


def test_missing_keys_have_transformers_defaults():
    llama = mapping.config_from_huggingface({"model_type": "llama"})
    assert llama == LlamaConfig(max_length=2048, norm_epsilon=1e-6)
    mistral = mapping.config_from_huggingface({"model_type": "mistral"})
    assert mistral == LlamaConfig(
        mlp_dim=14336, num_kv_heads=8, max_length=131072, norm_epsilon=1e-6, attention_windows=(4096,)
    )


def test_mistral_without_window_stays_a_mistral():
    hf_config = {"model_type": "mistral", "sliding_window": None, "num_key_value_heads": None}
    config = mapping.config_from_huggingface(hf_config)
    assert config.attention_windows == (None,) and config.num_kv_heads == 32
    written = mapping.config_to_huggingface(config)
    assert (written["architectures"], written["sliding_window"]) == (["MistralForCausalLM"], None)
    assert mapping.config_from_huggingface(written) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope_scaling": {"rope_type": "longrope", "factor": 8.0}},
            "'longrope': not supported. Supported: default, lin",
        ),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "missing keys: low_freq_factor, high_freq_factor"),
        (
            {"rope_scaling": LLAMA3[0] | {"original_max_position_embeddings": None}},
            "missing keys: original_max_position",
        ),
        ({"rope_scaling": {"type": "linear"}}, "missing keys: factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "Linear.factor=0.5 must be at least 1"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor '2': must be a number"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 1e29}},
            "factor · max_position_embeddings .*: must be a positive integer, at most",
        ),
        ({"rope_scaling": YARN[0] | {"truncate": 1}}, "truncate 1: must be true or false"),
        ({"rope_scaling": LLAMA3[0], "rope_parameters": YARN[0]}, "must be equal"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "All layers must have the same rotary positions",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5: not supported"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "All layers must have the same type"),
    ],
)
def test_unsupported_config_raises(written, changes, message):
    directory = written[2]
    update_config(directory, **changes)
    with pytest.raises(ValueError, match=message):
        interop.from_huggingface(str(directory))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"attention_windows": (None, 4)},
            r"attention_windows=\(None, 4\): not supported by transformers' Mistral, whose layers all have",
        ),
        ({"attention_windows": (4,)}, "attention_bias=True: not supported by transformers' Mistral. Set False"),
        ({"model_type": "mistral"}, "attention_bias=True: not supported by transformers' Mistral. Set False"),
        (
            {"model_type": "llama", "attention_windows": (4,)},
            r"attention_windows=\(4,\): not supported by transformers' Llama. Set \(None,\)",
        ),
    ],
)
def test_unsupported_model_raises_and_writes_nothing(changes, message, tmp_path):
    config = dataclasses.replace(LLAMA, **changes)
    with pytest.raises(ValueError, match=message):
        interop.to_huggingface({"model": random_model(config)}, config, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
