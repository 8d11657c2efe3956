"""Digests of vocabularies: the same for every form of a vocabulary, and different for different ones."""

import functools
import json

import pytest
import tokenizer_directories

from t5x_like.vocabularies import vocabulary_digest
from t5x_like.vocabularies.from_folder import from_folder

SAVED = {
    "bert": functools.partial(tokenizer_directories.save_bert, case="uncased"),
    "gpt2": tokenizer_directories.save_gpt2,
    "t5": tokenizer_directories.save_t5,
}


@pytest.fixture(scope="module")
def directories(test_data, tmp_path_factory):
    made = {name: tmp_path_factory.mktemp(name) for name in SAVED}
    for name, save in SAVED.items():
        save(test_data, made[name])
    return made


@pytest.mark.parity
def test_files_and_vocabularies_of_a_tokenizer_have_the_same_digest(directories, tmp_path):
    found = {}
    for name, directory in directories.items():
        found[name] = vocabulary_digest.of_path(str(directory))
        assert vocabulary_digest.of_vocabulary(from_folder(directory)) == found[name], name
    assert len(set(found.values())) == len(found)
    (tmp_path / "vocab.txt").write_text((directories["bert"] / "vocab.txt").read_text())
    assert vocabulary_digest.of_path(str(tmp_path)) == found["bert"]
    (tmp_path / "vocab.json").write_text((directories["gpt2"] / "vocab.json").read_text())
    (tmp_path / "vocab.txt").unlink()
    assert vocabulary_digest.of_path(str(tmp_path)) == found["gpt2"]


def test_order_of_tokens_matters_and_sentinels_do_not(tmp_path):
    def digest(tokens):
        (tmp_path / "vocab.json").write_text(json.dumps(tokens))
        return vocabulary_digest.of_path(str(tmp_path))

    assert digest({"a": 0, "b": 1}) == digest({"a": 0, "b": 1, "<extra_id_0>": 2}) != digest({"a": 1, "b": 0})
    assert vocabulary_digest.of_path(str(tmp_path / "missing")) is None
