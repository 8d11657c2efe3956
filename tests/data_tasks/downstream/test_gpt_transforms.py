"""GPT-1's input transformations: sequences of each kind of task, and the ids of the new tokens."""

import json

import gold_predictions
import pytest
import seqio
import tensorflow as tf

from data_tasks.downstream import gpt_transforms
from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL, python_docs
from t5x_like.vocabularies.template import template_of

IDS = python_docs().vocab_size  # the first new id
START, DELIMITER, EXTRACT = IDS, IDS + 1, IDS + 2
A, B = "import tree", "def f"
FIRST, SECOND = python_docs().encode(A), python_docs().encode(B)
PAIR = [START, *FIRST, DELIMITER, *SECOND, EXTRACT]


def read(directory, task, row, length=64):
    (directory / "validation.jsonl").write_text(json.dumps(row) + "\n")
    arguments = {"vocabulary_path": str(PYTHON_DOCS_MODEL), "data_dir": str(directory)}
    options = {"task_feature_lengths": {"inputs": length}, "task_arguments": arguments}
    (example,) = gold_predictions.read(task, number=1, **options)
    return {name: value.tolist() for name, value in example.items() if name.startswith(("inputs", "targets"))}


def test_classification_and_entailment(tmp_path):
    one = read(tmp_path, "glue_sst2_gpt1", {"sentence": A, "label": 1, "idx": 0})
    assert one == {"inputs": [START, *FIRST, EXTRACT], "targets": [1]}
    two = read(tmp_path, "glue_rte_gpt1", {"sentence1": A, "sentence2": B, "label": 0, "idx": 0})
    assert two == {"inputs": PAIR, "targets": [0]}


def test_similarity_has_both_orders(tmp_path):
    found = read(tmp_path, "glue_mrpc_gpt1", {"sentence1": A, "sentence2": B, "label": 1, "idx": 0})
    assert found == {"inputs_0": PAIR, "inputs_1": [START, *SECOND, DELIMITER, *FIRST, EXTRACT], "targets": [1]}


def test_multiple_choice_has_a_sequence_per_choice(tmp_path):
    row = {"premise": A, "choice1": B, "choice2": A, "question": "cause", "label": 1, "idx": 0}
    found = read(tmp_path, "super_glue_copa_gpt1", row)
    assert found["targets"] == [1] and set(found) == {"inputs_0", "inputs_1", "targets"}
    for name, choice in (("inputs_0", SECOND), ("inputs_1", FIRST)):
        assert found[name][0] == START and found[name][-len(choice) - 2 :] == [DELIMITER, *choice, EXTRACT]


def test_truncation_keeps_the_new_tokens(tmp_path):
    found = read(tmp_path, "glue_rte_gpt1", {"sentence1": A * 9, "sentence2": B, "label": 0, "idx": 0}, length=8)
    assert len(found["inputs"]) == 8 and found["inputs"][0] == START and found["inputs"][-1] == EXTRACT
    with pytest.raises(UserError, match="inputs=3 has no room for a text beside 3 special tokens"):
        read(tmp_path, "glue_mrpc_gpt1", {"sentence1": A, "sentence2": B, "label": 1, "idx": 0}, length=3)


def test_vocabulary_has_three_more_ids():
    vocabulary = gpt_transforms.GPTVocabulary(python_docs())
    assert (vocabulary.vocab_size, vocabulary.start_id, vocabulary.extract_id) == (IDS + 3, START, EXTRACT)
    assert template_of(vocabulary).separator == (DELIMITER,)
    assert vocabulary.decode(PAIR) == f"_start_ {A} _delimiter_ {B} _classify_"
    assert vocabulary.decode_tf(tf.constant([START, *FIRST, EXTRACT])).numpy().decode() == A
    assert vocabulary.encode(A) == FIRST and vocabulary == gpt_transforms.GPTVocabulary(python_docs())


def test_every_task_with_a_class_has_the_form():
    names = seqio.TaskRegistry.names()
    stems = {name.removesuffix("_classification") for name in names if name.endswith("_classification")}
    assert {f"{stem}_gpt1" for stem in stems} <= set(names) and "super_glue_copa_gpt1" in names
