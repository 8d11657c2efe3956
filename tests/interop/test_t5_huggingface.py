"""Folders of Hugging Face T5: there and back, and what does not fit. Parity with transformers is in tests/models."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from t5x_like import interop, parameters
from t5x_like.errors import UserError
from t5x_like.interop import safetensors_files
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


def leaves(model):
    return parameters.stack(parameters.named_leaves(model))


@pytest.fixture(params=[V1_1, V1_0], ids=["1.1", "1.0"])
def written(request, tmp_path):
    model = request.param.make(jax.random.key(0))
    interop.to_huggingface({"model": model}, model.config, str(tmp_path))
    return request.param, model, tmp_path


def test_a_kernel_by_hand(written):
    _, model, folder = written
    tensors = safetensors_files.Tensors(str(folder))
    query = np.asarray(model.decoder.layers[1].cross_attention.query.kernel[...])
    theirs = tensors["decoder.block.1.layer.1.EncDecAttention.q.weight"]
    # [outputs, inputs], the outputs being head after head.
    assert theirs.shape == (6, 8) and theirs[1 * 3 + 2, 5] == query[5, 1, 2]
    out = np.asarray(model.encoder.layers[0].attention.out.kernel[...])
    assert tensors["encoder.block.0.layer.0.SelfAttention.o.weight"][5, 1 * 3 + 2] == out[1, 2, 5]


def rewrite(folder, change):
    tensors = dict(safetensors_files.Tensors(str(folder)))
    change(tensors)
    safetensors_files.write(str(folder), tensors)


def test_copies_of_the_embeddings_are_no_strangers(written):
    config, _, folder = written
    shared = safetensors_files.Tensors(str(folder))["shared.weight"]
    copies = {"encoder.embed_tokens.weight": shared, "decoder.embed_tokens.weight": shared}
    rewrite(folder, lambda t: t.update(copies | ({"lm_head.weight": shared} if config.tied_embeddings else {})))
    interop.from_huggingface(str(folder))


def describe(folder, **changes):
    file = folder / "config.json"
    described = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in described.items() if value != "absent"}))


def test_what_a_config_leaves_out_has_transformers_defaults(written):
    config, _, folder = written
    describe(folder, dropout_rate="absent", layer_norm_epsilon="absent", relative_attention_max_distance="absent")
    found = interop.from_huggingface(str(folder))[0]
    assert dataclasses.replace(found, special_tokens=None) == config


def test_logits_of_their_own_are_not_lost(tmp_path):
    interop.to_huggingface({"model": V1_0.make(jax.random.key(0))}, V1_0, str(tmp_path))
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["shared.weight"] + 1}))
    with pytest.raises(ValueError, match="'lm_head.weight' differs from 'shared.weight'"):
        interop.from_huggingface(str(tmp_path))


def test_sizes_that_are_missing_are_named(written):
    describe(written[2], d_kv="absent", d_ff="absent")
    with pytest.raises(UserError, match="config.json: does not say d_ff, d_kv"):
        interop.from_huggingface(str(written[2]))
