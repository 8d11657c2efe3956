"""Examples that tasks make of given records."""

import functools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_like.data import specs
from t5x_like.data.records import Record
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.seqio_feed.task_rows import TaskRows
from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

TASK = "task_rows_words"
ROW = {
    "words": tf.constant(["x"]),
    "number": tf.constant(1.0),
    "info": {"label": tf.constant(3)},
    "text": tf.constant(""),
}


def _windows(ds):
    """Makes an example of each word that is not `skip`, in token ids that are the lengths of texts."""

    def of_row(row):
        words = tf.data.Dataset.from_tensor_slices(row["words"]).filter(lambda word: word != "skip")

        def example(word):
            sizes = tf.strings.length([row["text"], word]) + 1
            tf.debugging.assert_less(sizes, 50, "long word")
            return {"inputs": sizes, "targets": [row["info"]["label"]], "number": row["number"]}

        return words.map(example)

    return ds.flat_map(of_row)


@pytest.fixture(scope="module", autouse=True)
def task():
    vocabulary = seqio.PassThroughVocabulary(100)
    feature = functools.partial(seqio.Feature, vocabulary, add_eos=False)
    seqio.TaskRegistry.add(
        TASK,
        source=seqio.FunctionDataSource(
            lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensors(ROW), splits=["train"]
        ),
        preprocessors=[_windows],
        output_features={"inputs": feature(), "targets": feature()},
    )
    seqio.TaskRegistry.add(
        f"{TASK}_lines",
        source=seqio.TextLineDataSource({"train": str(PYTHON_DOCS_MODEL)}),
        preprocessors=[lambda ds: ds.map(lambda line: {"inputs": [tf.strings.length(line)], "targets": [1]})],
        output_features={"inputs": feature(), "targets": feature()},
    )
    yield
    for name in (TASK, f"{TASK}_lines"):
        seqio.TaskRegistry.remove(name)


INPUTS = specs.ENCODER_INPUTS
VOCABULARY = {"task_arguments": {"vocabulary_path": str(PYTHON_DOCS_MODEL)}}


def rows(*values, task=TASK, text_field=None, **options):
    lengths = {"inputs": 4, "targets": 1}
    source = SeqIOSource(mixture_or_task_name=task, task_feature_lengths=lengths, batch_size=2, **options)
    records = [Record(line, row) for line, row in enumerate(values, 1)]
    return TaskRows(source, "in.jsonl", records, text_field=text_field)


RECORDS = [
    {"words": ["a", "skip", "abc"], "text": "abcd", "number": 2, "info": {"label": 7}},
    {"words": ["skip"], "text": ""},
    {"words": ["ab"], "text": "a"},
]


def test_examples_belong_to_records_and_missing_labels_are_unknown():
    found = list(rows(*RECORDS).examples(0, 3))
    assert [record for record, _ in found] == [0, 0, 2]
    assert [example["inputs"].tolist() for _, example in found] == [[5, 2], [5, 4], [2, 3]]
    assert [example["targets"].tolist() for _, example in found] == [[7], [7], [-1]]
    assert [example["number"] for _, example in found] == [2, 2, -1]


def test_batches_are_padded_and_start_at_any_record():
    first, second = rows(*RECORDS).batches(INPUTS, 0, 3, 2)
    assert (list(first.records), list(second.records)) == ([0, 0], [2])
    np.testing.assert_array_equal(first.features["encoder_input_tokens"], [[5, 2, 0, 0], [5, 4, 0, 0]])
    np.testing.assert_array_equal(second.features["encoder_segment_ids"], [[1, 1, 0, 0], [0] * 4])
    assert second.examples[0]["inputs"].tolist() == [2, 3]
    (last,) = rows(*RECORDS).batches(INPUTS, 1, 3, 2)
    assert list(last.records) == [2]


def test_lines_of_text_are_the_only_text_column():
    (found,) = rows({"line": "abc"}, text_field="line", task=f"{TASK}_lines").examples(0, 1)
    assert found[1]["inputs"].tolist() == [3]
    (found,) = rows({"line": "good"}, text_field="line", task="glue_sst2_v002", **VOCABULARY).examples(0, 1)
    assert found[1]["inputs_pretokenized"] == b"sst2 sentence: good"
    with pytest.raises(UserError, match="in.jsonl: lines of text, but the columns of task glue_mrpc_v002 are 'sent"):
        rows({"line": "good"}, text_field="line", task="glue_mrpc_v002", **VOCABULARY)


def test_columns_of_a_source_with_files_may_lack_labels():
    (found,) = rows({"sentence": "good"}, task="glue_sst2_v002", **VOCABULARY).examples(0, 1)
    assert found[1]["inputs_pretokenized"] == b"sst2 sentence: good"
    assert found[1]["targets_pretokenized"] == b"<unk>"
    with pytest.raises(UserError, match="in.jsonl:1: column 'sentence' not found. The file has 'text'"):
        rows({"text": "good"}, task="glue_sst2_v002", **VOCABULARY)


def test_text_to_predict_may_be_missing():
    (found,) = rows({"document": "abc"}, task="xsum", **VOCABULARY).examples(0, 1)
    assert found[1]["inputs_pretokenized"] == b"summarize: abc"
    (found,) = rows({"line": "abc"}, text_field="line", task="wmt14_ende_v003", **VOCABULARY).examples(0, 1)
    assert found[1]["inputs_pretokenized"] == b"translate English to German: abc"


def test_mixture_raises():
    name = f"{TASK}_mixture"
    seqio.MixtureRegistry.add(name, [(TASK, 1.0), (f"{TASK}_lines", 1.0)])
    with pytest.raises(UserError, match=f"MIXTURE_OR_TASK_NAME={name} is a mixture. Give the task.*one of {TASK}, "):
        rows({"text": "good"}, task=name)
    seqio.MixtureRegistry.remove(name)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"words": ["a"]}, r"in.jsonl:1: column 'text' not found. The row has 'words'"),
        ({"words": ["a"], "text": 3}, r"in.jsonl:1, column 'text': 3 is not text"),
        ({"words": [1], "text": "a"}, r"in.jsonl:1, column 'words': 1 is not text"),
        ({"words": ["a"], "text": "a", "info": {"label": "x"}}, r"column 'label': 'x' is not an integer"),
        (
            {"words": "abc", "text": "a"},
            r"in.jsonl:1, column 'words': 'abc' is not a list. Give a list",
        ),
        ({"words": ["a"], "text": "a", "info": "x"}, r"column 'info': 'x' is not an object"),
        ({"words": ["a" * 60], "text": "a"}, r"in.jsonl: the preprocessors of task task_rows_words.*long word"),
    ],
)
def test_invalid_row_raises(row, message):
    with pytest.raises(UserError, match=message):
        list(rows(row).examples(0, 1))


def test_columns_of_a_task_with_lines_of_text_raise():
    with pytest.raises(UserError, match="reads lines of text without columns. Give a .txt file"):
        rows({"text": "a"}, task=f"{TASK}_lines")
