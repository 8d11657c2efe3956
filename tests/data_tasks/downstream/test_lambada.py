"""Tests of LAMBADA: the last word, its space, truncation at the beginning, and metrics."""

import json

import gold_predictions
import pytest
import seqio
import tensorflow as tf

from data_tasks.downstream.lambada import split_last_word
from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL


def read(directory, split="test", length=512, number=50, vocabulary=PYTHON_DOCS_MODEL):
    arguments = {"vocabulary_path": str(vocabulary), "data_dir": str(directory)}
    options = {"task_feature_lengths": {"inputs": length, "targets": 16}, "task_arguments": arguments}
    return gold_predictions.read("lambada", split, number, **options)


def test_last_word_of_the_real_passages(test_data):
    examples = read(test_data / "eval/lambada")
    task = seqio.TaskRegistry.get("lambada")
    assert task.num_input_examples("test") == 5153
    first = examples[0]
    assert first["inputs_pretokenized"].endswith(
        b"as I stare at Harlin, his mouth curved in a confident grin, I don't care about"
    )
    assert first["targets_pretokenized"] == b" signs"
    targets = [row["targets_pretokenized"].decode() for row in examples]
    texts = [
        task.postprocess_fn(task.output_features["targets"].vocabulary.decode(row["targets"].tolist()))
        for row in examples
    ]
    accuracy, perplexity = task.metric_fns
    assert accuracy([target.strip() for target in targets], texts) == {"accuracy": 100}
    assert perplexity(targets, [0.0] * len(targets)) == {"perplexity": 1}


def test_joined_ids_are_those_of_the_passage(test_data, tmp_path):
    """With GPT-2's byte-level BPE, both parts have the ids of the passage."""
    for name, source in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        (tmp_path / name).write_bytes((test_data / "vocab/gpt2" / source).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    (tmp_path / "test.jsonl").write_text(json.dumps({"passage": "One two,\nthree 'four' fives\n"}))
    (example,) = read(tmp_path, vocabulary=tmp_path)
    vocabulary = seqio.TaskRegistry.get("lambada").output_features["inputs"].vocabulary
    # In a graph, because byte-level BPE is slow outside of one.
    (whole,) = tf.data.Dataset.from_tensors("One two,\nthree 'four' fives").map(vocabulary.encode_tf)
    assert [*example["inputs"], *example["targets"]] == whole.numpy().tolist()


def test_long_passages_keep_their_end(tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": "one two three four five"}))
    (whole,), (short,) = read(tmp_path), read(tmp_path, length=4)
    assert short["inputs"].tolist() == whole["inputs"].tolist()[-4:]
    assert len(whole["inputs"]) > 4


def test_words_are_divided_at_whitespace():
    texts = ["a b", "a\n\nb c.\n", " a b\u00e9 ", "it 's"]
    rows = list(split_last_word(tf.data.Dataset.from_tensor_slices({"passage": texts})).as_numpy_iterator())
    assert [(row["inputs"].decode(), row["targets"].decode()) for row in rows] == [
        ("a", " b"),
        ("a\n\nb", " c."),
        (" a", " b\u00e9"),
        ("it", " 's"),
    ]


def test_short_passages_raise(tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": "word"}))
    with pytest.raises(UserError, match=r"test\.jsonl:1: .*the passage 'word' has fewer than two words"):
        read(tmp_path)


def test_feature_of_tfds():
    import tensorflow_datasets as tfds

    info = tfds.builder("lambada:1.0.0", data_dir="/nonexistent").info
    assert set(info.features) == {"passage"}
