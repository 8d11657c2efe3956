"""Hugging Face directories of GPT and GPT-2: tensor layouts, old tensor names, unsupported models."""

import dataclasses
import json

import numpy as np
import pytest
from families import random_model
from stored_weights import leaves, rewrite

from t5x_like import interop
from t5x_like.interop import gpt as mapping
from t5x_like.interop import safetensors_files
from t5x_like.models.gpt import GPTConfig

GPT2 = GPTConfig(
    vocab_size=31, embed_dim=12, mlp_dim=20, num_heads=3, head_dim=4, num_layers=2, max_length=9, norm_epsilon=1e-6
)
GPT1 = dataclasses.replace(GPT2, norm_position="post", mlp_dim=48, tied_embeddings=False)


@pytest.fixture(params=[GPT2, GPT1], ids=["gpt2", "gpt1"])
def written(request, tmp_path):
    model = random_model(request.param)
    interop.to_huggingface({"model": model}, model.config, str(tmp_path))
    return request.param, model, tmp_path


def test_query_key_and_value_share_one_tensor(written):
    _, model, directory = written
    tensors = safetensors_files.Tensors(str(directory))
    attention = model.decoder.layers[1].attention
    kernel, bias = (tensors[f"transformer.h.1.attn.c_attn.{what}"] for what in ("weight", "bias"))
    assert kernel.shape == (12, 3 * 12) and bias.shape == (3 * 12,)
    # [inputs outputs]: the last third holds the values; head 1, entry 2.
    assert kernel[5, 2 * 12 + 1 * 4 + 2] == attention.value.kernel[5, 1, 2]
    assert bias[1 * 12 + 2 * 4 + 3] == attention.key.bias[2, 3]
    assert tensors["transformer.h.1.attn.c_proj.weight"][1 * 4 + 2, 7] == attention.out.kernel[1, 2, 7]
    np.testing.assert_array_equal(tensors["transformer.h.0.mlp.c_fc.weight"], model.decoder.layers[0].mlp.wi.kernel)


def test_files_without_prefix_and_with_buffers_are_read(written):
    _, model, directory = written

    def old(tensors):
        bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        masks = {f"h.{layer}.attn.bias": np.tril(np.ones((1, 1, 9, 9), np.float32)) for layer in range(2)}
        buffers = {"h.0.attn.masked_bias": np.float32([-1e4]), "position_ids": np.arange(9, dtype=np.float32)}
        tensors.clear()
        tensors.update(bare | masks | buffers)

    rewrite(directory, old)
    found = leaves(interop.from_huggingface(str(directory))[1])
    for name, leaf in leaves(model).items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)


def test_copy_of_embeddings_is_accepted_only_if_equal(tmp_path):
    interop.to_huggingface({"model": random_model(GPT2)}, GPT2, str(tmp_path))
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"]}))
    interop.from_huggingface(str(tmp_path))
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["lm_head.weight"] + 1}))
    with pytest.raises(ValueError, match="'lm_head.weight' differs from 'transformer.wte.weight'"):
        interop.from_huggingface(str(tmp_path))


def update_config(directory, **changes):
    file = directory / "config.json"
    hf_config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in hf_config.items() if value != "absent"}))


def test_missing_keys_have_transformers_defaults():
    bare = mapping.config_from_huggingface({"model_type": "gpt2"})
    assert bare == GPTConfig()
    first = mapping.config_from_huggingface({"model_type": "openai-gpt", "n_ctx": 512})
    assert first == GPTConfig(vocab_size=40478, max_length=512, norm_position="post")


@pytest.mark.parametrize(
    ("model_type", "hf_activation", "activation"),
    [("gpt2", "gelu_new", "gelu"), ("gpt2", "gelu", "gelu_exact"), ("openai-gpt", "gelu", "gelu")],
)
def test_gelu_is_tanh_approximation_in_gpt_and_exact_in_gpt2(model_type, hf_activation, activation):
    hf_config = {"model_type": model_type, "activation_function" if model_type == "gpt2" else "afn": hf_activation}
    assert mapping.config_from_huggingface(hf_config).activations == (activation,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx True: not supported. The only supported value is False",
        ),
        ({"scale_attn_weights": False}, "scale_attn_weights False: not supported. The only supported value is True"),
        ({"n_head": 5}, "n_embd 12: not divisible by n_head 5"),
    ],
)
def test_unsupported_config_raises(written, changes, message):
    directory = written[2]
    update_config(directory, **changes)
    with pytest.raises(ValueError, match=message):
        interop.from_huggingface(str(directory))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            dataclasses.replace(GPT2, attention_windows=(None, 4)),
            r"attention_windows=\(None, 4\): not supported by transformers' GPT-2",
        ),
        (
            dataclasses.replace(GPT2, head_dim=5),
            "head_dim=5: not supported by transformers' GPT-2, which requires embed_dim / num_heads = 12 / 3",
        ),
        (
            dataclasses.replace(GPT1, activations=("gelu_exact",)),
            "not supported by transformers' GPT$",
        ),
        (
            dataclasses.replace(GPT1, mlp_dim=20),
            "mlp_dim=20: not supported by transformers' GPT, which requires 4 · embed_dim = 48",
        ),
    ],
)
def test_unsupported_model_raises_and_writes_nothing(config, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        interop.to_huggingface({"model": random_model(config)}, config, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
