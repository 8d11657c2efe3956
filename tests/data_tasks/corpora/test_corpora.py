"""Tests of the shipped corpora, their vocabularies and tasks."""

import concurrent.futures
import functools
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import seqio
import tensorflow as tf

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.corpora import c4, documents, python_docs
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import ENCODER_DECODER
from t5x_like.errors import UserError
from t5x_like.vocabularies import shipped

ROOT = Path(__file__).resolve().parents[3]


# ---- python_docs -----------------------------------------------------------------------------------------------------


def test_python_docs_size_and_splits():
    corpus = python_docs.read()
    train, validation = (sum(map(len, corpus.splits[split])) for split in ("train", "validation"))
    assert 1.8e6 < train + validation < 2.8e6
    assert 0.02 < validation / (train + validation) < 0.09
    assert "CPython" in corpus.describe() and corpus.fingerprint in corpus.describe()


def test_python_docs_is_deterministic():
    first = python_docs.read()
    again = python_docs.read.__wrapped__()
    assert first.splits == again.splits and first.fingerprint == again.fingerprint


def test_concurrent_readers_share_one_read():
    corpus = documents.Corpus("toy", {"train": [b"a"], "validation": [b"b"]}, "here", {})
    reads = []

    @functools.cache
    def read():
        reads.append(1)
        time.sleep(0.05)
        return corpus

    sources = [documents.DocumentSource(read) for _ in range(2)]
    with concurrent.futures.ThreadPoolExecutor() as threads:
        counts = list(threads.map(lambda source: source.num_input_examples("train"), 2 * sources))
    assert counts == [1] * 4 and len(reads) == 1


def test_validation_paragraphs_are_not_in_training():
    corpus = python_docs.read()
    seen = {
        paragraph
        for document in corpus.splits["train"]
        for paragraph in document.split(b"\n\n")
        if len(paragraph) > python_docs.REPEATED_PARAGRAPH_CHARS * 2
    }
    held_out = [paragraph for document in corpus.splits["validation"] for paragraph in document.split(b"\n\n")]
    assert len(held_out) > 100
    assert not seen & set(held_out)


def test_module_list_has_no_tests_and_no_installed_packages():
    paths = python_docs.module_paths()
    assert len(paths) > 300 and paths == sorted(set(paths))
    excluded = {"test", "tests", "idlelib", "lib2to3", "distutils", "site-packages"}
    assert not [path for path in paths if excluded & set(path.split("/")) or not path.endswith(".py")]


def test_modules_are_parsed_and_not_imported(tmp_path, monkeypatch):
    (tmp_path / "one.py").write_text(
        '"""What the module is about, in a sentence that is long enough to be kept."""\n'
        "raise RuntimeError('imported')\n"
        "class A(Base):\n"
        '    """A class that is described in a sentence long enough to be kept."""\n'
        "    def method(self, x, *, y=1):\n"
        '        """A method, described at some length so that it stays in the corpus."""\n'
        "    def undocumented(self): pass\n"
        "def undocumented(): pass\n"
    )
    monkeypatch.setattr(python_docs, "module_paths", lambda: ["gone.py", "one.py"])
    monkeypatch.setattr(python_docs, "_topics", lambda: iter(()))
    corpus = python_docs.read.__wrapped__(str(tmp_path))
    texts = sorted(text.decode() for split in corpus.splits.values() for text in split)
    assert texts == [
        "module one\n\nWhat the module is about, in a sentence that is long enough to be kept.",
        "module one\n\nclass A(Base)\n\n    A class that is described in a sentence long enough to be kept.\n\n"
        "    method(self, x, *, y=1)\n\n        A method, described at some length so that it stays in the corpus.",
    ]
    assert corpus.skipped["listed modules missing in this version"] == 1


def test_missing_standard_library_raises(tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path} has only 0 of .* files. Install the full Python"):
        python_docs.read(str(tmp_path))


