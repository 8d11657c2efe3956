"""Tests of the SQuAD tasks: official files, rows of TFDS, both forms, gold answers, and invalid files."""

import functools
import json

import gold_predictions
import numpy as np
import pytest

from data_tasks.downstream import squad
from data_tasks.downstream.squad import UNANSWERABLE
from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

CONTEXT = "The Normans (Norman: Nourmands) lived in Normandy,\tin France."
ROWS = [
    {"id": "1", "question": "Where is Normandy?", "context": CONTEXT, "answers": ["France", "in France"]},
    {"id": "2", "question": "Who isn't Norman?", "context": CONTEXT, "answers": []},
]


def with_starts(answers):
    return {"text": answers, "answer_start": [CONTEXT.index(answer) for answer in answers]}


@pytest.fixture(scope="module")
def official(test_data, tmp_path_factory):
    """Arguments for two articles of the dev set as the files of SQuAD 2.0, and their answerable questions as 1.1."""
    directory = tmp_path_factory.mktemp("squad")
    articles = json.loads((test_data / "squad/cs224n_dev-v2.0.json").read_text())["data"][:2]
    for article in articles:
        article["paragraphs"] = article["paragraphs"][:6]
    for name, chosen in (("train", articles[:1]), ("dev", articles[1:])):
        (directory / f"{name}-v2.0.json").write_text(json.dumps({"version": "v2.0", "data": chosen}))
        for article in chosen:
            for paragraph in article["paragraphs"]:
                paragraph["qas"] = [question for question in paragraph["qas"] if question["answers"]]
        (directory / f"{name}-v1.1.json").write_text(json.dumps({"version": "1.1", "data": chosen}))
    return {"directory": directory, "vocabulary": test_data / "vocab/t5_32k/cc_all.32000.sentencepiece.model"}


def read(task, directory, split="validation", lengths=(160, 32), vocabulary=PYTHON_DOCS_MODEL, **arguments):
    arguments |= {"vocabulary_path": str(vocabulary), "data_dir": str(directory)}
    lengths = dict(zip(("inputs", "targets"), lengths, strict=True))
    return gold_predictions.read(task, split, 1000, task_feature_lengths=lengths, task_arguments=arguments)


def gold_spans(task, examples):
    """Returns the metrics of a task whose logits are high at the target positions."""
    import seqio

    task = seqio.TaskRegistry.get(task)
    targets = [task.postprocess_fn(example["targets"], example=example, is_target=True) for example in examples]
    logits = {name: np.zeros((len(examples), 400)) for name in ("start_logits", "end_logits")}
    for row, example in enumerate(examples):
        for values, position in zip(logits.values(), example["targets"], strict=True):
            values[row, position] = 5
            values[row, 0] -= 2  # a window without the answer is not as certain as one with it
    (metric,) = task.metric_fns
    return metric(targets, [example["targets"] for example in examples], logits)


# ---- official files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "keys"), [("v1", ("em", "f1")), ("v2", ("exact", "f1", "NoAns_f1", "best_f1"))])
def test_gold_spans_of_official_files_score_100(official, version, keys):
    examples = read(f"squad_{version}_spans", **official, lengths=(200, 2))
    questions = {example["id"] for example in examples}
    assert len(examples) > len(questions) > (20 if version == "v1" else 50)
    metrics = gold_spans(f"squad_{version}_spans", examples)
    assert {name: metrics[name] for name in keys} == dict.fromkeys(keys, 100)


def test_arguments_of_windows_are_used(official):
    options = {**official, "split": "train", "lengths": (200, 2), "max_question_length": 9}
    few, many = (read("squad_v1_spans", **options, doc_stride=stride) for stride in (128, 16))
    assert len(many) > len(few)
    assert all((example["starts"] < 0).argmin() <= 10 for example in few)  # one separator after the question


@pytest.mark.parametrize(
    ("task", "name"),
    [("squad_v010_allanswers", "em"), ("squad_v010_allanswers_span", "em"), ("squad_v2_allanswers", "exact")],
)
def test_gold_texts_of_official_files_score_100(official, task, name):
    metrics = gold_predictions.evaluate(task, read(task, **official))
    assert metrics[name] == metrics["f1"] == 100


