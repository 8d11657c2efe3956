"""Book identification: labels are the names of files, and passages of both splits are at different places."""

import json

import pytest
import seqio

from data_tasks.downstream.book_identification import TASK
from t5x_like.data import skipped_records, task_arguments
from t5x_like.data.seqio_feed.registry import find_provider
from t5x_like.data.skipped_records import SkippedRecords
from t5x_like.errors import UserError
from t5x_like.vocabularies.vocabulary_kind import label_names


@pytest.fixture
def task(tmp_path):
    """Returns a function that sets the arguments of the task, whose books have 45, 30 and 20 words, and returns it."""

    def set_arguments(**arguments):
        task_arguments.reset()
        task_arguments.update([TASK], {"pattern": str(tmp_path / "*.txt"), "words": 5, **arguments})
        return find_provider(TASK)

    for name, number in (("carroll", 45), ("austen", 30), ("doyle", 20)):
        words = [f"{name}{index}" for index in range(number)]
        lines = [" ".join(words[start : start + 7]) for start in range(0, number, 7)]
        (tmp_path / f"{name}.txt").write_text("\n\n".join(lines))
    yield set_arguments
    task_arguments.reset()


def examples(task, split):
    return [(row["text"].decode(), int(row["label"])) for row in task.source.get_dataset(split).as_numpy_iterator()]


def test_the_label_is_the_file_and_validation_passages_follow_those_of_training(task):
    found = task(validation_fraction=0.3)
    names = found.output_features["targets"].vocabulary.names
    assert names == ("austen", "carroll", "doyle")
    assert found.output_features["targets"].vocabulary.vocab_size == 3
    assert label_names(found.output_features["targets"].vocabulary) == names  # in caches, `inspect` and LABELS
    assert label_names(found.output_features["inputs"].vocabulary) == ()
    train, validation = (examples(found, split) for split in ("train", "validation"))
    assert [len(each) for each in (train, validation)] == [4 + 6 + 3, 2 + 3 + 1]
    for label, name in enumerate(names):
        places = [
            [int(word.removeprefix(name)) for text, found in split if found == label for word in text.split()]
            for split in (train, validation)
        ]
        assert sorted(places[0]) == list(range(len(places[0])))
        assert sorted(places[1]) == list(range(len(places[0]), len(places[0]) + len(places[1])))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"words": 0}, "words=0 in TASK_ARGUMENTS of text_files_book: not a positive integer"),
        ({"words": 2.5}, "words=2.5 has the type float"),
        ({"words": 15}, "doyle has fewer than two passages of 15 words"),
        ({"validation_fraction": 1.0}, "validation_fraction=1.0 in TASK_ARGUMENTS of text_files_book: out of range"),
        ({"pattern": ""}, "text_files_book reads files, but none are given"),
    ],
)
def test_wrong_arguments_raise(task, arguments, message):
    with pytest.raises(UserError, match=message):
        task(**arguments).source.get_dataset("train")


def test_labels_must_differ(task, tmp_path):
    with pytest.raises(UserError, match="1 file found. Give two or more files"):
        assert task(pattern=str(tmp_path / "doyle.txt")).output_features["targets"].vocabulary.names
    (tmp_path / "Mr. Austen.txt").write_text("a")
    assert task().output_features["targets"].vocabulary.names == ("Mr. Austen", "austen", "carroll", "doyle")
    (tmp_path / "austen.jsonl.gz").write_text("a")
    with pytest.raises(UserError, match="two files have the label 'austen'"):
        assert task(pattern=str(tmp_path / "*")).output_features["targets"].vocabulary.names


def test_each_split_has_a_passage_of_each_file_at_any_fraction(task):
    found = task(validation_fraction=0.95)
    assert [sorted(label for _, label in examples(found, split)) for split in ("train", "validation")] == [
        [0, 1, 2],
        [0] * 5 + [1] * 8 + [2] * 3,
    ]


def test_skipped_records_are_counted_by_one_shard_also_of_rows_read_before(task, tmp_path):
    record = json.dumps({"text": "word " * 20})
    for name, bad in (("a", 2), ("b", 0)):
        (tmp_path / f"{name}.jsonl").write_text(f"{record}\n" + "bad\n" * bad)
    source = task(pattern=str(tmp_path / "*.jsonl"), on_bad_record="skip").source

    def counts(split, shard_info):
        skipped = SkippedRecords()
        with skipped_records.counted(skipped):
            source.get_dataset(split, shard_info=shard_info)
        return skipped.per_file()

    expected = {str(tmp_path / "a.jsonl"): {"bad_records": 2}}
    shards = [seqio.ShardInfo(index, 2) for index in range(2)]
    assert [counts("train", each) for each in (None, *shards)] == [expected, expected, {}]
    assert counts("validation", None) == expected