# ---- splits and shuffling --------------------------------------------------------------------------------------------


def test_adding_documents_does_not_change_splits():
    texts = [f"document {number}".encode() for number in range(2000)]
    small, large = documents.split_by_hash(texts[:500], 0.1), documents.split_by_hash(texts, 0.1)
    assert set(small["validation"]) == set(large["validation"]) & set(texts[:500])
    assert len(large["validation"]) == pytest.approx(200, abs=40)
    assert documents.split_by_hash(texts, 0)["validation"] == []


def source_of(count):
    splits = {"train": [str(number).encode() for number in range(count)], "validation": []}
    corpus = documents.Corpus(name="numbers", splits=splits, origin="a test", skipped={})
    return documents.DocumentSource(lambda: corpus)


def read(ds):
    return [int(example["text"]) for example in ds.as_numpy_iterator()]


def test_every_epoch_is_another_permutation():
    order = read(source_of(100).get_dataset("train", shuffle=True, seed=3).repeat(3))
    epochs = [order[start : start + 100] for start in (0, 100, 200)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert order == read(source_of(100).get_dataset("train", shuffle=True, seed=3).repeat(3))
    assert epochs[0] != read(source_of(100).get_dataset("train", shuffle=True, seed=4))
    assert read(source_of(100).get_dataset("train", shuffle=False)) == list(range(100))
    assert read(source_of(1).get_dataset("train", shuffle=True, seed=0)) == [0]


def test_shards_partition_documents():
    shards = [
        read(source_of(10).get_dataset("train", shuffle=True, seed=1, shard_info=seqio.ShardInfo(index, 3)))
        for index in range(3)
    ]
    assert sorted(sum(shards, [])) == list(range(10))
    assert [len(shard) for shard in shards] == [4, 3, 3]


def test_empty_split_raises():
    with pytest.raises(ValueError, match="split 'validation' is empty: numbers: documents 10 train, 0 validation"):
        source_of(10).get_dataset("validation")


# ---- vocabularies ----------------------------------------------------------------------------------------------------


def test_shipped_model_has_t5_special_ids():
    vocabulary = shipped.python_docs()
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)
    assert vocabulary.vocab_size == 1024
    assert vocabulary.decode([1023, 1022, 924]) == "<extra_id_0> <extra_id_1> <extra_id_99>"
    assert shipped.PYTHON_DOCS_MODEL.stat().st_size < 400_000


@pytest.mark.parametrize(
    "text",
    [
        "Thank you for inviting me to your party last week.",
        "def f(x):\n    if x:\n\n        return  x\n",
        "  indented\tand\ttabbed  \r\n",
        "zwölf Boxkämpfer, 日本語, 🙂, \x00",
        "",
    ],
)
def test_encoding_is_lossless(text):
    for vocabulary in (shipped.python_docs(), shipped.byte_level()):
        ids = vocabulary.encode(text)
        assert 2 not in ids
        assert vocabulary.decode(ids) == text
        assert vocabulary.encode_tf(tf.constant(text)).numpy().tolist() == ids


def test_training_script_makes_compatible_model(tmp_path):
    from data_tasks.vocabulary_training import train

    texts = [document.decode() for document in python_docs.read().splits["validation"]]
    path = tmp_path / "small.model"
    path.write_bytes(train.train(texts, pieces=600))
    vocabulary = seqio.SentencePieceVocabulary(str(path), extra_ids=100)
    assert vocabulary.vocab_size == 700
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)
    text = "    a line\n\n\tand ünïcode ∀"
    assert vocabulary.decode(vocabulary.encode(text)) == text


# ---- C4 --------------------------------------------------------------------------------------------------------------


def c4_source(**task_arguments):
    return SeqIOSource(
        mixture_or_task_name=c4.TASK,
        task_feature_lengths={"inputs": 64, "targets": 20},
        batch_size=2,
        task_arguments=task_arguments,
    )


