"""Folders of Hugging Face T5: there and back, and what does not fit. Parity with transformers is in tests/models."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from t5x_like import interop, parameters, weight_files
from t5x_like.interop import safetensors_files
from t5x_like.interop import t5 as mapping
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


@pytest.mark.parametrize("scan", [False, True])
def test_there_and_back(written, scan):
    config, model, folder = written
    read_config, read = interop.from_huggingface(str(folder), scan_layers=scan)
    assert read_config == dataclasses.replace(config, scan_layers=scan)
    expected, found = leaves(model), leaves(read)
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert parameters.logical_axes(read) == parameters.logical_axes(jax.eval_shape(read_config.make, jax.random.key(0)))


def test_a_scanned_network_writes_the_same_file(written, tmp_path):
    config, _, folder = written
    scanned = dataclasses.replace(config, scan_layers=True).make(jax.random.key(0))
    interop.to_huggingface({"model": scanned}, scanned.config, str(tmp_path / "scanned"))
    assert (tmp_path / "scanned/model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_kernel_by_hand(written):
    _, model, folder = written
    tensors = safetensors_files.Tensors(str(folder))
    query = np.asarray(model.decoder.layers[1].cross_attention.query.kernel[...])
    theirs = tensors["decoder.block.1.layer.1.EncDecAttention.q.weight"]
    # [outputs, inputs], the outputs being head after head.
    assert theirs.shape == (6, 8) and theirs[1 * 3 + 2, 5] == query[5, 1, 2]
    out = np.asarray(model.encoder.layers[0].attention.out.kernel[...])
    assert tensors["encoder.block.0.layer.0.SelfAttention.o.weight"][5, 1 * 3 + 2] == out[1, 2, 5]


@pytest.mark.parametrize("config", [V1_1, V1_0], ids=["1.1", "1.0"])
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
            lambda t: t.pop("encoder.block.1.layer.1.DenseReluDense.wo.weight"),
            r"'encoder.block.1.layer.1.DenseReluDense.wo.weight' is missing; "
            r"model/encoder/layers/mlp/wo/kernel \(12, 8\) needs it in shape \(8, 12\)",
        ),
        (
            lambda t: t.update({"encoder.final_layer_norm.weight": np.ones(9, np.float32)}),
            r"'encoder.final_layer_norm.weight' has shape \(9,\); "
            r"model/encoder/norm/scale \(8,\) needs it in shape \(8,\)",
        ),
        (lambda t: t.update({"adapter.weight": np.ones(2, np.float32)}), "no place for, such as 'adapter.weight'"),
    ],
)
def test_tensors_that_do_not_fit_are_named(written, change, message):
    folder = written[2]
    rewrite(folder, change)
    with pytest.raises(ValueError, match=message):
        interop.from_huggingface(str(folder))


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
    assert interop.from_huggingface(str(folder))[0] == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "squid"}, "model_type 'squid'; there are .*t5"),
        ({"feed_forward_proj": "gated-silu"}, "feed_forward_proj 'gated-silu'; there are relu"),
        ({"d_kv": "absent"}, "does not say d_kv"),
    ],
)
def test_configs_of_another_network_are_refused(written, changes, message):
    folder = written[2]
    describe(folder, **changes)
    with pytest.raises(ValueError, match=message):
        interop.from_huggingface(str(folder))


def test_an_activation_that_transformers_lacks_is_not_written(tmp_path):
    model = dataclasses.replace(V1_1, activations=("relu", "gelu")).make(jax.random.key(0))
    with pytest.raises(ValueError, match="no block with activations"):
        interop.to_huggingface({"model": model}, model.config, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_door_takes_the_caller_s_layout_and_dtype(written):
    config, model, folder = written
    assert weight_files.is_huggingface(str(folder)) and not weight_files.is_huggingface(str(folder.parent))
    wanted = dataclasses.replace(config, scan_layers=True, dtype="bfloat16", dropout_rate=0.0, remat="full")
    read = interop.read(str(folder), wanted)
    assert read.keys() == {f"model/{name}" for name in leaves(model)}
    name = "decoder/layers/mlp/wo/kernel"
    np.testing.assert_array_equal(read[f"model/{name}"], leaves(model)[name])


def test_the_door_refuses_another_architecture_and_leaves_the_vocabulary_to_the_shapes(written):
    config, _, folder = written
    with pytest.raises(ValueError, match="mlp_dim: 12 there, 16 here; norm_epsilon: 1e-06 there, 1e-05 here"):
        interop.read(str(folder), dataclasses.replace(config, mlp_dim=16, norm_epsilon=1e-5))
    read = interop.read(str(folder), dataclasses.replace(config, vocab_size=99))
    assert read["model/token_embedder/embedding"].shape == (31, 8)


def test_logits_of_their_own_are_not_lost(tmp_path):
    interop.to_huggingface({"model": V1_0.make(jax.random.key(0))}, V1_0, str(tmp_path))
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["shared.weight"] + 1}))
    with pytest.raises(ValueError, match="'lm_head.weight' differs from 'shared.weight'"):
        interop.from_huggingface(str(tmp_path))
