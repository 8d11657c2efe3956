"""Corpora of text files and JSON lines: documents, splits, encodings, and the task that reads them."""

import gzip
import json

import pytest

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.corpora import characters, text_files
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import ENCODER_DECODER
from t5x_like.errors import UserError


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\nthree\nfour\nfive")
    (tmp_path / "b.txt").write_bytes(b"bad \xff\xfe\n\n \nlast\n")
    records = [{"text": "first\nrecord", "title": "x"}, {"text": ""}, {"text": "zweiter Eintrag, ümlaut"}]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n\n")
    with gzip.open(tmp_path / "d.jsonl.gz", "wt") as file:
        file.write(json.dumps({"text": "compressed"}))
    return tmp_path


def documents_of(corpus):
    return [document.decode() for split in corpus.splits.values() for document in split]


def test_text_file_is_split_into_documents_of_lines(directory):
    corpus = text_files.read(pattern=f"{directory}/*.txt", lines_per_document=2, validation_fraction=0.0)
    assert documents_of(corpus) == ["one\ntwo\n", "three\nfour\n", "five", " \nlast\n"]
    assert corpus.skipped == {"not valid UTF-8": 1}
    assert "skipped: 1 not valid UTF-8" in corpus.describe()


def test_json_lines_are_documents(directory):
    corpus = text_files.read(pattern=f"{directory}/*.jsonl*", validation_fraction=0.0)
    assert documents_of(corpus) == ["first\nrecord", "zweiter Eintrag, ümlaut", "compressed"]
    titled = text_files.read(
        pattern=f"{directory}/c.jsonl", json_field="text", validation_pattern=f"{directory}/d.jsonl.gz"
    )
    assert titled.splits["validation"] == [b"compressed"]
    assert "2 files" in titled.describe()


def test_validation_files_are_not_trained_on(directory):
    corpus = text_files.read(pattern=f"{directory}/*.txt", validation_pattern=f"{directory}/a.txt")
    assert corpus.splits["validation"] == [b"one\ntwo\nthree\nfour\nfive"]
    assert corpus.splits["train"] == []  # b.txt is one document that is not valid UTF-8
    assert corpus.skipped == {"not valid UTF-8": 1}


def test_long_documents_are_split_between_lines_words_or_characters(tmp_path):
    (tmp_path / "lines.txt").write_text("a line of text\n" * 8)
    (tmp_path / "words.txt").write_text("word " * 20)
    (tmp_path / "none.txt").write_text("ä" * 40)
    for name, ends in (("lines", "\n"), ("words", " "), ("none", "ä")):
        corpus = text_files.read(pattern=f"{tmp_path}/{name}.txt", max_document_bytes=32, validation_fraction=0.0)
        pieces = documents_of(corpus)
        assert "".join(pieces) == (tmp_path / f"{name}.txt").read_text()
        assert len(pieces) > 1 and all(len(piece.encode()) <= 32 and piece.endswith(ends) for piece in pieces)
        assert list(corpus.skipped.values()) == [1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", '{"text": "a"}\n{"text": \n', "x.jsonl:2 is not JSON"),
        ("x.jsonl", '{"body": "a"}\n', r"x.jsonl:1 has no field 'text' .* only \['body'\]"),
        ("x.jsonl", "[1]\n", "x.jsonl:1 has no field 'text' .* only a list"),
        ("x.jsonl", '{"text": 3}\n', "x.jsonl:1: the field 'text' is 3, not a string"),
        ("x.csv", "a,b\n", "x.csv: only .txt and .jsonl files are supported"),
    ],
)
def test_invalid_files_raise_with_file_and_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        text_files.read(pattern=f"{tmp_path}/{name}")


def test_unmatched_pattern_and_large_corpus_raise(directory):
    with pytest.raises(UserError, match="no file matches .*nothing"):
        text_files.read(pattern=f"{directory}/nothing-*.txt")
    with pytest.raises(ValueError, match="more than max_corpus_bytes=10 bytes"):
        text_files.read(pattern=f"{directory}/*.txt", max_corpus_bytes=10)
    with pytest.raises(ValueError, match=r"TASK_ARGUMENTS has no 'pattern'.* Give --gin.TASK_ARGUMENTS="):
        text_files.read(pattern="")


def test_task_uses_its_arguments(directory):
    settings = {"task_feature_lengths": {"inputs": 16, "targets": 8}, "batch_size": 1, "num_epochs": 1}
    source = SeqIOSource(
        mixture_or_task_name=text_files.TASK,
        task_arguments={"pattern": f"{directory}/a.txt", "validation_fraction": 0.0},
        **settings,
    )
    batch = next(source.host_iterator(ENCODER_DECODER))
    shown = source.vocabularies()["inputs"].decode(batch["encoder_input_tokens"][0].tolist())
    assert shown.startswith("one") and "<extra_id_0>" in shown
    assert "documents 1 train, 0 validation" in source.describe()[1]
    other = SeqIOSource(
        mixture_or_task_name=text_files.TASK, task_arguments={"pattern": f"{directory}/*.md"}, **settings
    )
    with pytest.raises(UserError, match="no file matches"):
        other.host_iterator(ENCODER_DECODER)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_utf_16_raises(tmp_path, encoding, name):
    (tmp_path / name).write_bytes(("\ufeff" * (encoding == "utf-16-be") + '{"text": "words"}\n').encode(encoding))
    with pytest.raises(UserError, match=f"{name}: the text is UTF-16. Convert it to UTF-8"):
        text_files.read(pattern=str(tmp_path / name))


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_endings_and_byte_order_marks_are_normalized(tmp_path, end):
    mark = b"\xef\xbb\xbf"
    (tmp_path / "a.txt").write_bytes(mark + f"one{end}ümlaut{end}three".encode())
    read = {"lines_per_document": 2, "validation_fraction": 0.0}
    assert documents_of(text_files.read(pattern=f"{tmp_path}/a.txt", **read)) == ["one\nümlaut\n", "three"]
    lines = [json.dumps({"text": text}) for text in (f"\ufeffone{end}two", "three")]
    (tmp_path / "b.jsonl").write_bytes(mark + "\r\n".join(lines).encode())
    assert documents_of(text_files.read(pattern=f"{tmp_path}/b.jsonl", **read)) == ["one\ntwo", "three"]
    (tmp_path / "c.txt").write_bytes(mark + f"ab{end}cd".encode())
    assert "".join(documents_of(characters.read(str(tmp_path / "c.txt"), 0.5))) == "ab\ncd"


def test_file_without_line_breaks_is_split_quickly(tmp_path):
    (tmp_path / "giant.txt").write_text("word " * 2_000_000)
    corpus = text_files.read(pattern=f"{tmp_path}/giant.txt", validation_fraction=0.0)
    assert max(map(len, corpus.splits["train"])) <= text_files.MAX_DOCUMENT_BYTES
    assert b"".join(corpus.splits["train"]) == b"word " * 2_000_000
