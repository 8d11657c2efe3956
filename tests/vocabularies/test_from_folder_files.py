"""Tests of tokenizer files that are missing, invalid or not supported by `from_folder`, and of minimal directories."""

import json

import pytest

from t5x_like.errors import UserError
from t5x_like.vocabularies import byte_bpe, word_splits
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL


def edit(path, key, value):
    """Sets a key of a JSON file; dots lead to inner keys."""
    contents = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    *outer, last = key.split(".")
    inner = contents
    for part in outer:
        inner = inner[int(part)] if isinstance(inner, list) else inner[part]
    inner[last] = value
    path.write_text(json.dumps(contents))


@pytest.fixture
def bert(tmp_path):
    """A minimal BERT directory with a tokenizer.json."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    tokenizer = {
        "added_tokens": [{"content": piece, "id": index, "special": True} for index, piece in enumerate(pieces[:5])],
        "normalizer": {**normalizer, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {**model, "max_input_chars_per_word": 100, "vocab": {p: n for n, p in enumerate(pieces)}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return tmp_path


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        ("tokenizer.json", "normalizer", {"type": "NFC"}, r"tokenizer.json', key normalizer.type: \"NFC\" is not supp"),
        ("tokenizer.json", "normalizer.clean_text", False, "key normalizer.clean_text: false is not supported, only T"),
        ("tokenizer.json", "pre_tokenizer.type", "Whitespace", r"key pre_tokenizer.type: \"Whitespace\" is not supp"),
        ("tokenizer.json", "model.max_input_chars_per_word", 200, "key model.max_input_chars_per_word: 200 is not"),
        ("tokenizer.json", "added_tokens.4.special", False, r"key added_tokens\[4\]: \"\[MASK\]\" is not supported"),
        ("tokenizer.json", "added_tokens.4.id", 7, "key .*MASK.*: 7 is not supported"),
        ("tokenizer_config.json", "do_lower_case", False, "key do_lower_case: false, but tokenizer.json has true"),
        (
            "tokenizer.json",
            "normalizer.strip_accents",
            False,
            "key strip_accents: not found, which means true, but tok",
        ),
        ("tokenizer.json", "normalizer.lowercase", False, "key do_lower_case: true, but tokenizer.json has false"),
        ("tokenizer.json", "normalizer.handle_chinese_chars", False, "key tokenize_chinese_chars: not found, which me"),
        ("tokenizer_config.json", "tokenizer_class", "FunnelTokenizer", r"class: \"FunnelTokenizer\" is not supported"),
        ("tokenizer_config.json", "mask_token", "<mask>", r"key mask_token: \"<mask>\" is not supported"),
        ("tokenizer_config.json", "do_basic_tokenize", False, "key do_basic_tokenize: false is not supported"),
    ],
)
def test_unsupported_wordpiece_setting_raises(bert, file, key, value, message):
    edit(bert / file, key, value)
    if key == "added_tokens.4.special":  # a token without a role
        edit(bert / "tokenizer_config.json", "mask_token", None)
    with pytest.raises(UserError, match=message):
        from_folder(bert)


def test_minimal_wordpiece_directory(bert):
    assert from_folder(bert).encode("A ab") == [5, 5, 6]


def test_casing_is_never_assumed(bert):
    (bert / "tokenizer.json").unlink()
    edit(bert / "tokenizer_config.json", "do_lower_case", None)
    with pytest.raises(UserError, match="tokenizer_config.json', key do_lower_case: not found"):
        from_folder(bert)
    edit(bert / "tokenizer_config.json", "do_lower_case", False)
    assert from_folder(bert).encode("A ab") == [1, 5, 6]


def test_tokenizer_class_of_model_type(bert):
    (bert / "tokenizer.json").unlink()
    edit(bert / "tokenizer_config.json", "tokenizer_class", None)
    with pytest.raises(UserError, match="tokenizer_config.json', key tokenizer_class: not found"):
        from_folder(bert)
    edit(bert / "config.json", "model_type", "bert")
    assert from_folder(bert).encode("A ab") == [5, 5, 6]


@pytest.mark.parametrize("file", ["tokenizer_config.json", "tokenizer.json"])
def test_truncated_json_raises(bert, file):
    (bert / file).write_text((bert / file).read_text()[:-20])
    with pytest.raises(UserError, match=f"{file}': not valid JSON"):
        from_folder(bert)


def test_missing_directory_or_file_raises(bert, tmp_path):
    with pytest.raises(UserError, match="none': directory not found"):
        from_folder(tmp_path / "none")
    (bert / "tokenizer.json").unlink()
    (bert / "vocab.txt").unlink()
    with pytest.raises(UserError, match="vocab.txt': file not found"):
        from_folder(bert)


@pytest.fixture
def llama3(tmp_path):
    """A minimal tokenizer.json in the form of Llama 3's."""
    vocab = {letter: index for index, letter in enumerate(byte_bpe.byte_letters().values())}
    pattern = {"Regex": word_splits.LLAMA_3_PATTERN}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "added_tokens": [{"content": "<|end|>", "id": 257, "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "model": {"type": "BPE", "vocab": {**vocab, "ab": 256}, "merges": [["a", "b"]]},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return tmp_path


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("normalizer", {"type": "NFC"}, "key normalizer: .*NFC.* is not supported, only null"),
        ("pre_tokenizer.pretokenizers.0.pattern.Regex", r"\w+", r"key pre_tokenizer.pretokenizers\[0\].pattern: "),
        ("pre_tokenizer.pretokenizers.0.behavior", "Removed", r"pretokenizers\[0\].behavior: \"Removed\" is not supp"),
        ("pre_tokenizer.pretokenizers.0.type", "Digits", r"key pre_tokenizer: \[\"Digits\", \"ByteLevel\"\] is not"),
        ("model.type", "WordLevel", r"key model.type: \"WordLevel\" is not supported"),
        ("model.byte_fallback", True, "key model.byte_fallback: true is not supported"),
        ("model.merges", ["a x y"], r"key model.merges\[0\]: 'a x y' is not a pair of pieces"),
        ("model.merges", ["a x"], "do not match"),
        ("added_tokens.0.id", 300, "the ids are not the numbers 0 … 257"),
    ],
)
def test_unsupported_byte_level_bpe_raises(llama3, key, value, message):
    edit(llama3 / "tokenizer.json", key, value)
    with pytest.raises(UserError, match=message):
        from_folder(llama3)


