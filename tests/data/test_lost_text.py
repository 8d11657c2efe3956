"""The share of the text of documents that reaches the rows of a task."""

import json

import pytest

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from t5x_like import inspect_task
from t5x_like.data import specs
from t5x_like.data.seqio_feed import SeqIOSource, lost_text

WORDS = ("stone", "bridge", "river", "garden", "old", "quiet", "runs", "the", "past", ".")
SENTENCE = "The river runs past the old stone bridge."
LENGTHS = {"inputs": 32, "targets": 6}


@pytest.fixture
def files(tmp_path):
    """Returns settings of documents of 40 sentences, each document in one line of JSON and without line breaks."""
    (tmp_path / "vocab.txt").write_text(
        "".join(f"{each}\n" for each in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS))
    )
    rows = [{"text": " ".join([f"{SENTENCE} {WORDS[number % 6].capitalize()}."] * 20)} for number in range(12)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"data_files": str(tmp_path / "a.jsonl"), "vocabulary_path": str(tmp_path / "vocab.txt")}


def source_of(task, lengths=LENGTHS, **settings):
    return SeqIOSource(
        mixture_or_task_name=task, task_feature_lengths=lengths, batch_size=4, shuffle=False, pack=False, **settings
    )


@pytest.mark.full
@pytest.mark.parametrize("task", ["text_files_sentence_pairs", "text_files_replaced_tokens"])
def test_lines_of_records_as_sentences_lose_text(task, files):
    """A document of one line is a single sentence, of which a row has the beginning."""
    spec = specs.SENTENCE_PAIRS if task.endswith("pairs") else specs.MASKED_LM_WITH_TYPES
    (whole,) = lost_text.measure(source_of(task, **files), spec)
    assert whole.fraction > 0.9 and whole.problems() == [] and whole.documents > 5
    cut = source_of(task, **files, task_arguments={"one_sentence_a_line": True})
    (problem,) = cut.text_problems(spec)
    assert problem.startswith(f"{task}: only ") and "arguments one_sentence_a_line and lines_per_document" in problem


@pytest.mark.full
def test_inspect_reports_lost_text_and_constant_labels(files):
    source = source_of("text_files_sentence_pairs", **files, task_arguments={"one_sentence_a_line": True})
    found = inspect_task.inspect(source, sample=40)
    assert found.kept["text_files_sentence_pairs"] < 0.3
    assert any("documents reach a row" in problem for problem in found.problems)
    assert any("labels 'next_sentence_label' in" in problem for problem in found.problems)


def test_text_of_every_feature_counts(files):
    """Span corruption divides the text over inputs and targets, and an example shows all of it."""
    files = files | {"vocabulary_path": None}
    lengths = {"inputs": 128, "targets": 36}
    (kept,) = lost_text.measure(source_of("text_files_span_corruption", lengths, **files), specs.ENCODER_DECODER)
    assert kept.fraction >= 0.99 and kept.describe().startswith("text_files_span_corruption: 100% of the ")
    (short,) = lost_text.measure(
        source_of("text_files_long_documents", {"inputs": 64, "targets": 12}, **files), specs.MASKED_LM
    )
    assert short.fraction > 0.5
