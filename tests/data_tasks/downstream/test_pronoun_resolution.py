"""Tests of definite pronoun resolution: rows of TFDS's schema, T5's text form, and the metric."""

import json

import gold_predictions
import pytest

from data_tasks.downstream import pronoun_resolution
from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

ROWS = [
    {"sentence": "Bob asked Tom if he can, if he will.", "pronoun": "he", "candidates": ["Bob", "Tom"], "label": 1},
    {"sentence": "The bee stung it.", "pronoun": "it", "candidates": ["The bee", "the dog"], "label": 0},
]


def read(folder, split, rows):
    (folder / "DPR").mkdir(exist_ok=True)
    (folder / "DPR" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = {"vocabulary_path": str(PYTHON_DOCS_MODEL), "data_dir": str(folder)}
    lengths = {"inputs": 64, "targets": 32}
    return gold_predictions.read(pronoun_resolution.TASK, split, task_feature_lengths=lengths, task_arguments=arguments)


def test_the_first_occurrence_of_the_pronoun_is_marked(tmp_path):
    examples = read(tmp_path, "test", ROWS)
    found = [(row["inputs_pretokenized"].decode(), row["targets_pretokenized"].decode()) for row in examples]
    assert found == [
        ("wsc: Bob asked Tom if *he* can, if he will.", "Tom"),
        ("wsc: The bee stung *it*.", "The bee"),
    ]
    assert gold_predictions.evaluate(pronoun_resolution.TASK, examples) == {"accuracy": 100}
    assert [pronoun_resolution.referent(text, example=examples[0]) for text in ("Bob", "Tom", "tom")] == [0, 1, -1]


def test_a_test_split_may_lack_labels_and_a_training_split_may_not(tmp_path):
    unlabeled = [{name: ROWS[0][name] for name in ("sentence", "pronoun")}]
    (row,) = read(tmp_path, "test", unlabeled)
    assert row["targets_pretokenized"] == b"<unk>"
    with pytest.raises(UserError, match="candidates"):
        read(tmp_path, "train", unlabeled)


def test_tfds_provides_the_data_without_data_dir():
    import tensorflow_datasets as tfds

    with tfds.testing.mock_data(num_examples=2):
        examples = gold_predictions.read(
            pronoun_resolution.TASK,
            "train",
            task_feature_lengths={"inputs": 64, "targets": 32},
            task_arguments={"vocabulary_path": str(PYTHON_DOCS_MODEL)},
        )
    assert len(examples) >= 2
    features = tfds.builder(pronoun_resolution.TFDS_NAME, data_dir="/nonexistent").info.features
    assert {*features} == {*pronoun_resolution.COLUMNS}
