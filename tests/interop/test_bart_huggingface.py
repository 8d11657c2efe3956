"""Hugging Face directories of BART. The parity tests in tests/models compare with transformers."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from stored_weights import leaves, rewrite

from t5x_like import interop, parameters
from t5x_like.interop import safetensors_files
from t5x_like.models.bart import BartConfig

CONFIG = BartConfig(
    vocab_size=31,
    embed_dim=6,
    mlp_dim=10,
    num_heads=2,
    head_dim=3,
    encoder_layers=2,
    decoder_layers=3,
    max_length=9,
    attention_dropout_rate=0.2,
)


def make(config):
    """Returns a model with random values, so that all tensors differ."""
    like, rng = jax.eval_shape(config.make, jax.random.key(0)), np.random.default_rng(0)
    return parameters.map_named(lambda name, leaf: rng.normal(size=leaf.shape).astype(np.float32), like)


@pytest.fixture
def written(tmp_path):
    model = make(CONFIG)
    interop.to_huggingface({"model": model}, CONFIG, str(tmp_path))
    return model, tmp_path


def update_config(directory, **changes):
    file = directory / "config.json"
    hf_config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in hf_config.items() if value != "absent"}))


def assert_reads_back(written):
    model, directory = written
    expected, found = leaves(model), leaves(interop.from_huggingface(str(directory))[1])
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


# ---- round trips -----------------------------------------------------------------------------------------------------


def test_attention_tensors_have_expected_layout(written):
    model, directory = written
    tensors = safetensors_files.Tensors(str(directory))
    cross, hf_name = model.decoder.layers[1].cross_attention, "model.decoder.layers.1.encoder_attn"
    # [outputs inputs], outputs ordered by head.
    assert tensors[f"{hf_name}.v_proj.weight"][1 * 3 + 2, 5] == cross.value.kernel[...][5, 1, 2]
    assert tensors[f"{hf_name}.v_proj.bias"][1 * 3 + 2] == cross.value.bias[...][1, 2]
    assert tensors[f"{hf_name}.out_proj.weight"][4, 1 * 3 + 2] == cross.out.kernel[...][1, 2, 4]
    # The table has position_offset = 2 more rows than positions.
    assert tensors["model.encoder.embed_positions.weight"].shape == (11, 6)


def test_config_of_bart_base_is_read(tmp_path):
    # The keys of facebook/bart-base's config.json that determine its architecture.
    hf_config = {"model_type": "bart", "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "vocab_size": 50265}
    hf_config |= {f"{stack}_ffn_dim": 3072 for stack in ("encoder", "decoder")}
    hf_config |= {f"{stack}_attention_heads": 12 for stack in ("encoder", "decoder")}
    hf_config |= {"attention_dropout": 0.1, "activation_dropout": 0.1, "normalize_before": False}
    hf_config |= {"normalize_embedding": True, "scale_embedding": False, "add_bias_logits": False}
    (tmp_path / "config.json").write_text(json.dumps(hf_config))
    assert interop.config_from_huggingface(str(tmp_path)) == BartConfig(attention_dropout_rate=0.1)


# ---- other tensor names ----------------------------------------------------------------------------------------------


def test_files_without_prefix_are_read(written):
    def bare(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    rewrite(written[1], bare)
    assert_reads_back(written)


def test_version_markers_and_fine_tuned_heads_are_ignored(written):
    extra = ("encoder.version", "model.decoder.version", "classification_head.dense.weight", "qa_outputs.bias")
    rewrite(written[1], lambda t: t.update({name: np.ones(3, np.float32) for name in extra}))
    assert_reads_back(written)


COPIES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")


def test_copies_of_embeddings_are_accepted(written):
    rewrite(written[1], lambda t: t.update({name: t["model.shared.weight"] for name in COPIES}))
    assert_reads_back(written)


@pytest.mark.parametrize("name", COPIES)
def test_different_copy_of_embeddings_raises(written, name):
    rewrite(written[1], lambda t: t.update({name: t["model.shared.weight"] + 1}))
    with pytest.raises(ValueError, match=f"'{name}' differs from 'model.shared.weight'"):
        interop.from_huggingface(str(written[1]))


def test_nonzero_bias_of_logits_raises(written):
    bias = np.zeros((1, 31), np.float32)
    rewrite(written[1], lambda t: t.update({"final_logits_bias": bias}))
    assert_reads_back(written)
    bias[0, 7] = -0.5
    rewrite(written[1], lambda t: t.update({"final_logits_bias": bias}))
    with pytest.raises(ValueError, match="'final_logits_bias' is not zero"):
        interop.from_huggingface(str(written[1]))


# ---- unsupported models ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_ffn_dim": "absent"}, "missing keys: encoder_ffn_dim"),
        ({"decoder_ffn_dim": 11}, "decoder_ffn_dim 11: not supported. The only supported value is 10"),
        ({"decoder_attention_heads": 3}, "decoder_attention_heads 3: not supported. The only supported value is 2"),
        ({"scale_embedding": True}, "scale_embedding True: not supported. The only supported value is False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings False: not supported"),
        ({"normalize_before": True}, "normalize_before True: not supported"),
        (
            {"encoder_attention_heads": 4, "decoder_attention_heads": 4},
            "d_model 6: not divisible by encoder_attention_heads 4",
        ),
    ],
)
def test_unsupported_config_raises(written, changes, message):
    update_config(written[1], **changes)
    with pytest.raises(ValueError, match=message):
        interop.from_huggingface(str(written[1]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"head_dim": 4},
            "head_dim=4: not supported .* requires embed_dim / num_heads = 6 / 2",
        ),
        ({"position_offset": 0}, "position_offset=0: not supported by transformers' BART. Set 2"),
        ({"norm_epsilon": 1e-12}, "norm_epsilon=1e-12: not supported by transformers' BART. Set 1e-05"),
    ],
)
def test_unsupported_model_raises_and_writes_nothing(tmp_path, changes, message):
    config = dataclasses.replace(CONFIG, encoder_layers=1, decoder_layers=1, **changes)
    with pytest.raises(ValueError, match=message):
        interop.to_huggingface({"model": make(config)}, config, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