def test_minimal_byte_level_bpe_directory(llama3):
    vocabulary = from_folder(llama3)
    assert vocabulary.eos_id == 257 and vocabulary.bos_id is None and vocabulary.encode("ab") == [256]


def test_missing_special_token_raises(llama3):
    edit(llama3 / "tokenizer_config.json", "bos_token", "<|begin|>")
    with pytest.raises(UserError, match=r"has no <\|begin\|>"):
        from_folder(llama3)


def test_truncated_vocab_json_raises(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    (tmp_path / "vocab.json").write_text('{"a": 0, "b"')
    with pytest.raises(UserError, match="merges.txt': file not found"):
        from_folder(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(UserError, match="vocab.json': not valid JSON"):
        from_folder(tmp_path)


@pytest.fixture
def gpt1(tmp_path):
    """A minimal GPT-1 directory with a tokenizer.json."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "OpenAIGPTTokenizer"}))
    vocab = {piece: index for index, piece in enumerate(["<unk>", "a", "b</w>", "ab</w>"])}
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    model = {"type": "BPE", "unk_token": "<unk>", "end_of_word_suffix": "</w>", "vocab": vocab, "merges": ["a b</w>"]}
    tokenizer = {
        "normalizer": {**bert, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": model,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return tmp_path


def test_minimal_gpt1_directory(gpt1):
    vocabulary = from_folder(gpt1)
    assert vocabulary.encode("AB ba Áb") == [3, 0, 0, 3] and vocabulary.decode([3, 1, 2]) == "ab ab"
    assert vocabulary.eos_id is None and vocabulary.unk_id == 0 and vocabulary == from_folder(gpt1)


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        ("tokenizer.json", "normalizer.lowercase", False, "key normalizer.lowercase: false is not supported"),
        ("tokenizer.json", "model.end_of_word_suffix", None, "key model.end_of_word_suffix: null is not supported"),
        ("tokenizer.json", "model.merges", ["a c"], "do not match: a merge is not a piece"),
        ("tokenizer_config.json", "do_lower_case", False, "key do_lower_case: false is not supported"),
        ("tokenizer_config.json", "unk_token", None, "key unk_token: null is not supported"),
        ("tokenizer_config.json", "eos_token", "<end>", "has no <end>"),
    ],
)
def test_unsupported_gpt1_setting_raises(gpt1, file, key, value, message):
    edit(gpt1 / file, key, value)
    with pytest.raises(UserError, match=message):
        from_folder(gpt1)


@pytest.fixture
def llama(tmp_path):
    """A minimal Llama directory, whose model has no <s>."""
    (tmp_path / "tokenizer.model").write_bytes(PYTHON_DOCS_MODEL.read_bytes())
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        ("tokenizer_config.json", "pad_token", "[PAD]", r"key pad_token: \"\[PAD\]\" is not supported"),
        ("added_tokens.json", "new", 924, "added_tokens.json', key new: .* is not supported, only special tokens"),
        ("tokenizer.json", "model", {"type": "WordLevel"}, r"key model.type: \"WordLevel\" is not supported"),
    ],
)
def test_unsupported_sentencepiece_setting_raises(llama, file, key, value, message):
    edit(llama / file, key, value)
    with pytest.raises(UserError, match=message):
        from_folder(llama)


def test_minimal_sentencepiece_directory(llama):
    vocabulary = from_folder(llama)
    assert (vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id) == (2, None, 1, None)


def test_unsupported_sentencepiece_normalizer_raises(llama):
    tokenizer = {"model": {"type": "BPE"}, "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}}
    (llama / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match=r"key normalizer.normalizers\[0\].type: \"NFC\" is not supported"):
        from_folder(llama)


def test_invalid_sentencepiece_model_raises(llama):
    (llama / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(UserError, match="tokenizer.model': not a SentencePiece model"):
        from_folder(llama)


def test_t5_sentinels_in_another_order_raise(tmp_path):
    (tmp_path / "spiece.model").write_bytes(PYTHON_DOCS_MODEL.read_bytes())
    token = {"content": "<extra_id_0>", "special": True}
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, "added_tokens_decoder": {"924": token}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="key added_tokens_decoder: .*924.* is not supported"):
        from_folder(tmp_path)
