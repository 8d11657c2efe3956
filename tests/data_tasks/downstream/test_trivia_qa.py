"""Tests of TriviaQA without and with contexts: official files, rows of TFDS, aliases, and parts with the answer."""

import json

import gold_predictions
import pytest

from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL, python_docs

PYTHON_DOCS = python_docs()

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


# ---- with contexts ---------------------------------------------------------------------------------------------------


def read_contexts(directory, row, length):
    (directory / "train.jsonl").write_text(json.dumps(row))
    arguments = {"vocabulary_path": str(PYTHON_DOCS_MODEL), "data_dir": str(directory)}
    lengths = {"inputs": length, "targets": 16}
    return gold_predictions.read("trivia_qa_v010", "train", task_feature_lengths=lengths, task_arguments=arguments)


def test_aliases_are_searched_in_each_context(tmp_path):
    row = {
        "question": "Who wrote (it)?",
        "answer": {"normalized_aliases": ["bob (b.)", "ann", "not there", "b+"]},
        "entity_pages": {"wiki_context": ["By Ann\nor  Bob (B.)."]},
        "search_results": {"search_context": ["Nobody", "Ann wrote it; cf. B+."]},
    }
    examples = read_contexts(tmp_path, row, 200)
    question = "question: Who wrote ( it ) ? context: "
    assert [(row["inputs_pretokenized"].decode(), row["targets_pretokenized"].decode()) for row in examples] == [
        (question + "By Ann or Bob ( B . ) . ", "bob ( b . ) "),
        (question + "By Ann or Bob ( B . ) . ", "ann"),
        (question + "Ann wrote it ; cf . B + . ", "ann"),
        (question + "Ann wrote it ; cf . B + . ", "b + "),
    ]
    assert all(row["inputs"][-1] == row["targets"][-1] == 1 for row in examples)


def test_long_inputs_are_cut_around_the_answer(tmp_path):
    contexts = ["word " * count + "the answer is ann" + " word" * (60 - count) for count in range(0, 60, 6)]
    row = {
        "question": "Who?",
        "answer": {"normalized_aliases": ["answer is ann"]},
        "search_results": {"search_context": contexts},
    }
    examples = read_contexts(tmp_path, row, 24)
    assert len(examples) == len(contexts)
    shown = [PYTHON_DOCS.decode(example["inputs"].tolist()) for example in examples]
    assert all("answer is ann" in text for text in shown)
    assert {len(example["inputs"]) for example in examples} == {24}
    assert len({text.index("answer") for text in shown}) > 3  # the part begins at a random position
    assert not read_contexts(tmp_path, row, 5)  # the answer does not fit


def test_features_of_tfds():
    import tensorflow_datasets as tfds

    features = tfds.builder("trivia_qa/rc:1.1.0", data_dir="/nonexistent").info.features
    assert "normalized_aliases" in features["answer"]
    assert "wiki_context" in features["entity_pages"].feature
    assert "search_context" in features["search_results"].feature
    features = tfds.builder("trivia_qa/unfiltered.nocontext:1.1.0", data_dir="/nonexistent").info.features
    assert {"question", "question_id", "answer"} <= set(features)
    assert {"value", "aliases"} <= set(features["answer"])
