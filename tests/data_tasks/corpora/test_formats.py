"""Formats of files: the same documents, from any position, and an error for everything that cannot be read."""

import gzip
import json
import re
import sys

import fsspec
import pytest
import tensorflow as tf
import zstandard
from array_record.python.array_record_module import ArrayRecordWriter
from file_formats import PACKAGES, WRITERS, table

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.corpora import documents_of_files, matching_files, text_files, text_lines
from data_tasks.corpora.formats import format_of
from data_tasks.corpora.formats.base import Cursor, OtherRecord, Reading
from t5x_like.data.skipped_records import SkippedRecords
from t5x_like.errors import UserError

TEXTS = [f"document {number} é" for number in range(20)]


@pytest.fixture(params=WRITERS)
def name(request):
    for part, package in PACKAGES.items():
        if part in request.param:
            pytest.importorskip(package)
    return request.param


def write(path, texts=TEXTS):
    WRITERS[path.name](path, texts)
    return path


def read(path, on_bad_record="error", **reading):
    """Returns the documents of a pattern, and the counts of what was skipped."""
    files = matching_files.files(str(path))
    rules = documents_of_files.Rules(Reading(**reading), on_bad_record=on_bad_record)
    skipped = SkippedRecords()
    reader = documents_of_files.BlockReader(files, rules, skipped, block_bytes=100)
    parts = map(documents_of_files.Part, range(len(files)))
    return [document.text.decode() for part in parts for document in documents_of_files.iterate(reader, part)], skipped


def test_each_position_of_a_file_can_be_read_again(tmp_path, name):
    path = write(tmp_path / name)
    known, reading = format_of(str(path)), Reading(lines_per_document=1)
    file = matching_files.files(str(path))[0]

    def records(start):
        return list(known.records(fsspec.core.OpenFile(file.fs, file.path, "rb"), start, reading))

    whole = records(Cursor())
    if "warc" in name:  # the description of the archive
        with pytest.raises(OtherRecord):
            known.text(whole.pop(0).raw, reading)
    assert [known.text(record.raw, reading).decode().strip() for record in whole] == TEXTS
    for number, record in enumerate(whole, 1):
        assert records(record.end) == whole[number:]


def test_truncated_file_is_named_and_skipped_on_request(tmp_path, name):
    path = write(tmp_path / name, [text * 20 for text in TEXTS])
    if name == "a.txt":
        pytest.skip("a text file may end anywhere")
    data = path.read_bytes()
    # The end of a text format is damaged by a cut within its last record.
    path.write_bytes(data[: len(data) - 40] if name != "a.jsonl" else data[:-10])
    place = r"(:\d+: the |( |: the file is )?.*(after|at) (row|record|byte) \d)"
    with pytest.raises(UserError, match=rf"/{re.escape(name)}{place}.*ON_BAD_RECORD=skip skips and counts"):
        read(path)
    found, skipped = read(path, "skip")
    assert found == [text * 20 for text in TEXTS][: len(found)] and sum(skipped.bad.values()) == 1


BAD = {
    "not JSON": ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl:2: the line is not JSON: "),
    "no field": (
        "a.jsonl",
        b'{"body": "a"}\n',
        r"a\.jsonl:1: the line has no field 'text' \(TEXT_COLUMN\), only 'body'\.",
    ),
    "no object": ("a.jsonl", b"[1]\n", r"a\.jsonl:1: the line has no field 'text', but is a JSON list\."),
    "a number": ("a.jsonl", b'{"text": 3}\n', r"a\.jsonl:1: the field 'text' is 3, not a string\."),
    "not UTF-8": ("a.txt", b"fine\nb\xe4d\n", r"a\.txt:2: the text is not valid UTF-8 \(byte 1 of the text is 0xe4\)"),
    "not UTF-8 in JSON": ("a.jsonl", b'{"text": "b\xe4d"}\n', r"a\.jsonl:1: the line is not valid UTF-8 \(byte 11 "),
    "lone surrogate": ("a.jsonl", b'{"text": "\\ud800"}\n', r"a\.jsonl:1: the text is not valid UTF-8"),
    "NUL": ("a.txt", b"fine\nb\0d\n", r"a\.txt:2: the text has a NUL character \(byte 1 of the text\)"),
    "long line": ("a.txt", b"fine\n" + b"a" * 200 + b"\nfine", r"a\.txt:2: the document is longer than 0 MiB"),
    "long JSON": (
        "a.jsonl",
        b'{"text": "%s"}\n{"text": "fine"}' % (b"a" * 200),
        r"a\.jsonl:1: the line is longer than",
    ),
    "not an example": ("a.tfrecord", None, r"a\.tfrecord, record 1 \(from 0\): the record is not a tf\.train\.Example"),
    "garbage after gzip": (
        "a.txt.gz",
        gzip.compress(b"fine\n") + b"garbage",
        r"a\.txt\.gz:2: the compressed file is dam",
    ),
    "no parquet": ("a.parquet", b"", r"a\.parquet: the file is damaged or not complete after row 0"),
}


