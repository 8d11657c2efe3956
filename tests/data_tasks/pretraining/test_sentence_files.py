"""Which files have a sentence per line: plain text, unless the task argument says otherwise."""

import pytest

from data_tasks.pretraining import sentence_files, sentence_tasks, sentence_triples, sentences, xlnet_tasks
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

TASKS = ("text_files_sentence_pairs", "text_files_etc", "text_files_xlnet", sentence_triples.TASK)


@pytest.fixture
def arguments(tmp_path):
    (tmp_path / "a.txt").write_text("One.\nTwo.\n\nThree.\n")
    (tmp_path / "a.jsonl").write_text('{"text": "One. Two.\\n\\nThree."}\n')

    def make(pattern, value=None, validation=None):
        patterns = {"pattern": str(tmp_path / pattern), "validation_pattern": validation and str(tmp_path / validation)}
        return sentence_tasks.TEXT_FILES_ARGUMENTS | patterns | {sentence_files.ARGUMENT: value}

    return make


def documents(arguments):
    return [
        row["text"].numpy().decode() for row in sentence_files.source(arguments).get_dataset("train", shuffle=False)
    ]


def test_format_decides(arguments):
    text, records = (
        arguments("*.txt") | {"validation_fraction": 0.0},
        arguments("*.jsonl") | {"validation_fraction": 0.0},
    )
    assert sentence_files.split(text) is sentences.split_lines and len(documents(text)) == 2
    assert sentence_files.split(records) is sentences.split_prose and len(documents(records)) == 1


def test_argument_takes_precedence(arguments):
    assert sentence_files.split(arguments("a.jsonl", True)) is sentences.split_lines
    assert sentence_files.split(arguments("a.txt", False)) is sentences.split_prose


def test_text_and_records_together_raise(arguments):
    for both in (arguments("a.*"), arguments("a.txt", validation="a.jsonl")):
        with pytest.raises(
            UserError, match=r"a.txt is plain text, and .*a.jsonl has records. Give .*one_sentence_a_line"
        ):
            sentence_files.lines_are_sentences(both)
    assert sentence_files.lines_are_sentences(arguments("a.*", True))


def test_tasks_of_sentences_have_the_argument():
    assert xlnet_tasks
    for task in TASKS:
        task_arguments.update([task], {})
        assert task_arguments.current(task)[sentence_files.ARGUMENT] is None
        task_arguments.update([task], {sentence_files.ARGUMENT: True})
        assert task_arguments.current(task)[sentence_files.ARGUMENT] is True
        with pytest.raises(UserError, match="has the type str. Give a value of type bool"):
            task_arguments.update([task], {sentence_files.ARGUMENT: "True"})
        task_arguments.update([task], {})
