"""Hugging Face directories of T5. The parity tests in tests/models compare with transformers."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from stored_weights import leaves, rewrite

from t5x_like import interop
from t5x_like.errors import UserError
from t5x_like.interop import safetensors_files
from t5x_like.models.mt5 import MT5Config
from t5x_like.models.t5 import T5Config

V1_1 = T5Config(
    vocab_size=31,
    embed_dim=8,
    mlp_dim=12,
    num_heads=2,
    head_dim=3,
    encoder_layers=2,
    decoder_layers=3,
    dropout_rate=0.1,
)
V1_0 = dataclasses.replace(V1_1, activations=("relu",), tied_embeddings=True)


@pytest.fixture(params=[V1_1, V1_0], ids=["1.1", "1.0"])
def written(request, tmp_path):
    model = request.param.make(jax.random.key(0))
    interop.to_huggingface({"model": model}, model.config, str(tmp_path))
    return request.param, model, tmp_path


def test_attention_kernels_have_expected_layout(written):
    _, model, directory = written
    tensors = safetensors_files.Tensors(str(directory))
    query = np.asarray(model.decoder.layers[1].cross_attention.query.kernel[...])
    tensor = tensors["decoder.block.1.layer.1.EncDecAttention.q.weight"]
    # [outputs inputs], outputs ordered by head.
    assert tensor.shape == (6, 8) and tensor[1 * 3 + 2, 5] == query[5, 1, 2]
    out = np.asarray(model.encoder.layers[0].attention.out.kernel[...])
    assert tensors["encoder.block.0.layer.0.SelfAttention.o.weight"][5, 1 * 3 + 2] == out[1, 2, 5]


def test_copies_of_embeddings_are_accepted(written):
    config, _, directory = written
    shared = safetensors_files.Tensors(str(directory))["shared.weight"]
    copies = {"encoder.embed_tokens.weight": shared, "decoder.embed_tokens.weight": shared}
    rewrite(directory, lambda t: t.update(copies | ({"lm_head.weight": shared} if config.tied_embeddings else {})))
    interop.from_huggingface(str(directory))


def update_config(directory, **changes):
    file = directory / "config.json"
    hf_config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in hf_config.items() if value != "absent"}))


def test_missing_keys_have_transformers_defaults(written):
    config, _, directory = written
    update_config(
        directory, dropout_rate="absent", layer_norm_epsilon="absent", relative_attention_max_distance="absent"
    )
    found = interop.from_huggingface(str(directory))[0]
    assert dataclasses.replace(found, special_tokens=None) == config


def test_untied_logits_raise_for_tied_config(tmp_path):
    interop.to_huggingface({"model": V1_0.make(jax.random.key(0))}, V1_0, str(tmp_path))
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["shared.weight"] + 1}))
    with pytest.raises(ValueError, match="'lm_head.weight' differs from 'shared.weight'"):
        interop.from_huggingface(str(tmp_path))


def test_missing_sizes_raise(written):
    update_config(written[2], d_kv="absent", d_ff="absent")
    with pytest.raises(UserError, match="config.json: missing keys: d_ff, d_kv"):
        interop.from_huggingface(str(written[2]))


@pytest.mark.parametrize("stored_logits", [True, False])
@pytest.mark.parametrize(
    ("kind", "settings"), [(T5Config, {}), (MT5Config, {"transformers_version": "5.24.0"})], ids=["t5", "mt5"]
)
def test_files_of_transformers_5_have_untied_logits_without_scale(tmp_path, kind, settings, stored_logits):
    config = kind(**{field.name: getattr(V1_1, field.name) for field in dataclasses.fields(V1_1)})
    model = config.make(jax.random.key(0))
    interop.to_huggingface({"model": model}, config, str(tmp_path))
    update_config(tmp_path, tie_word_embeddings=True, **(settings or {"scale_decoder_outputs": False}))
    expected = leaves(model)
    if not stored_logits:
        rewrite(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
        expected["logits/kernel"] = np.asarray(expected["token_embedder/embedding"]).T
    config, found = interop.from_huggingface(str(tmp_path))
    assert not config.tied_embeddings
    jax.tree.map(np.testing.assert_array_equal, leaves(found), expected)


def test_missing_logits_of_an_untied_model_raise(tmp_path):
    interop.to_huggingface({"model": V1_1.make(jax.random.key(0))}, V1_1, str(tmp_path))
    rewrite(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(UserError, match="tensor 'lm_head.weight' is missing"):
        interop.from_huggingface(str(tmp_path))


def test_tied_model_of_transformers_5_scales_its_logits(tmp_path):
    interop.to_huggingface({"model": V1_0.make(jax.random.key(0))}, V1_0, str(tmp_path))
    update_config(tmp_path, tie_word_embeddings=True, scale_decoder_outputs=True)
    assert interop.config_from_huggingface(str(tmp_path)).tied_embeddings
