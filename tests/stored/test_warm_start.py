"""Pretrained weights of the model and its heads, from runs and from Hugging Face directories."""

import dataclasses

import jax
import numpy as np
import pytest

from t5x_like import interop, optimizers, parameters
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.errors import UserError
from t5x_like.models.bert import BertConfig
from t5x_like.models.ernie import ErnieConfig
from t5x_like.models.unilm import UnilmConfig
from t5x_like.objectives import heads
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.variables import Frozen
from t5x_like.partitioning import Partitioner
from t5x_like.stored import layer_choice, warm_start
from t5x_like.training.stages import of_objective
from t5x_like.training.state import create_state

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
        return convert(Source(str(directory / "huggingface")), Target(str(directory / "run")))
    return str(directory / "huggingface")


def restored(path, params, objective=None, config=BERT, **changes):
    optimizer = optimizers.adamw(learning_rate=0.1, groups=(optimizers.ParameterGroup("token_embedder", freeze=True),))
    trainable, frozen = optimizers.split(params, optimizer.groups)
    state, frozen = create_state(trainable, of_objective(MaskedLM(), optimizer), 0), Frozen(frozen)
    source = warm_start.InitialWeights(path=path, **changes)
    warm_start.check(source, params, config, Partitioner(rules="dp"))
    start = warm_start.restore(source, state, frozen, config, Partitioner(rules="dp"), objective or MaskedLM())
    return parameters.named_leaves(optimizers.merge(start.state.params, start.frozen.params))


def test_token_types_of_unilm_start_from_those_of_bert(path, stored):
    fields = dataclasses.asdict(BERT) | {"num_token_types": 6}
    config = UnilmConfig(**fields)
    leaves = restored(path, params_of(config, 5), config=config, rows={"token_types": (0, 1, 0, 0, 0, 1)})
    for name, leaf in parameters.named_leaves(stored).items():
        expected = leaf[...]
        if name == "model/embeddings/token_type_embedder/embedding":
            expected = expected[np.array([0, 1, 0, 0, 0, 1])]
        np.testing.assert_array_equal(leaves[name], expected)


def test_rows_of_the_same_size_are_restored_as_they_are(path, stored):
    leaves = restored(path, params_of(BERT, 5), rows={"token_types": (1, 0)})
    name = "model/embeddings/token_type_embedder/embedding"
    np.testing.assert_array_equal(leaves[name], parameters.named_leaves(stored)[name])


@pytest.mark.parametrize("scan_layers", [False, True])
def test_heads_are_restored_with_the_model(path, stored, scan_layers):
    leaves = restored(path, params_of(dataclasses.replace(BERT, scan_layers=scan_layers), 5))
    expected = parameters.stack(parameters.named_leaves(stored))
    leaves = parameters.stack(leaves)
    assert any(name.startswith("objective/masked_lm/") for name in leaves)
    for name, leaf in leaves.items():
        np.testing.assert_array_equal(leaf, expected[name], err_msg=name)


def test_ernie_starts_from_bert_and_its_entities_stay_fresh(path, stored):
    fields = {field.name: getattr(BERT, field.name) for field in dataclasses.fields(BERT)}
    config = ErnieConfig(**fields, entity_dim=6, entity_heads=2, knowledge_layers=2)
    params = params_of(config, 5)
    leaves = parameters.stack(restored(path, params, config=config))
    fresh, expected = (parameters.stack(parameters.named_leaves(each)) for each in (params, stored))
    assert leaves.keys() - expected.keys() == {name for name in leaves if name.startswith(("model/mix/", "model/know"))}
    for name, leaf in leaves.items():
        np.testing.assert_array_equal(leaf, expected.get(name, fresh[name]), err_msg=name)
    other = dataclasses.replace(config, num_heads=1, head_dim=8)
    with pytest.raises(UserError, match="num_heads=2 instead of 1|shape"):
        restored(path, params_of(other, 5), config=other)


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
        leaves = restored(path, params, objective)
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
    for name in ("model/embeddings/token_embedder/embedding", "objective/masked_lm/bias"):
        np.testing.assert_array_equal(leaves[name][:31], pretrained[name])
        np.testing.assert_array_equal(leaves[name][31:], fresh[name][31:])
        assert f"{name} has 31 rows, and this model 34; the rows of new tokens are freshly" in caplog.text
    with pytest.raises(ValueError, match="INITIAL_NEW_TOKENS=2: no table over the vocabulary at .* has 2 rows fewer"):
        restored(path, grown, config=config, new_tokens=2)
    with pytest.raises(ValueError, match="INITIAL_NEW_TOKENS=-1 is negative"):
        restored(path, grown, config=config, new_tokens=-1)


# ---- students: chosen layers, dropped and truncated tensors ----------------------------------------------------------


DEEP = dataclasses.replace(BERT, num_layers=5)


@pytest.fixture(scope="module")
def deep():
    return params_of(DEEP, 2)


