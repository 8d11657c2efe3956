"""Corpora of text files and JSON lines: documents, splits, encodings, and the task that reads them."""

import gzip
import json

import pytest

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.corpora import characters, matching_files, text_files
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import ENCODER_DECODER
from t5x_like.errors import UserError


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\nthree\nfour\nfive")
    (tmp_path / "b.txt").write_bytes(b"\n \nlast\n")
    records = [{"text": "first\nrecord", "title": "x"}, {"text": ""}, {"text": "zweiter Eintrag, ümlaut"}]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n\n")
    with gzip.open(tmp_path / "d.jsonl.gz", "wt") as file:
        file.write(json.dumps({"text": "compressed"}))
    return tmp_path


def source_of(**values):
    return text_files.source(text_files.FILES_ARGUMENTS | {"validation_fraction": 0.0} | values)


def documents_of(split="train", **values):
    return [row["text"].decode() for row in source_of(**values).get_dataset(split, shuffle=False).as_numpy_iterator()]


def test_text_file_is_split_into_documents_of_lines(directory):
    found = documents_of(pattern=f"{directory}/*.txt", lines_per_document=2)
    assert found == ["one\ntwo\n", "three\nfour\n", "five", "last\n"]


def test_json_lines_are_documents(directory):
    pattern = f"{directory}/*.jsonl*"
    assert documents_of(pattern=pattern) == ["first\nrecord", "zweiter Eintrag, ümlaut", "compressed"]
    assert documents_of(pattern=f"{directory}/c.jsonl", text_column="title", on_bad_record="skip") == ["x"]


def test_validation_files_are_not_trained_on(directory):
    given = {"pattern": f"{directory}/*.txt", "validation_pattern": f"{directory}/a.txt"}
    assert documents_of("validation", **given) == ["one\ntwo\nthree\nfour\nfive"]
    assert documents_of(**given) == ["\n \nlast\n"]
    assert "train 1 file, 0.00 MB, hash" in source_of(**given).describe()
    same = {"pattern": f"{directory}/a.txt", "validation_pattern": f"{directory}/a.*"}
    assert documents_of("validation", **same) == ["one\ntwo\nthree\nfour\nfive"]
    with pytest.raises(UserError, match="VALIDATION_FILES=.*/a.* has all files of DATA_FILES=.*/a.txt"):
        documents_of(**same)


