"""JSON files of tokenizers that are damaged or hostile: one line that names the file and the key."""

import json

import pytest

from t5x_like.errors import UserError
from t5x_like.vocabularies import tokenizer_json, vocabulary_digest

pytestmark = pytest.mark.notf

BPE = {
    "added_tokens": [{"content": "<s>", "id": 3, "special": True}],
    "normalizer": None,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}]},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
}
UNIGRAM = {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1]]}}


def write(directory, contents, name="tokenizer.json"):
    path = directory / name
    path.write_text(contents if isinstance(contents, str) else json.dumps(contents))
    return str(path)


@pytest.mark.parametrize("contents", [BPE, UNIGRAM, {"model": {"vocab": [["a", 0]]}}, {"added_tokens": None}])
def test_valid_file_is_read(tmp_path, contents):
    assert tokenizer_json.read(write(tmp_path, contents)) == contents


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (BPE | {"model": []}, "key model: a list is not an object"),
        (BPE | {"model": {"type": ["BPE"]}}, "key model.type: a list is not the name of a type"),
        (BPE | {"model": {"type": "BPE", "vocab": {"a": "0"}}}, "key model.vocab.a: '0' is not an id"),
        (BPE | {"model": {"type": "BPE", "vocab": {"a": -1}}}, "key model.vocab.a: -1 is not an id"),
        (BPE | {"model": {"type": "BPE", "vocab": {"a": True}}}, "key model.vocab.a: True is not an id"),
        (BPE | {"model": {"type": "BPE", "vocab": ["a"]}}, "key model.vocab: a list is not an object of the BPE"),
        (UNIGRAM | {"model": {"type": "Unigram", "vocab": {"a": 0}}}, "key model.vocab: a dict is not a list of pairs"),
        (UNIGRAM | {"model": {"type": "Unigram", "vocab": [["a"]]}}, r"key model.vocab\[0\]: a list is not a pair"),
        (
            UNIGRAM | {"model": {"type": "Unigram", "vocab": [["a", 0]], "unk_id": 1}},
            "key model.unk_id: 1 is not the id",
        ),
        (BPE | {"model": {"merges": ["a b", "a b c"]}}, r"key model.merges\[1\]: 'a b c' is not a pair of pieces"),
        (BPE | {"model": {"merges": [["a", 1]]}}, r"key model.merges\[0\]: a list is not a pair of pieces"),
        (BPE | {"added_tokens": [{"id": 1}]}, r"key added_tokens\[0\]: a dict is not an object with content"),
        (BPE | {"added_tokens": [{"content": "a", "id": "1"}]}, r"key added_tokens\[0\]: a dict is not"),
        (BPE | {"pre_tokenizer": []}, "key pre_tokenizer: a list is not an object"),
        (BPE | {"pre_tokenizer": {"type": "Sequence"}}, "key pre_tokenizer.pretokenizers: None is not a list"),
        (
            BPE | {"normalizer": {"type": "Sequence", "normalizers": [1]}},
            r"key normalizer.normalizers\[0\]: 1 is not an",
        ),
        ("[" * 100_000, "not valid JSON"),
        ('{"model": ' + "9" * 5_000 + "}", "not valid JSON"),
        ("[]", "not a JSON object"),
    ],
)
def test_invalid_tokenizer_is_named_with_its_key(tmp_path, contents, message):
    path = write(tmp_path, contents)
    for read in (tokenizer_json.read, lambda path: vocabulary_digest.of_path(str(tmp_path))):
        with pytest.raises(UserError, match=rf"^'.*tokenizer\.json'(, |: ){message}.*$") as raised:
            read(path)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("tokenizer_config.json", {"tokenizer_class": 3}, "tokenizer_class: 3 is not the name of a class"),
        ("tokenizer_config.json", {"unk_token": {"id": 1}}, "unk_token: a dict is not a token"),
        ("tokenizer_config.json", {"extra_ids": 10**9}, "extra_ids: 1000000000 is not a number of at most 1,048,576"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}, "added_tokens_decoder.x: a dict"),
        ("special_tokens_map.json", {"additional_special_tokens": [3]}, r"additional_special_tokens\[0\]: 3 is not a"),
        ("added_tokens.json", {"a": "1"}, "a: '1' is not an id"),
        ("vocab.json", {"a": [1]}, "a: a list is not an id"),
        ("config.json", {"model_type": ["t5"]}, "model_type: a list is not the name of a type"),
    ],
)
def test_other_invalid_files_are_named_with_their_key(tmp_path, name, contents, message):
    with pytest.raises(UserError, match=rf"{name}', key {message}"):
        tokenizer_json.read(write(tmp_path, contents, name))


def test_sizes_are_limited(tmp_path, monkeypatch):
    path = write(tmp_path, BPE)
    monkeypatch.setitem(tokenizer_json.MAX_PIECES, "BPE", 2)
    with pytest.raises(UserError, match="key model.vocab: 3 pieces are more than 2, twice the number"):
        tokenizer_json.read(path)
    monkeypatch.undo()
    monkeypatch.setattr(tokenizer_json, "MAX_MERGES", 0)
    with pytest.raises(UserError, match="key model.merges: 1 merges are more than 0, twice"):
        tokenizer_json.read(path)
    monkeypatch.setattr(tokenizer_json, "MAX_BYTES", 10)
    with pytest.raises(UserError, match=r"tokenizer.json': \d+ bytes are more than the 10 of a tokenizer"):
        tokenizer_json.read(path)
