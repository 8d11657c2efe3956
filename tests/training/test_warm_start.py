"""Pretrained weights of the model and its heads, from runs and from Hugging Face directories."""

import dataclasses

import jax
import numpy as np
import pytest

from t5x_like import interop, optimizers, parameters
from t5x_like.convert import convert
from t5x_like.models.bert import BertConfig
from t5x_like.objectives import heads
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.partitioning import Partitioner
from t5x_like.training import step, warm_start

BERT = BertConfig(vocab_size=31, embed_dim=8, mlp_dim=12, num_heads=2, head_dim=4, num_layers=2, max_length=16)


def params_of(config, seed):
    model = config.make(jax.random.key(seed))
    return {"model": model, "objective": Joint([MaskedLM(), NextSentence()]).init(jax.random.key(seed + 1), model)}


@pytest.fixture(scope="module")
def stored():
    return params_of(BERT, 0)


@pytest.fixture(scope="module", params=["Hugging Face", "run"])
def path(request, stored, tmp_path_factory):
    directory = tmp_path_factory.mktemp("stored")
    interop.to_huggingface(stored, BERT, str(directory / "huggingface"))
    if request.param == "run":
        return convert(checkpoint_path=str(directory / "huggingface"), output_path=str(directory / "run"))
    return str(directory / "huggingface")


def restored(path, params, mapping=(), other_names=None, config=BERT, **options):
    optimizer = optimizers.adamw(learning_rate=0.1, groups=(optimizers.ParameterGroup("token_embedder", freeze=True),))
    trainable, frozen = optimizers.split(params, optimizer.groups)
    state = step.create_state(trainable, optimizer, 0)
    state, frozen = warm_start.restore(
        path, state, step.Frozen(frozen), config, Partitioner(rules="dp"), mapping, other_names or {}, **options
    )
    return parameters.named_leaves(optimizers.merge(state.params, frozen.params))


@pytest.mark.parametrize("scan_layers", [False, True])
def test_heads_are_restored_with_the_model(path, stored, scan_layers):
    leaves = restored(path, params_of(dataclasses.replace(BERT, scan_layers=scan_layers), 5))
    expected = parameters.stack(parameters.named_leaves(stored))
    leaves = parameters.stack(leaves)
    assert any(name.startswith("objective/masked_lm/") for name in leaves)
    for name, leaf in leaves.items():
        np.testing.assert_array_equal(leaf, expected[name], err_msg=name)


def test_head_of_another_shape_stays_fresh_and_is_logged(path, caplog):
    params = params_of(BERT, 5)
    params["objective"]["next_sentence"].classifier.kernel.set_value(jax.numpy.full((8, 3), 7.0))
    with caplog.at_level("INFO", logger="absl"):
        leaves = restored(path, params)
    name = "objective/next_sentence/classifier/kernel"
    np.testing.assert_array_equal(leaves[name], np.full((8, 3), 7.0))
    assert f"{name} is freshly initialized, because the stored shape differs from (8, 3)" in caplog.text
    assert f"freshly initialized 1 tensors: {name}" in caplog.text
    assert f"ignored 1 tensors: {name}" in caplog.text


def test_stored_heads_without_a_counterpart_are_ignored(path, caplog):
    params = params_of(BERT, 5)
    with caplog.at_level("INFO", logger="absl"):
        leaves = restored(path, {"model": params["model"], "objective": {}})
    assert not any(name.startswith("objective/") for name in leaves)
    assert "ignored 9 tensors: objective/masked_lm/bias, " in caplog.text


def test_pooler_of_a_classifier_is_that_of_the_next_sentence_head(path, stored, caplog):
    objective = SequenceClassification(("a", "b", "c"), head=heads.PooledFirstToken())
    params = params_of(BERT, 5) | {"objective": objective.init(jax.random.key(7), BERT.make(jax.random.key(5)))}
    fresh = parameters.named_leaves(params)
    with caplog.at_level("INFO", logger="absl"):
        leaves = restored(path, params, other_names=objective.other_names)
    name, pretrained = "objective/sequence_classification/", "objective/next_sentence/"
    expected = parameters.named_leaves(stored)
    for tensor in ("pooler/kernel", "pooler/bias"):
        np.testing.assert_array_equal(leaves[name + tensor], expected[pretrained + tensor])
        assert f"{name}{tensor} is read from {pretrained}{tensor}" in caplog.text
    np.testing.assert_array_equal(leaves[f"{name}classifier/kernel"], fresh[f"{name}classifier/kernel"])
    assert f"freshly initialized 2 tensors: {name}classifier/bias, {name}classifier/kernel" in caplog.text


def test_tables_keep_their_rows_and_get_those_of_new_tokens(path, stored, caplog):
    config = dataclasses.replace(BERT, vocab_size=34)
    grown = params_of(config, 5)
    with caplog.at_level("INFO", logger="absl"):
        leaves = restored(path, grown, config=config, new_tokens=3)
    fresh, pretrained = parameters.named_leaves(grown), parameters.stack(parameters.named_leaves(stored))
    for name in ("model/token_embedder/embedding", "objective/masked_lm/bias"):
        np.testing.assert_array_equal(leaves[name][:31], pretrained[name])
        np.testing.assert_array_equal(leaves[name][31:], fresh[name][31:])
        assert f"{name} has 31 rows; the 3 rows of new tokens are freshly initialized" in caplog.text
    with pytest.raises(ValueError, match="INITIAL_NEW_TOKENS=2: no table over the vocabulary at .* has 2 rows fewer"):
        restored(path, grown, config=config, new_tokens=2)
    with pytest.raises(ValueError, match="INITIAL_NEW_TOKENS=-1 is negative"):
        restored(path, grown, config=config, new_tokens=-1)
