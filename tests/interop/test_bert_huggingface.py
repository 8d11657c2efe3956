"""Hugging Face directories of BERT and RoBERTa: heads, old tensor names, unsupported models.

The parity tests in tests/models compare with transformers.
"""

import dataclasses
import json

import jax
import numpy as np
import pytest

from t5x_like import interop, parameters
from t5x_like.interop import bert as mapping
from t5x_like.interop import safetensors_files
from t5x_like.models.bert import BertConfig
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence

BERT = BertConfig(vocab_size=31, embed_dim=12, mlp_dim=20, num_heads=3, head_dim=4, num_layers=2, max_length=16)
ROBERTA = dataclasses.replace(
    BERT, position_offset=2, num_token_types=1, padding_id=1, activations=("gelu_exact",), norm_epsilon=1e-5
)
OBJECTIVES = {BERT: Joint([MaskedLM(), NextSentence()]), ROBERTA: MaskedLM()}
BOTH = pytest.mark.parametrize("config", [BERT, ROBERTA], ids=["bert", "roberta"])


def make(config):
    """Returns the model and its heads with random values, so that all tensors differ."""
    model = jax.eval_shape(config.make, jax.random.key(0))
    like = {"model": model, "objective": jax.eval_shape(OBJECTIVES[config].init, jax.random.key(0), model)}
    rng = np.random.default_rng(0)
    return parameters.map_named(lambda name, leaf: rng.normal(size=leaf.shape).astype(np.float32), like)


def leaves(tree):
    return {name: np.asarray(leaf) for name, leaf in parameters.stack(parameters.named_leaves(tree)).items()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def write(config, directory):
    params = make(config)
    interop.to_huggingface(params, config, str(directory))
    return params


def tensors_of(directory):
    return dict(safetensors_files.Tensors(str(directory)))


def rewrite(directory, change):
    """Writes the tensors that `change` returns, or the ones that it modified in place."""
    tensors = tensors_of(directory)
    safetensors_files.write(str(directory), change(tensors) or tensors)


def update_config(directory, **changes):
    file = directory / "config.json"
    hf_config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in hf_config.items() if value != "absent"}))


# ---- round trips -----------------------------------------------------------------------------------------------------


def test_attention_tensors_have_expected_layout(tmp_path):
    params, tensors = write(BERT, tmp_path), tensors_of(tmp_path)
    attention = params["model"].encoder.layers[1].attention
    # [outputs inputs], outputs ordered by head.
    query = tensors["bert.encoder.layer.1.attention.self.query.weight"]
    assert query.shape == (12, 12) and query[2 * 4 + 3, 5] == attention.query.kernel[...][5, 2, 3]
    assert tensors["bert.encoder.layer.1.attention.self.key.bias"][2 * 4 + 3] == attention.key.bias[...][2, 3]
    out = tensors["bert.encoder.layer.1.attention.output.dense.weight"]
    assert out[5, 2 * 4 + 3] == attention.out.kernel[...][2, 3, 5]
    pooler = params["objective"]["next_sentence"].pooler.kernel[...]
    assert tensors["bert.pooler.dense.weight"][1, 7] == pooler[7, 1]


