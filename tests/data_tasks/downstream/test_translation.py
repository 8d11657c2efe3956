"""Tests of translation and summarization: pairs of files, rows of TFDS, prefixes, and invalid files."""

import gzip
import json

import gold_predictions
import pytest
import tensorflow as tf

from data_tasks.corpora.parallel_files import ParallelFiles
from data_tasks.downstream.summarization import summarize
from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL


def read(task, directory, split="validation", number=100, **arguments):
    arguments |= {"vocabulary_path": str(PYTHON_DOCS_MODEL), "data_dir": str(directory)}
    options = {"task_feature_lengths": {"inputs": 256, "targets": 256}, "task_arguments": arguments}
    return gold_predictions.read(task, split, number, **options)


# ---- translation -----------------------------------------------------------------------------------------------------


def test_multi30k_is_read_in_both_directions(test_data):
    import seqio

    examples = read("parallel_text", test_data / "mt_multi30k")
    assert seqio.TaskRegistry.get("parallel_text").num_input_examples("validation") == 1014
    english, german = (
        "A group of men are loading cotton onto a truck",
        "Eine Gruppe von Männern lädt Baumwolle auf einen",
    )
    assert examples[0]["inputs_pretokenized"].decode() == f"translate English to German: {english}"
    assert examples[0]["targets_pretokenized"].decode().startswith(german)
    assert gold_predictions.evaluate("parallel_text", examples) == pytest.approx({"bleu": 100, "bleu_13a": 100})
    (example,) = read("parallel_text", test_data / "mt_multi30k", "test", 1, source_language="de", target_language="en")
    assert example["inputs_pretokenized"].startswith(b"translate German to English: Ein Mann mit einem orangefarbenen")


@pytest.mark.parametrize(
    ("task", "language", "prefix"),
    [
        ("wmt14_ende_v003", "de", "translate English to German: one\u2028line"),
        ("wmt14_enfr_v003", "fr", "translate English to French: one\u2028line"),
        ("wmt15_enfr_v003", "fr", "translate English to French: one\u2028line"),
        ("wmt16_enro_v003", "ro", "translate English to Romanian: one\u2028line"),
        ("wmt19_ende_v003", "de", "translate English to German: one\u2028line"),
        ("wmt_t2t_ende_v003", "de", "translate English to German: one\u2028line"),
    ],
)
def test_prefixes_and_splits_of_wmt(tmp_path, task, language, prefix):
    (tmp_path / f"train.{language}.gz").write_bytes(gzip.compress(b"eins\nzwei\n"))
    (tmp_path / "train.en").write_bytes("one\u2028line\r\ntwo".encode())
    (tmp_path / "validation.jsonl").write_text(json.dumps({"en": "three", language: "drei"}))
    first, second = read(task, tmp_path, "train")
    assert (first["inputs_pretokenized"].decode(), first["targets_pretokenized"]) == (prefix, b"eins")
    assert second["targets_pretokenized"] == b"zwei"
    (example,) = read(task, tmp_path)
    assert example["inputs_pretokenized"].endswith(b": three")
    assert example["targets_pretokenized"] == b"drei"


def test_datasets_of_tfds_have_both_languages():
    import tensorflow_datasets as tfds

    for name in ("wmt14_translate/de-en", "wmt16_translate/ro-en", "wmt19_translate/de-en", "wmt_t2t_translate/de-en"):
        languages = set(name[-5:].split("-"))
        info = tfds.builder(f"{name}:1.0.0", data_dir="/nonexistent").info
        assert set(info.features) == languages


def test_files_of_different_lengths_raise(tmp_path):
    (tmp_path / "train.en").write_text("a\nb\n")
    (tmp_path / "train.de").write_text("a\n")
    with pytest.raises(UserError, match=r"train\.en has 2 lines, .*train\.de has 1 lines\. Give files whose lines are"):
        read("parallel_text", tmp_path, "train")


def test_missing_language_raises(tmp_path):
    (tmp_path / "train.en").write_text("a\n")
    with pytest.raises(UserError, match=r"found only .*train\.en\. Give .*train\.en and .*train\.de"):
        read("parallel_text", tmp_path, "train")
    with pytest.raises(UserError, match="'xx' is not the code of a known language. Give one of ar, "):
        (tmp_path / "train.xx").write_text("a\n")
        read("parallel_text", tmp_path, "train", target_language="xx")


def test_truncated_gzip_raises(tmp_path):
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(b"a\n" * 99)[:-12])
    (tmp_path / "train.de").write_text("a\n")
    with pytest.raises(UserError, match=r"train\.en\.gz: not a complete gzip file"):
        ParallelFiles(("en", "de")).read(str(tmp_path / "train"))


# ---- summarization ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "article", "summary"), [("cnn_dailymail_v002", "article", "highlights"), ("xsum", "document", "summary")]
)
def test_articles_are_summarized(tmp_path, task, article, summary):
    import tensorflow_datasets as tfds

    row = {article: "It rained. It stopped.", summary: "Rain ."}
    (tmp_path / "test.jsonl").write_text(json.dumps(row))
    (example,) = examples = read(task, tmp_path, "test")
    assert example["inputs_pretokenized"] == b"summarize: It rained. It stopped."
    assert example["targets_pretokenized"] == b"Rain ."
    assert gold_predictions.evaluate(task, examples)["rouge1"] == 100
    names = {"cnn_dailymail_v002": "cnn_dailymail:3.4.0", "xsum": "xsum:1.1.0"}
    assert {article, summary} <= set(tfds.builder(names[task], data_dir="/nonexistent").info.features)


def test_summaries_keep_their_features_apart():
    ds = tf.data.Dataset.from_tensors({"a": "text", "b": "sum"})
    (row,) = summarize(ds, article="a", summary="b").as_numpy_iterator()
    assert row == {"inputs": b"summarize: text", "targets": b"sum"}