# ---- rows of TFDS ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["validation.jsonl", "validation.json"])
def test_rows_of_tfds_become_text(tmp_path, name):
    rows = [{**row, "answers": with_starts(row["answers"])} for row in ROWS]
    text = json.dumps({"data": rows}) if name.endswith(".json") else "\n".join(map(json.dumps, rows))
    (tmp_path / name).write_text(text)
    first, second = read("squad_v2_allanswers", tmp_path)
    context = "The Normans ( Norman : Nourmands ) lived in Normandy , in France . "
    assert first["inputs_pretokenized"].decode() == f"question: Where is Normandy ? context: {context}"
    assert first["targets_pretokenized"] == b"France"
    assert first["answers"].tolist() == [b"France", b"in France"]
    assert second["inputs_pretokenized"].decode() == f"question: Who isn ' t Norman ? context: {context}"
    assert second["targets_pretokenized"].decode() == UNANSWERABLE
    assert gold_predictions.evaluate("squad_v2_allanswers", [first, second]) == dict.fromkeys(
        ["exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"], 100
    )


def test_span_counts_pieces_of_the_context(tmp_path):
    rows = [{**ROWS[0], "answers": with_starts(answers)} for answers in (["in France"], ["Norman: Nourmands"], [])]
    rows[2]["answers"] = {"text": ["France."], "answer_start": [CONTEXT.index("France.")]}  # the last piece
    (tmp_path / "validation.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read("squad_v010_allanswers_span", tmp_path)
    # The, Normans, two empty pieces, Norman, two empty pieces, Nourmands, …
    assert [example["targets_pretokenized"] for example in found] == [b"start: 15 end: 16", b"start: 4 end: 7"]
    postprocess = functools.partial(squad.span_text, example=found[0], is_target=False)
    assert postprocess("start: 15 end: 16") == "in France"
    assert postprocess("start: 16 end: 15") == postprocess("start: x end: 18") == postprocess("France") == ""


@pytest.fixture
def tfds_directory(test_data):
    """Makes TFDS read its own records of SQuAD 1.1, of which the test data has ten per split."""
    import seqio

    seqio.set_tfds_data_dir_override(str(test_data / "text/tfds_tfrecords"))
    yield
    seqio.set_tfds_data_dir_override(None)


def test_tfds_is_read_without_a_directory(test_data, tfds_directory):
    vocabulary = test_data / "vocab/t5_32k/cc_all.32000.sentencepiece.model"
    texts = read("squad_v010_allanswers", "", "train", vocabulary=vocabulary)
    assert len(texts) == 10
    assert texts[0]["inputs_pretokenized"].startswith(b"question: What is one use that would require an an")
    assert gold_predictions.evaluate("squad_v010_allanswers", texts) == {"em": 100, "f1": 100}
    without_context = read("squad_v010_context_free", "", "train", vocabulary=vocabulary)
    assert without_context[0]["inputs_pretokenized"].startswith(b"squad trivia question: What is one use that would")
    assert b"context" not in without_context[0]["inputs_pretokenized"]
    assert gold_predictions.evaluate("squad_v010_context_free", without_context) == {"em": 100, "f1": 100}
    windows = read("squad_v1_spans", "", lengths=(200, 2), vocabulary=vocabulary)
    assert len({window["id"] for window in windows}) == 10
    assert gold_spans("squad_v1_spans", windows) == {"em": 100, "f1": 100}


def test_tfds_has_the_features_and_splits_that_are_read():
    import tensorflow_datasets as tfds

    for version in ("v1.1", "v2.0"):
        builder = tfds.builder(f"squad/{version}:3.0.0", data_dir="/nonexistent")
        assert {"id", "question", "context", "answers"} <= set(builder.info.features)
        assert set(builder.info.features["answers"].feature) == {"text", "answer_start"}


# ---- invalid files ---------------------------------------------------------------------------------------------------


def test_answer_at_a_wrong_position_raises(tmp_path):
    row = {**ROWS[0], "answers": {"text": ["France"], "answer_start": [3]}}
    (tmp_path / "validation.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError, match=r"validation\.jsonl:1: .*question '1': the answer 'France' is not at the char"):
        read("squad_v1_spans", tmp_path, lengths=(300, 2))


def test_missing_key_names_file_and_key(tmp_path):
    (tmp_path / "dev-v2.0.json").write_text(json.dumps({"data": [{"paragraphs": [{"qas": [{"id": "1"}]}]}]}))
    with pytest.raises(UserError, match=r"dev-v2\.0\.json:1: key 'answers' not found"):
        read("squad_v2_spans", tmp_path, lengths=(300, 2))


def test_missing_file_names_the_official_ones(tmp_path):
    with pytest.raises(UserError, match=r"directory with one of dev-v1\.1\.json, validation\.json, validation\.jsonl"):
        read("squad_v1_spans", tmp_path, lengths=(300, 2))