@pytest.mark.parametrize(
    ("config", "heads", "expected"),
    [
        (BERT, ("masked_lm", "next_sentence"), "BertForPreTraining"),
        (BERT, ("masked_lm",), "BertForMaskedLM"),
        (BERT, ("next_sentence",), "BertForNextSentencePrediction"),
        (BERT, ("masked_lm", "next_sentence/pooler"), "BertForMaskedLM"),
        (BERT, ("next_sentence/pooler",), "BertModel"),
        (BERT, (), "BertModel"),
        (ROBERTA, ("masked_lm",), "RobertaForMaskedLM"),
        (ROBERTA, (), "RobertaModel"),
    ],
)
def test_architecture_depends_on_heads(config, heads, expected, tmp_path):
    params = leaves(make(config))
    kept = ("model/", *(f"objective/{head}/" for head in heads))
    part = {name: leaf for name, leaf in params.items() if name.startswith(kept)}
    interop.to_huggingface(part, config, str(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [expected]
    assert_equal(interop.read(str(tmp_path), config), part)


# ---- other tensor names ----------------------------------------------------------------------------------------------


@BOTH
def test_files_without_prefix_are_read(config, tmp_path):
    params = write(config, tmp_path)
    model_type = "roberta" if config is ROBERTA else "bert"
    pooler = np.ones((12, 12), np.float32)

    def bare(tensors):
        inside = {
            name.removeprefix(f"{model_type}."): array
            for name, array in tensors.items()
            if name.startswith(f"{model_type}.")
        }
        return inside | {"pooler.dense.weight": pooler, "pooler.dense.bias": pooler[0]}

    rewrite(tmp_path, bare)
    update_config(tmp_path, architectures=["RobertaModel" if config is ROBERTA else "BertModel"])
    found = interop.read(str(tmp_path), config)
    model_leaves = {name: leaf for name, leaf in found.items() if name.startswith("model/")}
    assert_equal(model_leaves, leaves({"model": params["model"]}))
    # BERT's pooler belongs to the next-sentence head. RoBERTa's is not pretrained and is ignored.
    poolers = {"objective/next_sentence/pooler/kernel", "objective/next_sentence/pooler/bias"}
    assert found.keys() - model_leaves.keys() == (poolers if config is BERT else set())


@BOTH
def test_old_names_buffers_and_copies_are_accepted(config, tmp_path):
    params = write(config, tmp_path)
    model_type, head = ("roberta", "lm_head") if config is ROBERTA else ("bert", "cls.predictions")

    def old(tensors):
        words, bias = tensors[f"{model_type}.embeddings.word_embeddings.weight"], tensors[f"{head}.bias"]
        tensors |= {f"{head}.decoder.weight": words, f"{head}.decoder.bias": bias}
        tensors[f"{model_type}.embeddings.position_ids"] = np.arange(18, dtype=np.float32)[None]
        return {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
            for name, array in tensors.items()
        }

    rewrite(tmp_path, old)
    assert f"{model_type}.encoder.layer.0.output.LayerNorm.gamma" in tensors_of(tmp_path)
    assert_equal(interop.read(str(tmp_path), config), leaves(params))


def test_missing_keys_have_transformers_defaults(tmp_path):
    config = dataclasses.replace(BERT, activations=("gelu_exact",), max_length=512)
    assert round_trip(config, "hidden_act", "max_position_embeddings", "layer_norm_eps", "pad_token_id") == config
    config = dataclasses.replace(ROBERTA, norm_epsilon=1e-12, max_length=510, num_token_types=2)
    assert round_trip(config, "max_position_embeddings", "layer_norm_eps", "pad_token_id", "type_vocab_size") == config


def round_trip(config, *absent):
    hf_config = mapping.config_to_huggingface(config)
    return mapping.config_from_huggingface({k: v for k, v in hf_config.items() if k not in absent})


def test_activation_names():
    for hf_activation, activation in {
        "gelu": "gelu_exact",
        "gelu_new": "gelu",
        "gelu_pytorch_tanh": "gelu",
        "swish": "silu",
    }.items():
        hf_config = mapping.config_to_huggingface(BERT) | {"hidden_act": hf_activation}
        assert mapping.config_from_huggingface(hf_config).activations == (activation,)


# ---- unsupported models ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.update({"cls.predictions.decoder.bias": t["cls.predictions.bias"] + 1}),
            "'cls.predictions.decoder.bias' differs from 'cls.predictions.bias'",
        ),
        (
            lambda t: t.update({"cls.predictions.decoder.weight": np.ones((31, 12), np.float32)}),
            "'cls.predictions.decoder.weight' differs from 'bert.embeddings.word_embeddings.weight'",
        ),
    ],
)
def test_different_copies_raise(change, message, tmp_path):
    write(BERT, tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(ValueError, match=message):
        interop.read(str(tmp_path), BERT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "absent"}, "missing keys: hidden_size"),
        ({"num_attention_heads": 5}, "hidden_size 12: not divisible by num_attention_heads 5"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder True: not supported. The only supported value is False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings False"),
    ],
)
def test_unsupported_config_raises(changes, message, tmp_path):
    write(BERT, tmp_path)
    update_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        interop.from_huggingface(str(tmp_path))


def test_roberta_head_requires_exact_gelu(tmp_path):
    write(ROBERTA, tmp_path)
    update_config(tmp_path, hidden_act="relu")
    with pytest.raises(
        ValueError, match="hidden_act 'relu': not supported with a masked-LM head, since transformers' RoBERTa head"
    ):
        interop.from_huggingface(str(tmp_path))
    config = dataclasses.replace(ROBERTA, activations=("relu",))
    assert mapping.config_to_huggingface(config)["hidden_act"] == "relu"
    with pytest.raises(ValueError, match=r"activations \('relu',\): not supported with a masked-LM head"):
        mapping.config_to_huggingface(config, ["objective/masked_lm/bias"])


@pytest.mark.parametrize(
    ("config", "heads", "message"),
    [
        (
            BERT,
            ("objective/next_sentence/classifier/bias",),
            "objective/next_sentence/classifier/bias: no BERT class of transformers has just",
        ),
        (dataclasses.replace(BERT, head_dim=5), (), "head_dim=5: .* requires embed_dim / num_heads = 12 / 3"),
        (
            dataclasses.replace(ROBERTA, padding_id=0),
            (),
            "position_offset=2 with padding_id=0: not supported .* Set padding_id=1",
        ),
        (
            ROBERTA,
            ("objective/next_sentence/pooler/bias",),
            "objective/next_sentence/pooler/bias: no RoBERTa class of transformers has just",
        ),
        (
            BERT,
            ("objective/discriminator/bias",),
            "objective/discriminator/bias: no BERT class of transformers has just",
        ),
    ],
)
def test_unsupported_model_raises(config, heads, message):
    with pytest.raises(ValueError, match=message):
        mapping.config_to_huggingface(config, heads)
