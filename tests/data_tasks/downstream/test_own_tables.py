"""Tests of tasks over a user's own tables."""

import dataclasses

import gold_predictions
import pytest
import seqio

from data_tasks.downstream.own_tables import add_classification_task, add_text_to_text_task
from t5x_like.data.records import Record
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import ENCODER_INPUTS_WITH_TYPES, with_scores
from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

ARGUMENTS = {"vocabulary_path": str(PYTHON_DOCS_MODEL)}


@pytest.fixture
def task(tmp_path):
    """Registers `own` for one test, over files in a directory."""
    (tmp_path / "train.csv").write_text('title,stars\nfine,good\n"bad, really",bad\n')
    (tmp_path / "test.csv").write_text("title\nunknown\n")

    def add(function, **options):
        files = {split: str(tmp_path / f"{split}.csv") for split in ("train", "test")}
        return function("own", files, **options)

    yield add
    seqio.TaskRegistry.remove("own")


def read(split, length=32):
    lengths = {"inputs": length, "targets": length}
    return gold_predictions.read("own", split, task_feature_lengths=lengths, task_arguments=ARGUMENTS)


def test_classification_of_a_table(task):
    added = task(add_classification_task, texts=["title"], label="stars", labels=["bad", "good"])
    examples = read("train")
    assert [row["targets"].tolist() for row in examples] == [[1], [0]]
    assert gold_predictions.evaluate("own", examples) == {"accuracy": 100, "f1": 100}
    assert read("test")[0]["targets"].tolist() == [-1]
    assert added.output_features["targets"].vocabulary.names == ("bad", "good")
    assert added.num_input_examples("train") == 2
    assert "2 rows of" in added.source.describe() and "hash" in added.source.describe()
    rows = added.source.parse_rows("rows.jsonl", [Record(1, {"title": "new"})])
    assert [row["label"] for row in rows.as_numpy_iterator()] == [-1]
    assert added.source.text_features == ("title",)


def test_transfer_set_without_labels(task, tmp_path):
    (tmp_path / "train.csv").write_text("title\nfine\nbad\n")
    labels = {"label": "stars", "labels": ["bad", "good"]}
    task(add_classification_task, texts=["title"], **labels, unlabelled=["train", "test"])
    assert [row["targets"].tolist() for row in read("train")] == [[-1], [-1]]


def test_errors_name_the_file_and_the_line(task, tmp_path):
    (tmp_path / "train.csv").write_text("title,stars\nfine,god\n")
    task(add_classification_task, texts=["title"], label="stars", labels=["bad", "good"])
    with pytest.raises(UserError, match=r"train.csv:2, column 'stars': 'god' is not a label. Did you mean 'good'\?"):
        read("train")


def test_regression_of_a_table(task, tmp_path):
    (tmp_path / "train.csv").write_text("title,stars\na,4.5\nb,1\n")
    task(add_classification_task, texts=["title"], label="stars", labels=None)
    examples = read("train")
    assert [row["targets"].tolist() for row in examples] == [[4.5], [1]]
    scores = gold_predictions.evaluate("own", examples)
    assert scores == pytest.approx({"pearson_corrcoef": 100, "spearman_corrcoef": 100})


def test_several_scores_of_a_table(task, tmp_path):
    (tmp_path / "train.csv").write_text("title,joy,fear\na,4.5,1\nb,1,-1\nc,0,2\n")
    added = task(add_classification_task, texts=["title"], label=("joy", "fear"), labels=None)
    examples = read("train")
    assert [row["targets"].tolist() for row in examples] == [[4.5, 1], [1, -1], [0, 2]]
    assert added.output_features["targets"].vocabulary.names == ("joy", "fear")
    found = gold_predictions.evaluate("own", examples)
    assert found.keys() >= {"pearson_corrcoef", "pearson_corrcoef_joy", "pearson_corrcoef_fear"}
    assert all(value == pytest.approx(100) for value in found.values())
    assert read("test")[0]["targets"].tolist() == [-1, -1]
    spec = with_scores(ENCODER_INPUTS_WITH_TYPES, 3)
    source = SeqIOSource(mixture_or_task_name="own", task_feature_lengths={"inputs": 8}, batch_size=1, pack=False)
    source = dataclasses.replace(source, task_arguments=ARGUMENTS)
    assert source.suitable_spec() == with_scores(ENCODER_INPUTS_WITH_TYPES, 2)
    with pytest.raises(UserError, match="task feature 'targets': 2 values per example, but the objective reads 3"):
        next(source.eval_batches(spec))


def test_text_to_text_of_a_table(task):
    options = {"inputs": "title", "targets": "stars", "prefix": "rate: "}
    added = task(add_text_to_text_task, **options)
    assert added.source.text_features == ("title",)
    examples = read("train")
    assert [row["inputs_pretokenized"] for row in examples] == [b"rate: fine", b"rate: bad, really"]
    assert [row["targets_pretokenized"] for row in examples] == [b"good", b"bad"]
    assert gold_predictions.evaluate("own", examples) == {"exact_match": 100}
    assert read("test")[0]["targets_pretokenized"] == b""


def test_labels_of_several_columns_raise():
    with pytest.raises(UserError, match="label=.'a', 'b'. are not different columns of scores"):
        add_classification_task("own", {"train": "a.csv"}, texts=["c"], label=("a", "b"), labels=("x", "y"))


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        ("title", ("a", "b"), "texts='title' are not one or two columns"),
        (["a", "b", "c"], ("a", "b"), "are not one or two columns"),
        (["label"], ("a", "b"), "without a label"),
        (["title"], ("a", "a"), "labels=.* are not two or more different names"),
        (["title"], "ab", "labels='ab' are not two or more different names"),
    ],
)
def test_contradictory_arguments_raise(texts, labels, message):
    with pytest.raises(UserError, match=message):
        add_classification_task("own", {"train": "a.csv"}, texts=texts, label="stars", labels=labels)
    assert "own" not in seqio.TaskRegistry.names()
