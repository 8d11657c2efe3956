"""Tests of TriviaQA without a context: official files, rows of TFDS, and aliases."""

import json

import gold_predictions
import pytest

from data_tasks.vocabularies import PYTHON_DOCS_MODEL

OFFICIAL = {
    "Data": [
        {"Question": "Who was it?", "QuestionId": "tc_1", "Answer": {"Value": "The Beatles", "Aliases": ["Fab Four"]}},
        {"Question": "And now?", "QuestionId": "tc_2", "Answer": {"Value": "x", "Aliases": []}},
    ]
}


def rows():
    for question in OFFICIAL["Data"]:
        answer = {name.lower(): value for name, value in question["Answer"].items()}
        yield {"question": question["Question"], "question_id": question["QuestionId"], "answer": answer}


@pytest.mark.parametrize("name", ["unfiltered-web-dev.json", "validation.jsonl"])
def test_questions_have_all_aliases(tmp_path, name):
    (tmp_path / name).write_text(json.dumps(OFFICIAL) if name.endswith(".json") else "\n".join(map(json.dumps, rows())))
    arguments = {"vocabulary_path": str(PYTHON_DOCS_MODEL), "data_dir": str(tmp_path)}
    lengths = {"inputs": 64, "targets": 32}
    task = "trivia_qa_closed_book"
    examples = gold_predictions.read(task, task_feature_lengths=lengths, task_arguments=arguments)
    assert [row["inputs_pretokenized"].decode() for row in examples] == [
        "trivia_qa question: Who was it?",
        "trivia_qa question: And now?",
    ]
    assert [row["targets_pretokenized"] for row in examples] == [b"The Beatles", b"x"]
    assert gold_predictions.evaluate(task, examples) == {"em": 100, "f1": 100}

    import seqio

    registered = seqio.TaskRegistry.get(task)
    targets = [registered.postprocess_fn("", example=row, is_target=True) for row in examples]
    (metric,) = registered.metric_fns
    assert metric(targets, ["the fab-four", "y"]) == {"em": 50, "f1": 50}


def test_features_of_tfds():
    import tensorflow_datasets as tfds

    features = tfds.builder("trivia_qa/unfiltered.nocontext:1.1.0", data_dir="/nonexistent").info.features
    assert {"question", "question_id", "answer"} <= set(features)
    assert {"value", "aliases"} <= set(features["answer"])