@pytest.mark.parametrize("problem", BAD)
def test_bad_records_are_named_and_skipped_on_request(tmp_path, problem, monkeypatch):
    name, content, message = BAD[problem]
    if name == "a.parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(text_lines, "MAX_LINE_BYTES", 100)
    path = tmp_path / name
    if content is None:
        good = tf.train.Example()
        good.features.feature["text"].bytes_list.value.append(b"fine")
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in (good.SerializeToString(), b"\xff\xff", good.SerializeToString()):
                writer.write(record)
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(path, lines_per_document=1)
    found, skipped = read(path, "skip", lines_per_document=1)
    assert {text.strip() for text in found} <= {"fine", "a"} and sum(skipped.bad.values()) == 1


@pytest.mark.parametrize("name", ["a.tfrecord-00000-of-00001", "a.warc.wet.gz"])
def test_long_records_of_binary_formats_are_named_and_skipped_on_request(tmp_path, name, monkeypatch):
    if "warc" in name:
        pytest.importorskip("warcio")
    monkeypatch.setattr(text_lines, "MAX_LINE_BYTES", 100)
    path = write(tmp_path / name, ["fine", "a" * 200, "fine"])
    number = 2 if "warc" in name else 1  # record 0 of an archive describes it
    with pytest.raises(UserError, match=rf"/{name}, record {number} \(from 0\): the record is longer than 0 MiB"):
        read(path)
    found, skipped = read(path, "skip")
    assert found == ["fine", "fine"] and skipped.bad == {"bad_records": 1}


def test_line_of_200_megabytes_is_named_and_skipped_on_request(tmp_path):
    long = json.dumps({"text": "a" * 200_000_000})
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(f'{{"text": "1"}}\n{long}\n{{"text": "3"}}\n'.encode(), 1))
    with pytest.raises(UserError, match=r"/a\.jsonl\.gz:2: the line is longer than 128 MiB\..* skips and counts"):
        read(tmp_path / "a.jsonl.gz")
    found, skipped = read(tmp_path / "a.jsonl.gz", "skip")
    assert found == ["1", "3"] and skipped.bad == {"bad_records": 1}


def test_damage_in_the_middle_of_an_array_record_file_is_placed(tmp_path):
    path = tmp_path / "a.array_record"
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for text in TEXTS:
        example = tf.train.Example()
        example.features.feature["text"].bytes_list.value.append(text.encode())
        writer.write(example.SerializeToString())
    writer.close()
    data = path.read_bytes()
    path.write_bytes(data.replace(TEXTS[11].encode(), TEXTS[12].encode()))
    with pytest.raises(UserError, match=r"/a\.array_record, record 11 \(from 0\): it is damaged \("):
        read(path)
    found, skipped = read(path, "skip")
    assert found == [*TEXTS[:11], *TEXTS[12:]] and skipped.bad == {"bad_records": 1}


