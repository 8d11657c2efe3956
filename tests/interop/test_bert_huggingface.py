"""Folders of Hugging Face BERT and RoBERTa: there and back with heads, old spellings, and what does not fit.

Parity with transformers is in tests/models.
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
    """The network and its heads, every value another one."""
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


def write(config, folder):
    params = make(config)
    interop.to_huggingface(params, config, str(folder))
    return params


def tensors_of(folder):
    return dict(safetensors_files.Tensors(str(folder)))


def rewrite(folder, change):
    """Writes the folder's tensors anew as `change` gives them, or as it left them."""
    tensors = tensors_of(folder)
    safetensors_files.write(str(folder), change(tensors) or tensors)


def describe(folder, **changes):
    file = folder / "config.json"
    described = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in described.items() if value != "absent"}))


# ---- there and back -----------------------------------------------------------------------------------------------


def test_tensors_by_hand(tmp_path):
    params, tensors = write(BERT, tmp_path), tensors_of(tmp_path)
    attention = params["model"].encoder.layers[1].attention
    # [outputs, inputs], the outputs being head after head.
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
def test_heads_say_which_class_it_is(config, heads, expected, tmp_path):
    params = leaves(make(config))
    kept = ("model/", *(f"objective/{head}/" for head in heads))
    part = {name: leaf for name, leaf in params.items() if name.startswith(kept)}
    interop.to_huggingface(part, config, str(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [expected]
    assert_equal(interop.read(str(tmp_path), config), part)


# ---- other files of the same networks -------------------------------------------------------------------------------


@BOTH
def test_the_bare_network_has_no_prefix(config, tmp_path):
    params = write(config, tmp_path)
    kind = "roberta" if config is ROBERTA else "bert"
    pooler = np.ones((12, 12), np.float32)

    def bare(tensors):
        inside = {
            name.removeprefix(f"{kind}."): array for name, array in tensors.items() if name.startswith(f"{kind}.")
        }
        return inside | {"pooler.dense.weight": pooler, "pooler.dense.bias": pooler[0]}

    rewrite(tmp_path, bare)
    describe(tmp_path, architectures=["RobertaModel" if config is ROBERTA else "BertModel"])
    found = interop.read(str(tmp_path), config)
    of_model = {name: leaf for name, leaf in found.items() if name.startswith("model/")}
    assert_equal(of_model, leaves({"model": params["model"]}))
    # BERT's pooler is the next-sentence head's; RoBERTa's was never trained.
    poolers = {"objective/next_sentence/pooler/kernel", "objective/next_sentence/pooler/bias"}
    assert found.keys() - of_model.keys() == (poolers if config is BERT else set())


@BOTH
def test_old_spellings_buffers_and_copies_are_no_strangers(config, tmp_path):
    params = write(config, tmp_path)
    kind, head = ("roberta", "lm_head") if config is ROBERTA else ("bert", "cls.predictions")

    def old(tensors):
        words, bias = tensors[f"{kind}.embeddings.word_embeddings.weight"], tensors[f"{head}.bias"]
        tensors |= {f"{head}.decoder.weight": words, f"{head}.decoder.bias": bias}
        tensors[f"{kind}.embeddings.position_ids"] = np.arange(18, dtype=np.float32)[None]
        return {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
            for name, array in tensors.items()
        }

    rewrite(tmp_path, old)
    assert f"{kind}.encoder.layer.0.output.LayerNorm.gamma" in tensors_of(tmp_path)
    assert_equal(interop.read(str(tmp_path), config), leaves(params))


def test_what_a_config_leaves_out_has_transformers_defaults(tmp_path):
    config = dataclasses.replace(BERT, activations=("gelu_exact",), max_length=512)
    assert _described(config, "hidden_act", "max_position_embeddings", "layer_norm_eps", "pad_token_id") == config
    config = dataclasses.replace(ROBERTA, norm_epsilon=1e-12, max_length=510, num_token_types=2)
    assert _described(config, "max_position_embeddings", "layer_norm_eps", "pad_token_id", "type_vocab_size") == config


def _described(config, *absent):
    described = mapping.config_to_huggingface(config)
    return mapping.config_from_huggingface({k: v for k, v in described.items() if k not in absent})


def test_names_of_activations():
    for theirs, ours in {
        "gelu": "gelu_exact",
        "gelu_new": "gelu",
        "gelu_pytorch_tanh": "gelu",
        "swish": "silu",
    }.items():
        described = mapping.config_to_huggingface(BERT) | {"hidden_act": theirs}
        assert mapping.config_from_huggingface(described).activations == (ours,)


# ---- what does not fit ----------------------------------------------------------------------------------------------


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
def test_copies_that_differ_are_named(change, message, tmp_path):
    write(BERT, tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(ValueError, match=message):
        interop.read(str(tmp_path), BERT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "absent"}, "does not say hidden_size"),
        ({"num_attention_heads": 5}, "hidden_size 12: not divisible by num_attention_heads 5"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder True: not supported. The only supported value is False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings False"),
    ],
)
def test_configs_of_another_network_are_refused(changes, message, tmp_path):
    write(BERT, tmp_path)
    describe(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        interop.from_huggingface(str(tmp_path))


def test_a_roberta_head_without_the_exact_gelu_is_read_and_written_by_nobody(tmp_path):
    write(ROBERTA, tmp_path)
    describe(tmp_path, hidden_act="relu")
    with pytest.raises(ValueError, match="hidden_act 'relu', but transformers' masked-LM head of RoBERTa"):
        interop.from_huggingface(str(tmp_path))
    config = dataclasses.replace(ROBERTA, activations=("relu",))
    assert mapping.config_to_huggingface(config)["hidden_act"] == "relu"
    with pytest.raises(ValueError, match=r"activations \('relu',\), but transformers' masked-LM head"):
        mapping.config_to_huggingface(config, ["objective/masked_lm/bias"])


@pytest.mark.parametrize(
    ("config", "heads", "message"),
    [
        (BERT, ("objective/next_sentence/classifier/bias",), "no bert network with just objective/next_sentence"),
        (dataclasses.replace(BERT, head_dim=5), (), r"embed_dim / num_heads = 12 / 3, not of head_dim=5"),
        (dataclasses.replace(ROBERTA, padding_id=0), (), "position_offset=2 needs padding_id=1, not 0"),
        (
            ROBERTA,
            ("objective/next_sentence/pooler/bias",),
            "no roberta network with just objective/next_sentence/pooler/bias",
        ),
        (BERT, ("objective/discriminator/bias",), "no bert network with just objective/discriminator"),
    ],
)
def test_networks_that_transformers_lacks_are_not_written(config, heads, message):
    with pytest.raises(ValueError, match=message):
        mapping.config_to_huggingface(config, heads)