@pytest.fixture(scope="module", params=["Hugging Face", "run"])
def deep_path(request, deep, tmp_path_factory):
    directory = tmp_path_factory.mktemp("deep")
    interop.to_huggingface(deep, DEEP, str(directory / "huggingface"))
    if request.param == "run":
        return convert(Source(str(directory / "huggingface")), Target(str(directory / "run")))
    return str(directory / "huggingface")


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize(
    ("layers", "indices"),
    [((4, 1), (4, 1)), (layer_choice.first, (0, 1)), (layer_choice.evenly_spaced, (0, 2))],
    ids=["indices", "first", "evenly spaced"],
)
def test_layers_start_from_the_chosen_ones(deep_path, deep, layers, indices, scan_layers):
    student = params_of(dataclasses.replace(BERT, scan_layers=scan_layers), 5)
    found = parameters.stack(restored(deep_path, student, layers={"encoder": layers}))
    expected = parameters.stack(parameters.named_leaves(deep))
    for name, leaf in found.items():
        stored = expected[name][np.array(indices)] if "/layers/" in name else expected[name]
        np.testing.assert_array_equal(leaf, stored, err_msg=name)


def test_student_drops_token_types_and_takes_the_first_rows_of_tables(deep_path, deep, caplog):
    config = dataclasses.replace(BERT, vocab_size=29, max_length=12, num_token_types=0)
    with caplog.at_level("INFO", logger="absl"):
        found = restored(
            *(deep_path, params_of(config, 5)),
            config=config,
            layers={"encoder": (0, 4)},
            dropped=("^model/embeddings/token_type_embedder/",),
            truncated=("vocab", "positions"),
        )
    expected = parameters.named_leaves(deep)
    for name, rows in (("embeddings/token_embedder", 29), ("embeddings/position_embedder", 12)):
        name = f"model/{name}/embedding"
        np.testing.assert_array_equal(found[name], expected[name][:rows])
    np.testing.assert_array_equal(found["objective/masked_lm/bias"], expected["objective/masked_lm/bias"][:29])
    assert (
        "model/embeddings/position_embedder/embedding has 16 rows, and this model 12; the others are dropped"
        in caplog.text
    )
    assert "ignored 1 tensors: model/embeddings/token_type_embedder/embedding" in caplog.text


NARROW = dataclasses.replace(BERT, num_token_types=0)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (BERT, {"layers": {"encoder": (0, 5)}}, r"\(0, 5\)}: layer 5 does not exist. .* has the layers 0 … 4"),
        (BERT, {"layers": {"encoder": (0, -1)}}, "layer -1 does not exist"),
        (BERT, {"layers": {"encoder": (0, 1, 2)}}, "has 3 indices, but this model has 2 layers in 'encoder'"),
        (
            BERT,
            {"layers": {"decoder": (0, 1)}},
            "INITIAL_LAYERS={'decoder': .*: this model has no such stack. Give one",
        ),
        (BERT, {"layers": {"encoder": "first"}}, "is not a sequence of integers"),
        (BERT, {"layers": (0, 1)}, r"INITIAL_LAYERS=\(0, 1\): is not a mapping from stacks to layers"),
        (BERT, {"dropped": "token_type_embedder"}, "INITIAL_DROPPED='token_type_embedder': is not a sequence"),
        (
            NARROW,
            {"layers": {"encoder": (0, 1)}},
            "1 tensors of a model that this one lacks, such as 'model/embeddings/token_type",
        ),
        (
            dataclasses.replace(BERT, max_length=12),
            {"layers": {"encoder": (0, 1)}},
            r"position_embedder/embedding has shape \(16, 8\), but .* has shape \(12, 8\)",
        ),
        (
            dataclasses.replace(BERT, num_token_types=6),
            {"rows": {"token_types": (0, 1, 2)}},
            "the table over 'token_types' has 6 rows, and .* has 2. Give 6 rows from 0 to 1",
        ),
        (BERT, {"dropped": ("x",)}, r"has shape \(5, .* choose layers with INITIAL_LAYERS"),
    ],
)
def test_changes_that_do_not_fit_raise_before_arrays_exist(deep_path, config, changes, message):
    model = jax.eval_shape(config.make, jax.random.key(0))
    with pytest.raises(UserError, match=message):
        warm_start.check(
            warm_start.InitialWeights(path=deep_path, **changes), {"model": model}, config, Partitioner(rules="dp")
        )


def test_huggingface_directory_of_another_architecture_raises(tmp_path, deep):
    interop.to_huggingface(deep, DEEP, str(tmp_path))
    for changes, message in (
        ({"norm_epsilon": 1e-5}, "norm_epsilon=1e-12 instead of 1e-05"),
        ({"num_layers": 2}, "architecture differs from the configured model: num_layers=5 instead of 2"),
    ):
        with pytest.raises(UserError, match=message):
            restored(str(tmp_path), params_of(BERT, 5), config=dataclasses.replace(DEEP, **changes))