def test_records_after_a_damaged_tfrecord_are_read(tmp_path):
    path = write(tmp_path / "a.tfrecord-00000-of-00001", ["one", "two", "six"])
    path.write_bytes(path.read_bytes().replace(b"two", b"twi"))
    with pytest.raises(UserError, match=r"record 1 \(from 0\): it is damaged \(its checksum does not match"):
        read(path)
    found, skipped = read(path, "skip")
    assert found == ["one", "six"] and skipped.bad == {"bad_records": 1}


def test_row_groups_after_a_damaged_one_are_read(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, texts = tmp_path / "a.parquet", [f"text number {number:02d}" for number in range(30)]
    parquet.write_table(pa.table({"text": texts}), path, row_group_size=10, compression="gzip", use_dictionary=False)
    middle = parquet.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    end = middle.data_page_offset + middle.total_compressed_size
    data[end - 60 : end] = bytes(60)
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"/a\.parquet, row 10 \(from 0\): it and the next 9 are damaged \("):
        read(path)
    found, skipped = read(path, "skip")
    assert found == [*texts[:10], *texts[20:]] and skipped.bad == {"bad_records": 1}


def test_skipped_records_are_counted_once_and_logged(tmp_path, caplog):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"text": "fine"}\n' + "bad\n" * 5 + '{"text": ""}\n')
    (tmp_path / "c.jsonl").write_text("")
    found, skipped = read(tmp_path / "*.jsonl", "skip")
    assert found == ["fine", "fine"] and skipped.bad == {"bad_records": 10}
    assert "a.jsonl:2: the line is not JSON" in caplog.text and "a.jsonl:6" not in caplog.text
    assert (
        "a.jsonl: skipped: 5 bad records, 1 empty record" in caplog.text
        and "c.jsonl: the file has no records" in caplog.text
    )


