"""`infer` with the columns of a task: labels of a head, and text-to-text tasks."""

import json

import jax
import numpy as np
import pytest
from opened import call

from t5x_like.checkpoints import checkpoint_choice
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.infer import infer
from t5x_like.inference.predictors import predicts_text
from t5x_like.inference.records import read
from t5x_like.models.bert import BertConfig
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.gpt1_finetuning import AuxiliaryLM, ExtractToken
from t5x_like.objectives.heads import DenseFirstToken
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.passes import predict
from t5x_like.objectives.prefix_lm import PrefixLM
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.stored import warm_start
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

SENTENCES = ["It works.", "It does not work, and it is slow.", "No."]
BERT = BertConfig(vocab_size=1200, embed_dim=8, mlp_dim=8, num_heads=2, head_dim=4, num_layers=1, max_length=16)


def values(path):
    return [record.values for record in read(str(path))]


@pytest.fixture
def classifier(monkeypatch):
    """Returns the arguments of `infer` for a random BERT with a classifier, and the parameters that it reads."""
    objective = SequenceClassification(("negative", "positive"), head=DenseFirstToken())
    module = BERT.make(jax.random.key(0))
    params = {"model": module, "objective": objective.init(jax.random.key(1), module)}
    params = jax.tree.map(lambda x: x + 0.2 * jax.random.normal(jax.random.key(x.size), x.shape), params)
    monkeypatch.setattr(checkpoint_choice, "choose", lambda path, _: (path,))
    monkeypatch.setattr(warm_start, "load", lambda *_: params)
    data = SeqIOSource(
        mixture_or_task_name="glue_sst2_classification",
        task_feature_lengths={"inputs": 12},
        batch_size=2,
        task_arguments={"vocabulary_path": str(PYTHON_DOCS_MODEL)},
    )
    arguments = dict(model=BERT, objective=objective, data=data, checkpoint_path="runs/none", batch_size=8)
    return arguments, params


def test_only_objectives_whose_decoder_predicts_the_targets_predict_text():
    task = SequenceClassification(("no", "yes"), head=ExtractToken())
    assert not predicts_text(Joint([task, AuxiliaryLM()]).features)
    assert all(predicts_text(objective.features) for objective in (SequenceToSequence(), CausalLM(), PrefixLM()))


@pytest.mark.full
def test_classifier_labels_rows_in_any_format(classifier, tmp_path):
    arguments, params = classifier
    vocabulary = arguments["data"].vocabularies()["inputs"]
    files = {
        "rows.jsonl": "".join(json.dumps({"sentence": text, "id": len(text)}) + "\n" for text in SENTENCES),
        "rows.csv": "index,sentence\n" + "".join(f'n{index},"{text}"\n' for index, text in enumerate(SENTENCES)),
        "rows.txt": "\n".join(SENTENCES),
    }
    found = {}
    for name, contents in files.items():
        (tmp_path / name).write_text(contents)
        paths = {"input_path": str(tmp_path / name), "output_path": str(tmp_path / f"{name}.out.jsonl")}
        output = call(infer, **arguments | paths)
        found[name] = values(output)
    assert [row["id"] for row in found["rows.jsonl"]] == [len(text) for text in SENTENCES]
    for index, text in enumerate(SENTENCES):
        tokens = np.array([[*vocabulary.encode(text)[:11], vocabulary.eos_id]])
        batch = {"encoder_input_tokens": tokens, "encoder_segment_ids": np.ones_like(tokens)}
        shares = np.asarray(predict(arguments["objective"], params, batch)["probabilities"])[0]
        for name, rows in found.items():
            row = rows[index]
            assert row["index"] == (f"n{index}" if name == "rows.csv" else index)
            assert row["prediction"] == ("negative", "positive")[int(shares.argmax())]
            np.testing.assert_allclose(list(row["probabilities"].values()), shares, rtol=1e-4)
            assert list(row["probabilities"]) == ["negative", "positive"]


