"""What is known about the data of a run without reading it."""

import hashlib

import pytest
import seqio

from t5x_like.data import provenance
from t5x_like.data.cached import CachedMixture, CachedSource
from t5x_like.data.seqio_feed import SeqIOSource

LENGTHS = {"inputs": 4, "targets": 4}


def _read(split, shuffle_files):
    raise AssertionError("the data is read")


@pytest.fixture
def source_of():
    """Returns a function that registers a task and returns its source."""
    names = []

    def register(source):
        names.append(f"tests_provenance_{len(names)}")
        features = {name: seqio.Feature(seqio.ByteVocabulary()) for name in LENGTHS}
        seqio.TaskRegistry.add(names[-1], source=source, preprocessors=[], output_features=features)
        return SeqIOSource(mixture_or_task_name=names[-1], task_feature_lengths=LENGTHS, batch_size=2)

    yield register
    for name in names:
        seqio.TaskRegistry.remove(name)


def test_cache_has_fingerprint_and_rows(tmp_path, write_cache):
    for task in ("one", "two"):
        write_cache(tmp_path / task / "train", lengths=LENGTHS, shards=((0, 3), (1, 3)), task=task, examples_per_row=2)
    source = CachedSource(cache_dir=str(tmp_path / "one"), batch_size=2)
    known = {"rows": 6, "passes": 2, "examples": 6}
    assert source.provenance() == [
        {
            "task": "one",
            "split": "train",
            "cache": str(tmp_path / "one/train"),
            "fingerprint": source.manifest.fingerprint,
        }
        | known
    ]
    mixture = CachedMixture(cache_dir=[str(tmp_path / "one"), str(tmp_path / "two")], batch_size=2)
    assert [each["task"] for each in mixture.provenance()] == ["one", "two"]


def test_files_of_a_task_have_sizes_and_a_digest(tmp_path, source_of, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"{name}\n")
    source = source_of(seqio.TextLineDataSource({"train": str(tmp_path / "*.txt")}, num_input_examples={"train": 2}))
    (found,) = source.provenance()
    digest = hashlib.blake2b(b"a.txt 2\na\nb.txt 2\nb\n", digest_size=16).hexdigest()
    assert found == {
        "task": source.name,
        "split": "train",
        "examples": 2,
        "files": 2,
        "first_file": str(tmp_path / "a.txt"),
        "bytes": 4,
        "digest": digest,
        "digest_of": "names and contents",
    }
    monkeypatch.setattr(provenance, "_HASHED_BYTES", 3)
    (large,) = source.provenance()
    assert large["digest"] != digest and large["digest_of"] == "names and sizes"


def test_files_in_a_bucket_are_not_opened():
    found = provenance._of_files(["gs://bucket/b", "gs://bucket/a"])
    digest = hashlib.blake2b(b"gs://bucket/ags://bucket/b", digest_size=16).hexdigest()
    assert found == {"files": 2, "first_file": "gs://bucket/a", "digest": digest, "digest_of": "names"}


def test_source_that_describes_itself_is_not_read_again(source_of):
    class Described(seqio.FunctionDataSource):
        def describe(self):
            return "corpus, hash 12"

    described = source_of(Described(_read, splits=["train"], num_input_examples={"train": 3}))
    plain = source_of(seqio.FunctionDataSource(_read, splits=["train"]))
    assert described.provenance()[0] | {"task": ""} == {
        "task": "", "split": "train", "examples": 3, "source": "corpus, hash 12"
    }  # fmt: skip
    assert plain.provenance() == [{"task": plain.name, "split": "train"}]


def test_files_of_a_split_have_a_digest(tmp_path, monkeypatch):
    """Other files, another column, or other held-out documents are other data; other paths are not."""
    from data_tasks.corpora import matching_files, text_files

    def identities(name="a", **changes):
        values = text_files.FILES_ARGUMENTS | {"pattern": str(tmp_path / f"{name}.jsonl")} | changes
        source = text_files.source(values)
        return [
            provenance.identity({"source": source.describe(), **source.digest(split)})
            for split in ("train", "validation")
        ]

    for name, text in (("a", "x"), ("b", "y"), ("copy", "x")):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "{text}", "title": "t"}}\n' * 9)
    train, validation = identities()
    assert train != validation and identities("copy") == [train, validation]
    for changed in (identities("b"), identities(text_column="title"), identities(validation_fraction=0.5)):
        assert not {train, validation} & set(changed)
    with_files = identities(validation_pattern=str(tmp_path / "b.jsonl"))
    assert not {train, validation} & set(with_files)
    assert identities(validation_pattern=str(tmp_path / "copy.jsonl"))[0] == with_files[0]
    assert identities(validation_pattern=str(tmp_path / "copy.jsonl"))[1] != with_files[1]
    monkeypatch.setattr(matching_files, "_HASHED_BYTES", 3)
    assert identities()[0].endswith(" of names and sizes")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"fingerprint": "f", "source": "hash 0123456789"}, "f"),
        ({"source": "3 files, hash 0123456789, from x; valid 1 file, hash of names and sizes 9876543210"},
         "0123456789, 9876543210 of names and sizes"),
        ({"source": "a corpus"}, None),
        ({"name": "a source"}, None),
    ],
)  # fmt: skip
def test_identity_is_the_hash_that_is_known(entry, expected):
    assert provenance.identity(entry) == expected