@pytest.mark.full
def test_c4_from_tfds_with_public_vocabulary(test_data):
    source = c4_source(
        tfds_name="c4/en:2.3.0",
        data_dir=str(test_data / "text/tfds_tfrecords"),
        vocabulary_path=str(test_data / "vocab/t5_32k/cc_all.32000.sentencepiece.model"),
    )
    vocabulary = source.vocabularies()["targets"]
    assert vocabulary.vocab_size == 32100
    iterator = source.host_iterator(ENCODER_DECODER)
    first = next(iterator)
    state = iterator.state()
    expected = next(iterator)
    assert first["encoder_input_tokens"].shape == (2, 64)
    sentinels = first["decoder_target_tokens"][first["decoder_target_tokens"] >= 32000]
    assert set(sentinels) >= {32099, 32098}
    iterator.restore(state)
    np.testing.assert_array_equal(next(iterator)["encoder_input_tokens"], expected["encoder_input_tokens"])
    assert "c4/en:2.3.0: documents 10 train, 10 validation" in source.describe()[1]


@pytest.mark.full
@pytest.mark.parametrize(("recipe", "has_sentinels"), [(c4.RECIPE, True), ("prefix_lm", False)])
def test_unsupervised_c4_uses_the_named_recipe(test_data, recipe, has_sentinels):
    source = SeqIOSource(
        mixture_or_task_name="c4_v020_unsupervised",
        task_feature_lengths={"inputs": 64, "targets": 64},
        batch_size=2,
        vocabulary_path=str(test_data / "vocab/t5_32k/cc_all.32000.sentencepiece.model"),
        task_arguments={
            "tfds_name": "c4/en:2.3.0",
            "data_dir": str(test_data / "text/tfds_tfrecords"),
            "recipe": recipe,
        },
    )
    batch = next(source.host_iterator(ENCODER_DECODER))
    assert (batch["decoder_target_tokens"] >= 32000).any() == has_sentinels


@pytest.mark.parametrize(
    ("recipe", "message"), [("lm", "recipe='lm' makes no inputs"), ("spam", "'spam' is not a denoising recipe")]
)
def test_other_recipes_raise(recipe, message):
    task = seqio.TaskRegistry.get("c4_v020_unsupervised")
    *_, preprocessor = task.preprocessors
    with pytest.raises(UserError, match=message):
        preprocessor(None, {"inputs": 8, "targets": 8}, task.output_features, arguments={"recipe": recipe})


def test_c4_missing_files_raise_without_download(tmp_path):
    path = str(shipped.PYTHON_DOCS_MODEL)
    with pytest.raises(UserError, match="c4/en:3.1.0 is not prepared in the TFDS directory .*data_dir"):
        c4_source(data_dir=str(tmp_path), vocabulary_path=path).host_iterator(ENCODER_DECODER)
    source = c4_source(vocabulary_path=str(tmp_path / "none.model"))
    with pytest.raises(UserError, match="VOCABULARY_PATH='.*none.model': not a readable SentencePiece model.*TASK_ARG"):
        source.check_vocabulary(32128)


@pytest.mark.full
def test_importing_data_tasks_reads_no_files():
    code = (
        "import sys, fsspec, jaxtyping, sentencepiece, seqio, tensorflow\n"
        "opened = []\n"
        "events = ('open', 'socket.connect')\n"
        "sys.addaudithook(lambda event, args: event in events and opened.append(str(args[0])))\n"
        "import data_tasks.shipped_tasks\n"
        "print([path for path in opened if not path.endswith(('.py', '.pyc')) and '__pycache__' not in path])\n"
        "print(sorted(name for name in seqio.TaskRegistry.names()))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    opened, names = result.stdout.splitlines()[-2:]
    assert opened == "[]"
    for name in (
        "python_docs_span_corruption",
        "python_docs_span_corruption_bytes",
        "text_files_span_corruption",
        c4.TASK,
    ):
        assert repr(name) in names
