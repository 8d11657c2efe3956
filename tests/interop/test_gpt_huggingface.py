"""GPT and GPT-2 from and to transformers' files: layouts by hand, old spellings, errors by tensor name."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from t5x_like import interop, parameters
from t5x_like.interop import gpt as mapping
from t5x_like.interop import safetensors_files
from t5x_like.models.gpt import GPTConfig

GPT2 = GPTConfig(
    vocab_size=31, embed_dim=12, mlp_dim=20, num_heads=3, head_dim=4, num_layers=2, max_length=9, norm_epsilon=1e-6
)
GPT1 = dataclasses.replace(GPT2, norm_position="post", mlp_dim=48, tied_embeddings=False)


def leaves(model):
    return parameters.stack(parameters.named_leaves(model))


def random(config):
    """A network without zeros, so that nothing can be mistaken for something else."""
    model = jax.eval_shape(config.make, jax.random.key(0))
    rng = np.random.default_rng(0)
    return parameters.map_named(lambda name, leaf: rng.normal(size=leaf.shape).astype(np.float32), model)


@pytest.fixture(params=[GPT2, GPT1], ids=["gpt2", "gpt1"])
def written(request, tmp_path):
    model = random(request.param)
    interop.to_huggingface({"model": model}, model.config, str(tmp_path))
    return request.param, model, tmp_path


def test_queries_keys_and_values_are_thirds_of_one_tensor(written):
    _, model, folder = written
    tensors = safetensors_files.Tensors(str(folder))
    attention = model.decoder.layers[1].attention
    kernel, bias = (tensors[f"transformer.h.1.attn.c_attn.{what}"] for what in ("weight", "bias"))
    assert kernel.shape == (12, 3 * 12) and bias.shape == (3 * 12,)
    # [inputs, outputs]: the third with the values, head 1, entry 2.
    assert kernel[5, 2 * 12 + 1 * 4 + 2] == attention.value.kernel[5, 1, 2]
    assert bias[1 * 12 + 2 * 4 + 3] == attention.key.bias[2, 3]
    assert tensors["transformer.h.1.attn.c_proj.weight"][1 * 4 + 2, 7] == attention.out.kernel[1, 2, 7]
    np.testing.assert_array_equal(tensors["transformer.h.0.mlp.c_fc.weight"], model.decoder.layers[0].mlp.wi.kernel)


def rewrite(folder, change):
    tensors = dict(safetensors_files.Tensors(str(folder)))
    change(tensors)
    safetensors_files.write(str(folder), tensors)


def test_public_files_without_prefix_and_with_causal_masks_are_read(written):
    _, model, folder = written

    def old(tensors):
        bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        masks = {f"h.{layer}.attn.bias": np.tril(np.ones((1, 1, 9, 9), np.float32)) for layer in range(2)}
        buffers = {"h.0.attn.masked_bias": np.float32([-1e4]), "position_ids": np.arange(9, dtype=np.float32)}
        tensors.clear()
        tensors.update(bare | masks | buffers)

    rewrite(folder, old)
    found = leaves(interop.from_huggingface(str(folder))[1])
    for name, leaf in leaves(model).items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)


def test_a_copy_of_the_embeddings_is_no_stranger_and_another_one_is_not_lost(tmp_path):
    interop.to_huggingface({"model": random(GPT2)}, GPT2, str(tmp_path))
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"]}))
    interop.from_huggingface(str(tmp_path))
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["lm_head.weight"] + 1}))
    with pytest.raises(ValueError, match="'lm_head.weight' differs from 'transformer.wte.weight'"):
        interop.from_huggingface(str(tmp_path))


def describe(folder, **changes):
    file = folder / "config.json"
    described = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in described.items() if value != "absent"}))


def test_what_a_config_leaves_out_has_transformers_defaults():
    bare = mapping.config_from_huggingface({"model_type": "gpt2"})
    assert bare == GPTConfig()
    first = mapping.config_from_huggingface({"model_type": "openai-gpt", "n_ctx": 512})
    assert first == GPTConfig(vocab_size=40478, max_length=512, norm_position="post")


@pytest.mark.parametrize(
    ("kind", "theirs", "ours"),
    [("gpt2", "gelu_new", "gelu"), ("gpt2", "gelu", "gelu_exact"), ("openai-gpt", "gelu", "gelu")],
)
def test_gelu_means_the_tanh_form_in_gpt_and_the_exact_one_in_gpt2(kind, theirs, ours):
    described = {"model_type": kind, "activation_function" if kind == "gpt2" else "afn": theirs}
    assert mapping.config_from_huggingface(described).activations == (ours,)


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
def test_configs_of_another_network_are_refused(written, changes, message):
    folder = written[2]
    describe(folder, **changes)
    with pytest.raises(ValueError, match=message):
        interop.from_huggingface(str(folder))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dataclasses.replace(GPT2, attention_windows=(None, 4)), r"gpt2 has no attention_windows=\(None, 4\)"),
        (dataclasses.replace(GPT2, head_dim=5), "gpt2 has no heads that are not embed_dim=12 wide together"),
        (dataclasses.replace(GPT1, activations=("gelu_exact",)), "openai-gpt has no activations="),
        (dataclasses.replace(GPT1, mlp_dim=20), "openai-gpt has no mlp_dim=20 that is not four times embed_dim=12"),
    ],
)
def test_what_transformers_lacks_is_not_written(config, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        interop.to_huggingface({"model": random(config)}, config, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