def test_classifier_labels_token_ids_without_a_task(classifier, tmp_path):
    arguments, params = classifier
    (tmp_path / "ids.jsonl").write_text('{"inputs": [5, 6, 7]}\n{"inputs": [8, 0]}\n')
    paths = {"input_path": str(tmp_path / "ids.jsonl"), "output_path": str(tmp_path / "out.jsonl")}
    changes = {"data": None, "task_feature_lengths": {"inputs": 4}, "overwrite": True}
    for row in values(call(infer, **arguments | paths | changes)):
        tokens = np.array([row["inputs"]])
        batch = {"encoder_input_tokens": tokens, "encoder_segment_ids": np.ones_like(tokens)}
        shares = np.asarray(predict(arguments["objective"], params, batch)["probabilities"])[0]
        assert row["prediction"] == ("negative", "positive")[int(shares.argmax())]
        np.testing.assert_allclose(list(row["probabilities"].values()), shares, rtol=1e-4)
    for value in ('"5"', "[-5]", "[5.5]"):
        (tmp_path / "ids.jsonl").write_text(f'{{"inputs": [5]}}\n{{"inputs": {value}}}\n')
        with pytest.raises(UserError, match="ids.jsonl:2: 'inputs' must be a list of token ids, not .*5"):
            call(infer, **arguments | paths | changes)
    (tmp_path / "ids.jsonl").write_text('{"inputs": [1200]}\n')
    with pytest.raises(UserError, match="ids.jsonl:1: token id 1200 in 'inputs': the model only has the ids 0 … 1199"):
        call(infer, **arguments | paths | changes)


def test_text_to_text_task_reads_the_columns_of_its_source(tmp_path, monkeypatch):
    sizes = dict(vocab_size=1200, embed_dim=8, mlp_dim=8, num_heads=2, head_dim=4, encoder_layers=1, decoder_layers=1)
    config = T5Config(**sizes, relpos_buckets=4, relpos_max_distance=8)
    module = config.make(jax.random.key(0))
    monkeypatch.setattr(checkpoint_choice, "choose", lambda path, _: (path,))
    monkeypatch.setattr(warm_start, "load", lambda *_: {"model": module})
    data = SeqIOSource(
        mixture_or_task_name="glue_sst2_v002",
        task_feature_lengths={"inputs": 16, "targets": 3},
        batch_size=2,
        task_arguments={"vocabulary_path": str(PYTHON_DOCS_MODEL)},
    )
    (tmp_path / "rows.jsonl").write_text(json.dumps({"sentence": SENTENCES[0]}))
    (tmp_path / "plain.jsonl").write_text(json.dumps({"inputs": f"sst2 sentence: {SENTENCES[0]}"}))
    found = {}
    for name in ("rows", "plain"):
        output = call(
            infer,
            model=config,
            data=data,
            checkpoint_path="runs/none",
            input_path=str(tmp_path / f"{name}.jsonl"),
            output_path=str(tmp_path / f"{name}.out.jsonl"),
            batch_size=8,
        )
        (found[name],) = values(output)
    assert found["rows"]["prediction"] == found["plain"]["prediction"]
    assert found["rows"]["log_probability"] == pytest.approx(found["plain"]["log_probability"], rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "score"}, "MODE=score: SequenceClassification predicts no text. Give MODE=predict"),
        ({"decoding": Decoding(beams=2)}, "DECODING: SequenceClassification generates no text. Omit"),
        (
            {"data": None, "interactive": True, "input_path": None, "output_path": None},
            "prompt.txt: SequenceClassification needs a task that makes its features",
        ),
        ({"data": None}, "rows.jsonl: SequenceClassification needs a task that makes its features"),
    ],
)
def test_head_without_task_or_in_score_mode_raises(classifier, tmp_path, changes, message):
    (tmp_path / "rows.jsonl").write_text('{"sentence": "x"}')
    paths = {"input_path": str(tmp_path / "rows.jsonl"), "output_path": str(tmp_path / "out.jsonl")}
    with pytest.raises(UserError, match=message):
        call(infer, **classifier[0] | paths | changes)
