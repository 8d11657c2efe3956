"""Rank classification: rows of answers, predictions by score, and the metrics of the wrapped tasks."""

import json

import gold_predictions
import numpy as np
import pytest
import seqio
import tensorflow as tf

from data_tasks.downstream import rank_classification
from data_tasks.metrics.classification import accuracy, f1
from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL, python_docs

LENGTHS = {"inputs": 64, "targets": 32}
ROWS = [
    {"sentence1": "a", "sentence2": "b", "label": 1, "idx": 0},
    {"sentence1": "c", "sentence2": "d", "label": 0, "idx": 1},
]


def read(directory, task, rows):
    (directory / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = {"vocabulary_path": str(PYTHON_DOCS_MODEL), "data_dir": str(directory)}
    return gold_predictions.read(task, task_feature_lengths=LENGTHS, task_arguments=arguments)


def targets_of(task, rows):
    """Returns the postprocessed targets, as SeqIO computes them."""
    return [task.postprocess_fn(row["targets_pretokenized"].decode(), example=row, is_target=True) for row in rows]


def test_each_example_becomes_a_row_per_answer(tmp_path):
    rows = read(tmp_path, "glue_mrpc_v002_rank", ROWS)
    vocabulary = python_docs()
    words = [vocabulary.decode(row["targets"].tolist()) for row in rows]
    assert words == ["not_equivalent", "equivalent"] * 2
    assert all(row["targets"][-1] == vocabulary.eos_id for row in rows)  # as in the wrapped task
    assert [row["inputs_pretokenized"].decode() for row in rows] == [
        *["mrpc sentence1: a sentence2: b"] * 2,
        *["mrpc sentence1: c sentence2: d"] * 2,
    ]


def test_prediction_is_the_answer_with_the_highest_score(tmp_path):
    rows = read(tmp_path, "glue_mrpc_v002_rank", ROWS)
    task = seqio.TaskRegistry.get("glue_mrpc_v002_rank")
    targets, (metric,) = targets_of(task, rows), task.metric_fns
    lengths = [len(row["targets"]) for row in rows]
    assert [row["tokens"] for row in targets] == lengths and lengths[0] > lengths[1]
    # The targets are `equivalent` and `not_equivalent`. Per token, the longer answer wins both times.
    long, short = -float(lengths[0]), -1.05 * lengths[1]
    assert long < short
    found = metric(targets, [long, short, long, short])
    assert found["accuracy"] == found["accuracy_per_token"] == 50
    expected = {**f1([1, 0], [1, 1]), **accuracy([1, 0], [1, 1])}
    assert {name: found[name] for name in expected} == expected
    expected = {**f1([1, 0], [0, 0]), **accuracy([1, 0], [0, 0])}
    assert {name: found[f"{name}_per_token"] for name in expected} == expected
    assert metric(targets, np.array([-6.0, -5.0, -1.0, -5.0]))["accuracy"] == 100
    # Without one answer of the second example, only the first one counts.
    assert metric(targets[:3], [-6.0, -5.0, -5.0])["accuracy"] == 100
    with pytest.raises(UserError, match="none of 1 examples has all of its answers among the rows. Increase NUM_EXA"):
        metric(targets[:1], [-6.0])


def test_metrics_of_groups_are_those_of_the_task(tmp_path):
    examples = [
        {
            "paragraph": "p",
            "question": "q",
            "answer": text,
            "label": label,
            "idx": {"paragraph": 0, "question": 0, "answer": n},
        }
        for n, (text, label) in enumerate((("x", 1), ("y", 0)))
    ]
    task = seqio.TaskRegistry.get("super_glue_multirc_v102_rank")
    rows = read(tmp_path, task.name, examples)
    targets, (metric,) = targets_of(task, rows), task.metric_fns
    right, wrong = metric(targets, [-2.0, -1.0, -1.0, -2.0]), metric(targets, [-1.0, -2.0, -1.0, -2.0])
    assert (right["exact_match"], right["f1"], right["accuracy"]) == (100, 100, 100)
    assert (wrong["exact_match"], wrong["accuracy"]) == (0, 50)


def test_answers_may_be_a_feature_of_the_examples():
    ds = tf.data.Dataset.from_tensors({"inputs": "i", "targets": "y", "options": ["x", "y", "z"]})
    rows = list(rank_classification.rows_of_answers(ds, answers="options").as_numpy_iterator())
    assert [row["targets"] for row in rows] == [b"x", b"y", b"z"]
    found = [rank_classification.ranked(row["targets"].decode(), example=row) for row in rows]
    assert [row["correct"] for row in found] == [False, True, False]
    assert [row["answer"] for row in found] == [0, 1, 2] and {row["answers"] for row in found} == {3}


def test_every_task_with_label_words_has_the_form():
    names = seqio.TaskRegistry.names()
    assert {f"{name}_v002_rank" for name in ("glue_sst2", "glue_rte", "glue_mnli")} <= set(names)
    assert {"super_glue_boolq_v102_rank", "race_high_rank", "swag_rank"} <= set(names)
    with pytest.raises(UserError, match="task xsum: its postprocessor has no label_classes. Give the answers"):
        rank_classification.add(seqio.TaskRegistry.get("xsum"))
    with pytest.raises(UserError, match="task glue_rte_classification: its preprocessors lack seqio.preprocessors.tok"):
        rank_classification.add(seqio.TaskRegistry.get("glue_rte_classification"), answers=["a"])
