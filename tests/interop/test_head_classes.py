"""Heads of downstream tasks in Hugging Face directories: labels, forms, and errors.

tests/models/test_heads_parity.py compares their values with transformers.
"""

import dataclasses
import json

import jax
import numpy as np
import pytest
from families import FAMILIES, random_model
from safetensors.numpy import load_file, save_file

from t5x_like import interop, parameters
from t5x_like.config import description
from t5x_like.objectives import heads, sequence_classification, sequence_regression, token_classification
from t5x_like.objectives.heads import bigbird_heads
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.sequence_regression import SequenceRegression
from t5x_like.objectives.token_classification import TokenClassification

LABELS = ("no", "yes", "maybe")
SEQUENCE, TOKENS = "sequence_classification", "token_classification"


def config_of(family):
    """Returns the small configuration of a family, with sizes that transformers supports."""
    config = FAMILIES[family].config
    changes = {"gpt1": {"mlp_dim": 4 * config.embed_dim}, "bart": {"head_dim": config.embed_dim // 2}}
    return dataclasses.replace(config, **changes.get(family, {}))


def params_of(family, objective):
    model = random_model(config_of(family))
    like = jax.eval_shape(objective.init, jax.random.key(0), model)
    rng = np.random.default_rng(0)
    drawn = parameters.map_named(lambda name, leaf: rng.normal(size=leaf.shape).astype(np.float32), like)
    return {"model": model, "objective": drawn}


def export(family, form, directory, **options):
    """Writes a random model with a head of a form, and returns its configuration."""
    objective = TokenClassification if form.each_token else SequenceClassification
    config = config_of(family)
    params = params_of(family, objective(LABELS, head=form))
    interop.to_huggingface(params, config, str(directory), **options)
    return config, params


def change_config(directory, **changes):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("family", "name", "form"),
    [
        ("bert", SEQUENCE, heads.PooledFirstToken()),
        ("bert", TOKENS, heads.EachToken()),
        ("roberta", SEQUENCE, heads.DenseFirstToken()),
        ("distilbert", SEQUENCE, heads.ReluFirstToken(dropout_rate=0.2)),
        ("electra", SEQUENCE, heads.GeluFirstToken()),
        ("electra", TOKENS, heads.EachToken()),
        ("bigbird", SEQUENCE, bigbird_heads.ActivatedFirstToken()),
        ("gpt1", SEQUENCE, heads.LastToken()),
        ("gpt2", TOKENS, heads.EachDecoderToken(dropout_rate=0.1)),
        ("llama", SEQUENCE, heads.LastToken()),
        ("bart", SEQUENCE, heads.DecoderLastToken(bos_id=2, dropout_rate=0.0)),
        ("t5_1_1", SEQUENCE, heads.DecoderLastToken(dropout_rate=0.0, initial_stddev=None)),
    ],
)
def test_pretrained_directory_has_the_published_form(family, name, form, tmp_path):
    interop.to_huggingface({"model": random_model(config_of(family))}, config_of(family), str(tmp_path))
    assert interop.task_head(str(tmp_path)) is None
    assert interop.head_form(str(tmp_path), name) == form


def test_modules_of_objectives_have_the_name_of_their_head(tmp_path):
    """HF_PATH looks up the published form by the NAME in the module of the objective."""
    export("bert", heads.PooledFirstToken(), tmp_path)
    for module in (sequence_classification, sequence_regression):
        assert interop.head_form(str(tmp_path), module.NAME) == heads.PooledFirstToken()
    assert interop.head_form(str(tmp_path), token_classification.NAME) == heads.EachToken()


def test_round_trip_without_logits(tmp_path):
    config, params = export("llama", heads.LastToken(), tmp_path, labels=LABELS)
    assert not config.tied_embeddings
    assert interop.task_head(str(tmp_path)) == interop.TaskHead(SEQUENCE, heads.LastToken(), LABELS)
    found, expected = interop.read(str(tmp_path), config), parameters.stack(parameters.named_leaves(params))
    assert found.keys() == expected.keys()
    assert not np.any(found.pop("model/logits/kernel"))
    for name, leaf in found.items():
        np.testing.assert_array_equal(leaf, expected[name], err_msg=name)


def test_labels_without_names_are_those_of_transformers(tmp_path):
    export("bert", heads.EachToken(), tmp_path, dropout_rate=0.25)
    head = interop.task_head(str(tmp_path))
    assert head == interop.TaskHead(TOKENS, heads.EachToken(dropout_rate=0.25), ("LABEL_0", "LABEL_1", "LABEL_2"))
    change_config(tmp_path, id2label=None, num_labels=2)
    assert interop.task_head(str(tmp_path)).labels == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize("names", [("valence", "arousal", "dominance"), ("similarity",), ()])
def test_scores_keep_their_names_and_their_loss(names, tmp_path):
    config, form = config_of("bert"), heads.PooledFirstToken()
    params = params_of("bert", SequenceRegression(labels=names, head=form))
    interop.to_huggingface(params, config, str(tmp_path), labels=names, predicts="scores")
    assert json.loads((tmp_path / "config.json").read_text())["problem_type"] == "regression"
    head = interop.task_head(str(tmp_path))
    assert head == interop.TaskHead(SEQUENCE, form, names, predicts="scores")
    objective = description.objective_of(config, head)
    assert type(objective) is SequenceRegression and objective.labels == names
    assert "OBJECTIVE = @sequence_regression.SequenceRegression()" in description.describe_head(head)
    if len(names) > 1:
        change_config(tmp_path, problem_type=None)  # transformers then classifies labels that are integers
        assert interop.task_head(str(tmp_path)).predicts == "label"


def test_pooler_of_a_class_that_does_not_use_it_is_ignored(tmp_path):
    config, _ = export("bert", heads.EachToken(), tmp_path)
    file = tmp_path / "model.safetensors"
    pooler = {"bert.pooler.dense.weight": np.ones((12, 12), np.float32), "bert.pooler.dense.bias": np.ones(12, "f4")}
    save_file(load_file(file) | pooler, file, {"format": "pt"})
    assert {name for name in interop.read(str(tmp_path), config) if name.startswith("objective/")} == {
        "objective/token_classification/classifier/kernel",
        "objective/token_classification/classifier/bias",
    }


def test_missing_tensor_of_the_head_raises(tmp_path):
    config, _ = export("roberta", heads.DenseFirstToken(), tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if k != "classifier.dense.bias"}, file, {"format": "pt"})
    with pytest.raises(ValueError, match="tensor 'classifier.dense.bias' is missing"):
        interop.read(str(tmp_path), config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem_type": "ranking"}, "config.json: problem_type 'ranking': unknown. Give one of single_label_"),
        (
            {"problem_type": "single_label_classification", "id2label": {"0": "a"}},
            "problem_type 'single_label_classification': the head has one label only. Set 'regression' if",
        ),
        ({"id2label": {"0": "a", "2": "b"}}, "config.json: id2label .* must map the indices 0 … 1 to names"),
        ({"id2label": ["a"]}, "id2label .* must be an object"),
        ({"classifier_dropout": "high"}, "classifier_dropout 'high': must be a number"),
    ],
)
def test_invalid_config_json_raises(changes, message, tmp_path):
    export("bert", heads.PooledFirstToken(), tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        interop.task_head(str(tmp_path))


def test_unsupported_heads_raise(tmp_path):
    with pytest.raises(ValueError, match="no RoBERTa class of transformers has just these heads"):
        export("roberta", heads.PooledFirstToken(), tmp_path)
    with pytest.raises(ValueError, match=r"labels \('a',\): the head has 3 outputs"):
        export("bert", heads.PooledFirstToken(), tmp_path, labels=("a",))
    with pytest.raises(ValueError, match="not supported by transformers' openai-gpt. .*HEADS=none"):
        export("gpt1", heads.EachDecoderToken(), tmp_path)
    assert not list(tmp_path.iterdir())
    config = config_of("gpt1")
    interop.to_huggingface({"model": random_model(config)}, config, str(tmp_path))
    with pytest.raises(ValueError, match="'openai-gpt': transformers has no class with the head 'token_cl"):
        interop.head_form(str(tmp_path), TOKENS)
