"""Llama and Mistral from and to transformers' files: layouts by hand, old and new spellings, errors by tensor name."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from t5x_like import interop, parameters
from t5x_like.interop import llama as mapping
from t5x_like.interop import safetensors_files
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


def leaves(model):
    return parameters.stack(parameters.named_leaves(model))


def random(config):
    """A network without zeros, so that nothing can be mistaken for something else."""
    model = jax.eval_shape(config.make, jax.random.key(0))
    rng = np.random.default_rng(0)
    return parameters.map_named(lambda name, leaf: rng.normal(size=leaf.shape).astype(np.float32), model)


@pytest.fixture(params=[LLAMA, MISTRAL], ids=["llama", "mistral"])
def written(request, tmp_path):
    model = random(request.param)
    interop.to_huggingface({"model": model}, model.config, str(tmp_path))
    return request.param, model, tmp_path


@pytest.mark.parametrize("scan", [False, True])
def test_there_and_back(written, scan):
    config, model, folder = written
    read_config, read = interop.from_huggingface(str(folder), scan_layers=scan)
    assert read_config == dataclasses.replace(config, scan_layers=scan)
    expected, found = leaves(model), leaves(read)
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_kernels_by_hand(written):
    _, model, folder = written
    tensors, layer = safetensors_files.Tensors(str(folder)), model.decoder.layers[1]
    # [outputs, inputs], the outputs being head after head.
    key = tensors["model.layers.1.self_attn.k_proj.weight"]
    assert key.shape == (2 * 6, 10) and key[1 * 6 + 2, 5] == layer.attention.key.kernel[5, 1, 2]
    out = tensors["model.layers.1.self_attn.o_proj.weight"]
    assert out.shape == (10, 4 * 6) and out[5, 3 * 6 + 2] == layer.attention.out.kernel[3, 2, 5]
    np.testing.assert_array_equal(tensors["model.layers.1.mlp.gate_proj.weight"].T, layer.mlp.wi_0.kernel)
    np.testing.assert_array_equal(tensors["model.layers.1.mlp.up_proj.weight"].T, layer.mlp.wi_1.kernel)


@pytest.mark.parametrize("config", [LLAMA, MISTRAL], ids=["llama", "mistral"])
def test_every_parameter_is_in_the_table_once(config):
    rows = mapping.table(config)
    named = leaves(jax.eval_shape(dataclasses.replace(config, scan_layers=True).make, jax.random.key(0)))
    assert sorted(row.ours for row in rows) == sorted(f"model/{name}" for name in named)
    assert len({row.theirs for row in rows}) == len(rows)


def rewrite(folder, change):
    tensors = dict(safetensors_files.Tensors(str(folder)))
    change(tensors)
    safetensors_files.write(str(folder), tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.pop("model.layers.1.mlp.up_proj.weight"),
            r"'model.layers.1.mlp.up_proj.weight' is missing; "
            r"model/decoder/layers/mlp/wi_1/kernel \(10, 14\) needs it in shape \(14, 10\)",
        ),
        (
            lambda t: t.update({"model.layers.0.self_attn.k_proj.weight": np.ones((24, 10), np.float32)}),
            r"'model.layers.0.self_attn.k_proj.weight' has shape \(24, 10\); "
            r"model/decoder/layers/attention/key/kernel \(10, 2, 6\) needs it in shape \(12, 10\)",
        ),
        (lambda t: t.update({"score.weight": np.ones((2, 10), np.float32)}), "no place for, such as 'score.weight'"),
    ],
)
def test_tensors_that_do_not_fit_are_named(written, change, message):
    folder = written[2]
    rewrite(folder, change)
    with pytest.raises(ValueError, match=message):
        interop.from_huggingface(str(folder))


def test_a_truncated_file_is_refused_by_name(written):
    folder = written[2]
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="model.safetensors"):
        interop.from_huggingface(str(folder))


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"])
def test_wave_lengths_in_old_files_are_not_needed(written, name):
    rewrite(written[2], lambda t: t.update({name: np.ones(3, np.float32)}))
    interop.from_huggingface(str(written[2]))


def test_logits_that_are_not_the_embeddings_are_not_lost(tmp_path):
    interop.to_huggingface({"model": random(MISTRAL)}, MISTRAL, str(tmp_path))
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    interop.from_huggingface(str(tmp_path))
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["lm_head.weight"] + 1}))
    with pytest.raises(ValueError, match="'lm_head.weight' differs from 'model.embed_tokens.weight'"):
        interop.from_huggingface(str(tmp_path))


def describe(folder, **changes):
    file = folder / "config.json"
    described = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in described.items() if value != "absent"}))


def test_new_files_say_rotations_in_one_place(written):
    config, _, folder = written
    new = {"rope_type": "default", "rope_theta": config.rope_theta}
    describe(folder, rope_theta="absent", rope_parameters=new)
    assert interop.from_huggingface(str(folder))[0] == config


def test_what_a_config_leaves_out_has_transformers_defaults():
    llama = mapping.config_from_huggingface({"model_type": "llama"}, "here")
    assert llama == LlamaConfig(max_length=2048, norm_epsilon=1e-6)
    mistral = mapping.config_from_huggingface({"model_type": "mistral"}, "here")
    assert mistral == LlamaConfig(
        mlp_dim=14336, num_kv_heads=8, max_length=131072, norm_epsilon=1e-6, attention_windows=(4096,)
    )


def test_a_mistral_without_a_window_is_a_llama():
    described = {"model_type": "mistral", "sliding_window": None, "num_key_value_heads": None}
    config = mapping.config_from_huggingface(described, "here")
    assert config.attention_windows == (None,) and config.num_kv_heads == 32
    assert mapping.config_to_huggingface(config)["model_type"] == "llama"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "scales its rotations by 'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "scales its rotations by 'linear'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "scales its rotations by 'yarn'"),
        ({"hidden_act": "mish"}, "hidden_act 'mish'; there are silu"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "there is one for all layers"),
    ],
)
def test_configs_of_another_network_are_refused(written, changes, message):
    folder = written[2]
    describe(folder, **changes)
    with pytest.raises(ValueError, match=message):
        interop.from_huggingface(str(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_windows": (None, 4)}, r"no layers that take turns: attention_windows=\(None, 4\)"),
        ({"attention_windows": (4,)}, "mistral has no biases: attention_bias=True"),
        ({"activations": ("silu",)}, r"llama has no activations=\('silu',\)"),
    ],
)
def test_what_transformers_lacks_is_not_written(changes, message, tmp_path):
    config = dataclasses.replace(LLAMA, **changes)
    with pytest.raises(ValueError, match=message):
        interop.to_huggingface({"model": random(config)}, config, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