def test_a_fraction_of_the_documents_is_held_out(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {number}\n" for number in range(1000)))
    given = {"pattern": f"{tmp_path}/a.txt", "lines_per_document": 1, "validation_fraction": 0.1}
    train, validation = documents_of(**given), documents_of("validation", **given)
    assert 70 < len(validation) < 130 and len(set(train) | set(validation)) == len(train) + len(validation) == 1000
    assert len(documents_of(**given | {"validation_fraction": 0})) == 1000
    with pytest.raises(UserError, match="validation_fraction=0: no document is held out to evaluate"):
        documents_of("validation", **given | {"validation_fraction": 0})


def test_error_of_a_small_corpus_names_the_fraction(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    source = SeqIOSource(
        mixture_or_task_name="text_files_span_corruption",
        task_feature_lengths={"inputs": 16, "targets": 8},
        batch_size=1,
        split="validation",
        data_files=f"{tmp_path}/a.txt",
    )
    with pytest.raises(UserError, match=r"'validation' has no examples.*validation_fraction=0.02: .*VALIDATION_FILES"):
        source.check(ENCODER_DECODER)


def test_long_documents_are_split_between_lines_words_or_characters(tmp_path):
    (tmp_path / "lines.txt").write_text("a line of text\n" * 8)
    (tmp_path / "words.txt").write_text("word " * 20)
    (tmp_path / "none.txt").write_text("ä" * 40)
    for name, ends in (("lines", "\n"), ("words", " "), ("none", "ä")):
        pieces = documents_of(pattern=f"{tmp_path}/{name}.txt", max_document_bytes=32)
        assert "".join(pieces) == (tmp_path / f"{name}.txt").read_text()
        assert len(pieces) > 1 and all(len(piece.encode()) <= 32 and piece.endswith(ends) for piece in pieces)


def test_unmatched_pattern_and_missing_files_raise(directory):
    with pytest.raises(UserError, match="no file matches .*nothing"):
        documents_of(pattern=f"{directory}/nothing-*.txt")
    with pytest.raises(
        UserError, match=r"x\.csv: the format of the file is not known\. Give .*; text: \.txt; JSON lines: "
    ):
        (directory / "x.csv").write_text("a,b\n")
        documents_of(pattern=f"{directory}/x.csv")
    with pytest.raises(UserError, match=r"reads files, but none are given\. Give --gin\.DATA_FILES="):
        documents_of(pattern="")
    with pytest.raises(UserError, match="ON_BAD_RECORD='ignore' is neither 'error' nor 'skip'"):
        documents_of(pattern=f"{directory}/a.txt", on_bad_record="ignore")


def test_task_uses_its_arguments(directory):
    settings = {"task_feature_lengths": {"inputs": 16, "targets": 8}, "batch_size": 1, "num_epochs": 1}
    source = SeqIOSource(
        mixture_or_task_name=text_files.TASK,
        data_files=f"{directory}/a.txt",
        task_arguments={"validation_fraction": 0.0},
        **settings,
    )
    batch = next(source.host_iterator(ENCODER_DECODER))
    shown = source.vocabularies()["inputs"].decode(batch["encoder_input_tokens"][0].tolist())
    assert shown.startswith("one") and "<extra_id_0>" in shown
    assert "train 1 file" in source.describe()[1]
    other = SeqIOSource(mixture_or_task_name=text_files.TASK, data_files=f"{directory}/*.md", **settings)
    with pytest.raises(UserError, match="no file matches"):
        other.host_iterator(ENCODER_DECODER)
    without = SeqIOSource(mixture_or_task_name="python_docs_span_corruption", data_files="x.txt", **settings)
    with pytest.raises(UserError, match=r"DATA_FILES='x.txt': python_docs_span_corruption does not read files"):
        without.describe()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_utf_16_raises(tmp_path, encoding, name):
    (tmp_path / name).write_bytes(("\ufeff" * (encoding == "utf-16-be") + '{"text": "words"}\n').encode(encoding))
    with pytest.raises(UserError, match=f"{name}: the text is UTF-16. Convert it to UTF-8"):
        list(text_files.documents(matching_files.files(str(tmp_path / name))))


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_endings_and_byte_order_marks_are_normalized(tmp_path, end):
    mark = b"\xef\xbb\xbf"
    (tmp_path / "a.txt").write_bytes(mark + f"one{end}ümlaut{end}three".encode())
    assert documents_of(pattern=f"{tmp_path}/a.txt", lines_per_document=2) == ["one\nümlaut\n", "three"]
    lines = [json.dumps({"text": text}) for text in (f"\ufeffone{end}two", "three")]
    (tmp_path / "b.jsonl").write_bytes(mark + "\r\n".join(lines).encode())
    assert documents_of(pattern=f"{tmp_path}/b.jsonl") == ["one\ntwo", "three"]
    (tmp_path / "c.txt").write_bytes(mark + f"ab{end}cd".encode())
    assert "".join(documents_of_characters(tmp_path / "c.txt")) == "ab\ncd"


def documents_of_characters(path):
    return [document.decode() for split in characters.read(str(path), 0.5).splits.values() for document in split]


def test_file_without_line_breaks_is_split_quickly(tmp_path):
    (tmp_path / "giant.txt").write_text("word " * 2_000_000)
    pieces = list(text_files.documents(matching_files.files(f"{tmp_path}/giant.txt")))
    assert max(map(len, pieces)) <= text_files.MAX_DOCUMENT_BYTES
    assert b"".join(pieces) == b"word " * 2_000_000