def test_columns_of_tables_are_checked(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(table(["first", None, "third"]), tmp_path / "a.parquet")
    pq.write_table(table(["fourth"]).rename_columns(["id", "body"]), tmp_path / "b.parquet")
    pq.write_table(table(["fifth"], "dictionary"), tmp_path / "c.parquet")
    with pytest.raises(UserError, match=r"a\.parquet, row 1 \(from 0\): the column 'text' is null"):
        read(tmp_path / "a.parquet")
    with pytest.raises(
        UserError, match=r"b\.parquet: column 'text' not found\. Its columns are 'id', 'body'\. Set TEXT_COL"
    ):
        read(tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: column 'id' is int64, not text"):
        read(tmp_path / "a.parquet", text_column="id")
    found, skipped = read(tmp_path / "*.parquet", "skip")
    assert found == ["first", "third", "fifth"] and sum(skipped.bad.values()) == 2


def test_fields_of_tables_are_text(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"text": [b"one"], "url": [b"http://a.example"], "timestamp": [3], "source": [None]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    reading, (file,) = Reading(fields=("url", "timestamp", "source")), matching_files.files(f"{tmp_path}/a.parquet")
    (record,) = format_of("a.parquet").records(file, Cursor(), reading)
    found = format_of("a.parquet").fields(record.raw, reading)
    assert found == {"url": "http://a.example", "timestamp": "3"}


def test_saved_data_set_is_read_from_its_directory(tmp_path):
    pytest.importorskip("pyarrow")
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        WRITERS["a.arrow"](tmp_path / split / "data-00000-of-00001.arrow", [f"of {split}"])
        files = [{"filename": "data-00000-of-00001.arrow"}]
        (tmp_path / split / "state.json").write_text(json.dumps({"_data_files": files}))
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    assert read(tmp_path / "train")[0] == ["of train"]
    with pytest.raises(
        UserError, match=r"has the splits train, test\..*DATA_FILES=\S+/train .*VALIDATION_FILES=\S+/test"
    ):
        read(tmp_path)
    (tmp_path / "dataset_dict.json").unlink()
    with pytest.raises(UserError, match=r"is a directory, but not of a saved data set: state\.json not found"):
        read(tmp_path)


@pytest.mark.parity
def test_data_set_that_datasets_saves_is_read(tmp_path):
    """The extra `lm-eval` installs the package `datasets`, which reading does not need."""
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"id": list(range(len(TEXTS))), "text": TEXTS})
    made.save_to_disk(str(tmp_path / "one"), num_shards=3)
    assert read(tmp_path / "one")[0] == TEXTS
    held_out = made.shuffle(seed=0).select(range(5))
    datasets.DatasetDict({"train": made, "test": held_out}).save_to_disk(str(tmp_path / "two"))
    assert read(tmp_path / "two" / "test")[0] == held_out["text"][:] != TEXTS[:5]


@pytest.mark.parametrize("name", ["a[1].txt", "what?.txt"])
def test_existing_path_is_not_a_pattern(tmp_path, name):
    (tmp_path / name).write_text("one")
    (tmp_path / "whats.txt").write_text("two")
    assert read(tmp_path / name)[0] == ["one"]


def test_links_are_followed(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("one")
    (tmp_path / "directory").symlink_to(tmp_path / "files")
    (tmp_path / "b.txt").symlink_to(tmp_path / "files" / "a.txt")
    assert read(tmp_path / "*")[0] == read(tmp_path / "directory" / "*")[0] == ["one"]
    (tmp_path / "c.txt").symlink_to(tmp_path / "nothing.txt")
    with pytest.raises(UserError, match=r"/c\.txt: a link to a file that does not exist"):
        read(tmp_path / "*")


def test_list_of_files_raises():
    with pytest.raises(UserError, match=r"^\['a.txt'\] is not a path"):
        matching_files.files(["a.txt"])


def test_zstd_with_a_long_window_is_read(tmp_path):
    """`zstd --long=31` makes such files of large dumps."""
    settings = zstandard.ZstdCompressionParameters(window_log=28)
    frame = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    (tmp_path / "a.txt.zst").write_bytes(frame.compress(b"one") + frame.flush())
    assert read(tmp_path / "a.txt.zst")[0] == ["one"]


@pytest.mark.parametrize("length", ["", "Content-Length: many\r\n"])
def test_archive_without_the_length_of_a_record_is_damaged(tmp_path, length):
    pytest.importorskip("warcio")
    headers = "WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\n"
    (tmp_path / "a.wet").write_text(f"{headers}Content-Length: 3\r\n\r\none\r\n\r\n{headers}{length}\r\ntwo\r\n\r\n")
    with pytest.raises(UserError, match=r"a.wet: the archive is damaged .*Content-Length \S+ of the record is not"):
        read(tmp_path / "a.wet")
    assert read(tmp_path / "a.wet", "skip")[0] == ["one"]


@pytest.mark.parametrize(("package", "name"), [("pyarrow", "a.parquet"), ("warcio", "a.warc.gz")])
def test_missing_package_is_named_with_its_command(tmp_path, package, name, monkeypatch):
    (tmp_path / name).write_bytes(b"")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        UserError, match=rf"needs {package}, which is not installed\. Run `pip install -e '\.\[corpora\]'"
    ):
        read(tmp_path / name)


def test_file_that_disappears_is_named(tmp_path):
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        write(tmp_path / name) if name in WRITERS else (tmp_path / name).write_text('{"text": "last"}\n')
    files = matching_files.files(f"{tmp_path}/*.jsonl")
    (tmp_path / "b.jsonl").unlink()
    with pytest.raises(UserError, match=r"b\.jsonl: the file does not exist any more"):
        list(text_files.documents(files))
    assert list(text_files.documents(files, on_bad_record="skip"))[-1] == b"last"


def test_format_is_known_by_the_end_of_the_name():
    for name, start in {
        "gs://bucket/c4-train.00000-of-01024.json.gz": "JSON lines",
        "c4-train.array_record-00001-of-00010": "ArrayRecord",
        "CC-MAIN-2024-00000.warc.wet.gz": "WARC",
    }.items():
        assert format_of(name).description.startswith(start)


def test_compressed_file_of_a_format_with_its_own_compression_raises():
    with pytest.raises(UserError, match=r"part.parquet.gz: .*is not read from compressed files. Decompress it"):
        format_of("part.parquet.gz")
