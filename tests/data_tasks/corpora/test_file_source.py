"""The SeqIO source of files: order, shuffling, shards, exact positions, places of documents, and errors in a run."""

import collections
import json

import fsspec
import pytest
import seqio
import tensorflow as tf

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.corpora import file_source, text_files
from data_tasks.corpora.documents import Corpus, DocumentSource
from t5x_like.data import endless
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import ENCODER_DECODER
from t5x_like.errors import UserError

FILES, RECORDS = 5, 40


@pytest.fixture
def pattern(tmp_path):
    for file in range(FILES):
        lines = [json.dumps({"text": f"file {file} record {number}"}) for number in range(RECORDS)]
        (tmp_path / f"{file}.jsonl").write_text("\n".join(lines))
    return f"{tmp_path}/*.jsonl"


def source_of(pattern, **values):
    return text_files.source(text_files.FILES_ARGUMENTS | {"pattern": pattern, "validation_fraction": 0.0} | values)


def texts_of(ds):
    return [row["text"].decode() for row in ds.as_numpy_iterator()]


IN_ORDER = [f"file {file} record {number}" for file in range(FILES) for number in range(RECORDS)]


def test_documents_have_an_order_and_places(pattern, tmp_path):
    ds = source_of(pattern).get_dataset(shuffle=False, places=True)
    assert texts_of(ds) == IN_ORDER
    places = [(row["file"].decode(), int(row["record"])) for row in ds.as_numpy_iterator()]
    assert places == [(f"{tmp_path}/{file}.jsonl", number) for file in range(FILES) for number in range(RECORDS)]


@pytest.mark.parametrize("shards", [2, 5, 12])
def test_shards_partition_the_documents(pattern, shards):
    source = source_of(pattern)
    counts = collections.Counter()
    for index in range(shards):
        counts.update(texts_of(source.get_dataset(shuffle=False, shard_info=seqio.ShardInfo(index, shards))))
    assert counts == collections.Counter(IN_ORDER)


def test_each_epoch_has_an_order_of_its_own(pattern):
    ds = source_of(pattern).get_dataset(shuffle=True, seed=1)
    first, second = texts_of(ds), texts_of(ds)
    assert sorted(first) == sorted(second) == sorted(IN_ORDER)
    assert first != second and len({text.partition(" record")[0] for text in first[:20]}) == FILES
    again = source_of(pattern).get_dataset(shuffle=True, seed=1)
    assert texts_of(again) == first != texts_of(source_of(pattern).get_dataset(shuffle=True, seed=2))


def test_position_is_restored_exactly(pattern, tmp_path, monkeypatch):
    monkeypatch.setattr(file_source, "_SHUFFLED_BYTES", 500)  # several blocks per file

    check_position(lambda: source_of(pattern), tmp_path)


def test_position_of_documents_in_memory_is_restored_exactly(tmp_path):
    corpus = Corpus("a test", {"train": [text.encode() for text in IN_ORDER]}, "", {})
    check_position(lambda: DocumentSource(lambda: corpus), tmp_path)


def check_position(make_source, tmp_path):
    """Saves the position after 290 of 200 documents, when a preprocessor has read ahead to the end of the epoch."""

    def iterator():
        with endless.sources(True):
            ds = make_source().get_dataset(shuffle=True, seed=1)
        ahead = ds.batch(32).map(lambda rows: tf.strings.upper(rows["text"]), num_parallel_calls=100)
        return iter(ahead.unbatch().repeat())

    whole = iterator()
    for _ in range(290):
        next(whole)
    written = tf.train.Checkpoint(iterator=whole).write(str(tmp_path / "position"))
    restored = iterator()
    tf.train.Checkpoint(iterator=restored).read(written).assert_consumed()
    rest = [next(whole).numpy() for _ in range(500)]
    assert [next(restored).numpy() for _ in range(500)] == rest


def test_files_of_a_bucket_are_read():
    store = fsspec.filesystem("memory")
    store.pipe("/corpus/a.jsonl", b'{"text": "in a bucket"}\n')
    source = source_of("memory://corpus/*.jsonl")
    rows = list(source.get_dataset(shuffle=False, places=True).as_numpy_iterator())
    assert rows == [{"text": b"in a bucket", "file": b"memory:///corpus/a.jsonl", "record": 0}]
    assert "hash of names and sizes" in source.describe()
    with pytest.raises(UserError, match=r"nosuch://x/\*\.txt cannot be opened: Protocol not known: nosuch"):
        source_of("nosuch://x/*.txt").describe()


def live(pattern, **attributes):
    return SeqIOSource(
        mixture_or_task_name=text_files.TASK,
        task_feature_lengths={"inputs": 16, "targets": 8},
        batch_size=4,
        data_files=pattern,
        **attributes,
    )


@pytest.mark.full
def test_bad_record_ends_a_run_with_its_place_or_is_skipped(pattern, tmp_path):
    with open(tmp_path / "3.jsonl", "a") as file:
        file.write('\n{"text": "b\0d"}\n')
    message = r"3\.jsonl:41: the line is not JSON: Invalid control character.* ON_BAD_RECORD=skip skips"
    with pytest.raises(UserError, match=message):
        for _ in live(pattern, num_epochs=1).host_iterator(ENCODER_DECODER):
            pass
    source = live(pattern, num_epochs=1, on_bad_record="skip")
    iterator = source.host_iterator(ENCODER_DECODER)
    assert len(list(iterator)) > 5
    assert iterator.metrics(0) == {"bad_records": 1}


@pytest.mark.full
def test_error_of_a_preprocessor_names_the_record(pattern, tmp_path):
    """As a user's task finds out which record its preprocessor fails on."""

    @seqio.map_over_dataset
    def fail(example):
        tf.debugging.assert_none_equal(example["text"], "file 2 record 7")
        return {"targets": tf.strings.length(example["text"])[None]}

    task = "test_error_of_a_preprocessor"
    vocabulary = seqio.PassThroughVocabulary(1000)
    features = {"targets": seqio.Feature(vocabulary, add_eos=False)}
    seqio.TaskRegistry.add(task, source=source_of(pattern), preprocessors=[fail], output_features=features)
    try:
        source = SeqIOSource(mixture_or_task_name=task, task_feature_lengths={"targets": 4}, batch_size=1)
        with pytest.raises(UserError, match=rf"example 88 \({tmp_path}/2\.jsonl:8\): preprocessor 'fail'"):
            list(source.examples(1000))
    finally:
        seqio.TaskRegistry.remove(task)
