"""DeBERTa in the format of transformers: fused projections, names of the released files, heads, and the run of a v3."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import safetensors.numpy
from families import FAMILIES, random_model

from t5x_like import interop, parameters
from t5x_like.errors import UserError
from t5x_like.models import networks
from t5x_like.objectives.decoupled_replaced_tokens import DecoupledReplacedTokens
from t5x_like.objectives.enhanced_masked_lm import EnhancedMaskedLM

V1, V2 = (FAMILIES[name].config for name in ("deberta", "deberta_v2"))


def with_head(config, objective):
    model, rng = random_model(config), np.random.default_rng(1)
    heads = jax.eval_shape(objective.init, jax.random.key(0), model)
    draw = lambda _, leaf: rng.normal(size=leaf.shape).astype(np.float32)  # noqa: E731
    return {"model": model, "objective": parameters.map_named(draw, heads)}


def test_queries_keys_and_values_of_a_head_are_neighbors():
    params = {"model": random_model(V1)}
    fused = interop.tensors_to_huggingface(params, V1)["deberta.encoder.layer.1.attention.self.in_proj.weight"]
    by_head = fused.reshape(V1.num_heads, 3, V1.head_dim, V1.embed_dim)
    for part, name in enumerate(("query", "key", "value")):
        kernel = np.asarray(getattr(params["model"].encoder.layers[1].attention, name).kernel[...])
        np.testing.assert_array_equal(by_head[:, part], kernel.transpose(1, 2, 0))


@pytest.mark.parametrize("config", [V1, V2], ids=["v1", "v2"])
def test_enhanced_masked_lm_is_stored_beside_the_bare_model_and_read(config, tmp_path):
    params = with_head(config, EnhancedMaskedLM())
    interop.to_huggingface(params, config, str(tmp_path))
    (architecture,) = json.loads((tmp_path / "config.json").read_text())["architectures"]
    assert architecture in ("DebertaModel", "DebertaV2Model")
    file = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    released = {
        name.replace("cls.predictions.transform", "lm_predictions.lm_head").replace(
            "cls.predictions", "lm_predictions.lm_head"
        ): tensor
        for name, tensor in tensors.items()
    }
    assert released.keys() != tensors.keys() and "deberta.embeddings.position_embeddings.weight" in tensors
    expected = parameters.stack(parameters.named_leaves(params))
    for names in (tensors, released):
        safetensors.numpy.save_file(names, file)
        found = interop.read(str(tmp_path), config)
        assert found.keys() == expected.keys()
        for name, leaf in expected.items():
            np.testing.assert_array_equal(found[name], leaf, err_msg=name)


def test_exported_model_of_a_v3_has_the_sum_of_both_tables(tmp_path):
    config, objective = dataclasses.replace(V2, conv_size=0), DecoupledReplacedTokens()
    params = jax.jit(lambda key: networks.make(objective, config, key))(jax.random.key(0))
    own, theirs = (
        np.asarray(network.embeddings.token_embedder.embedding[...])
        for network in (params["model"], params["objective"]["generator"])
    )
    assert not own.any() and theirs.any(), "the own table is 0 at the start"
    params["model"].embeddings.token_embedder.embedding[...] = own + 0.5
    complete = {
        "model": networks.exported(objective, params)["model"],
        "objective": {"replaced_tokens": params["objective"]["replaced_tokens"]},
    }
    interop.to_huggingface(complete, config, str(tmp_path))
    tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(tensors["deberta.embeddings.word_embeddings.weight"], theirs + 0.5)
    heads = {name.rpartition(".")[0] for name in tensors if not name.startswith("deberta.")}
    assert heads == {f"mask_predictions.{name}" for name in ("dense", "LayerNorm", "classifier")}


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (V1, {"position_biased_input": True}, "position_biased_input True: not supported"),
        (V1, {"pos_att_type": "c2p"}, "pos_att_type 'c2p': not supported"),
        (V1, {"embedding_size": 5}, "embedding_size 5: not supported"),
        (V2, {"share_att_key": False}, "share_att_key False: not supported"),
        (V2, {"norm_rel_ebd": "none"}, "norm_rel_ebd 'none': not supported"),
        (V2, {"conv_act": "tanh"}, "conv_act 'tanh': not supported"),
        (V2, {"hidden_size": None}, "missing keys: hidden_size"),
    ],
)
def test_unsupported_settings_raise(config, changes, message, tmp_path):
    interop.to_huggingface({"model": random_model(config)}, config, str(tmp_path))
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(UserError, match=message):
        interop.config_from_huggingface(str(tmp_path))
