"""The task `text_files_words`: rows of the words of text files, whose lines end in EOS."""

import json

import pytest
import seqio

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.pretraining import word_streams
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

WORDS = ("the", "cat", "dog", "sat", "ran")


@pytest.fixture
def rows(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{word} 9\n" for word in WORDS))

    def read(contents, name="text.txt", length=8, **arguments):
        """Returns the rows of a file in words, with EOS as |."""
        (tmp_path / name).write_text(contents)
        (tmp_path / "held_out.txt").write_text("the\n")
        given = {"pattern": str(tmp_path / name), "validation_pattern": str(tmp_path / "held_out.txt")}
        given |= {"vocabulary_path": str(tmp_path / "vocab.txt")} | arguments
        task_arguments.reset()
        task_arguments.update([word_streams.TASK], given)
        lengths = None if length is None else {"targets": length}
        task = seqio.get_mixture_or_task(word_streams.TASK)
        found = task.get_dataset(lengths, "train", use_cached=False, shuffle=False).as_numpy_iterator()
        names = ("<pad>", "|", "<unk>", *WORDS)
        return [" ".join(names[index] for index in example["targets"]) for example in found]

    yield read
    task_arguments.reset()


def test_lines_are_sentences_whose_unknown_words_are_left_out(rows):
    assert rows("the cat sat\n\nthe old dog\tran\n") == [
        "the cat sat | | the dog ran",
        "| |",
    ]  # the file ends in an empty line


def test_documents_of_other_formats_end_in_eos(rows):
    documents = ("the cat\nsat", "dog ran")
    contents = "".join(json.dumps({"text": text}) + "\n" for text in documents)
    assert rows(contents, "text.jsonl", length=5) == ["the cat | sat |", "dog ran |"]


def test_missing_settings_raise(rows):
    with pytest.raises(UserError, match="VOCABULARY_PATH is not set: the task needs words and their counts"):
        rows("the cat", vocabulary_path=None)
    with pytest.raises(UserError, match="a stream of words"):
        rows("the cat", length=None)
