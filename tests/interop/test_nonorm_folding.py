"""Folding NoNorm into projections keeps the outputs of a model."""

import dataclasses

import jax
import numpy as np
import pytest
from families import FAMILIES, example_batch, hidden, random_model
from numerics import assert_close

from t5x_like import convert, interop, parameters
from t5x_like.conversion.settings import Changes, Source, Target
from t5x_like.errors import UserError
from t5x_like.interop import nonorm_folding, safetensors_files

CONFIG = dataclasses.replace(FAMILIES["mobilebert"].config, num_mlps=3, num_layers=3)
VARIANTS = ("shared_bottleneck", "bottleneck", "hidden")
LAST = ("model/encoder/layers/expansion_norm/scale", "model/encoder/layers/expansion_norm/bias")


def stored(config):
    return parameters.stack(parameters.named_leaves({"model": random_model(config)}))


@pytest.mark.parametrize("attention_input", VARIANTS)
def test_folded_model_has_the_same_outputs(attention_input):
    config = dataclasses.replace(CONFIG, attention_input=attention_input)
    leaves = stored(config)
    folded = nonorm_folding.fold(config, leaves)
    norms = {name: array for name, array in folded.items() if "_norm/" in name}
    # Of the embeddings, the bottleneck, a shared bottleneck, attention, three feed-forward blocks and the expansion.
    assert len(norms) == 2 * (8 if attention_input == "shared_bottleneck" else 7)
    for name, array in norms.items():
        kept = array[:-1] if name in LAST else array
        np.testing.assert_array_equal(kept, 1.0 if name.endswith("scale") else 0.0, err_msg=name)
    batch = example_batch(FAMILIES["mobilebert"])
    like = {"model": jax.eval_shape(config.make, jax.random.key(0))}
    found = hidden(parameters.unstack(folded, like)["model"], batch)
    assert_close({"hidden": found}, {"hidden": hidden(random_model(config), batch)})


def test_norms_that_cannot_be_folded_raise():
    leaves = dict(stored(CONFIG))
    name = "model/encoder/layers/attention_norm/scale"
    leaves[name] = np.asarray(leaves[name]).copy()
    leaves[name][1, 3] = 0.0
    with pytest.raises(UserError, match="model/encoder/layers/mlp/wo/.*: not finite after folding"):
        nonorm_folding.fold(CONFIG, leaves)
    for config in (FAMILIES["ib_bert"].config, FAMILIES["bert"].config):
        with pytest.raises(UserError, match="normalization='layer_norm'|BertConfig has no norms to fold"):
            interop.fold_norms(config, {})


@pytest.mark.full
def test_convert_folds_norms(tmp_path):
    interop.to_huggingface({"model": random_model(CONFIG)}, CONFIG, str(tmp_path / "original"))
    folded, again = str(tmp_path / "folded"), str(tmp_path / "again")
    convert.convert(Source(str(tmp_path / "original")), Target(folded), Changes(fold_norms=True))
    convert.convert(Source(folded, model=CONFIG), Target(again))
    expected = nonorm_folding.fold(CONFIG, stored(CONFIG))["model/embedding_projection/kernel"]
    tensors = dict(safetensors_files.Tensors(again))
    np.testing.assert_array_equal(tensors["mobilebert.embeddings.embedding_transformation.weight"], expected.T)
    np.testing.assert_array_equal(tensors["mobilebert.embeddings.LayerNorm.weight"], 1.0)
    with pytest.raises(UserError, match="FOLD_NORMS=True: a BertConfig has no norms to fold"):
        config = FAMILIES["bert"].config
        interop.to_huggingface({"model": random_model(config)}, config, str(tmp_path / "bert"))
        convert.convert(Source(str(tmp_path / "bert")), Target(str(tmp_path / "out")), Changes(fold_norms=True))
    assert not (tmp_path / "out").exists()
