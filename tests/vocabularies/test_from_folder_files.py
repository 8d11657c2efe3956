"""Tests of tokenizer files that are missing or invalid, and of minimal directories."""

import json

import pytest
from byte_level import byte_letters

from t5x_like.data.seqio_feed.source import SeqIOSource
from t5x_like.errors import UserError
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

LLAMA_3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
)
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


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
        "added_tokens": [
            FLAGS | {"content": piece, "id": index, "special": True} for index, piece in enumerate(pieces[:5])
        ],
        "normalizer": {**normalizer, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {**model, "max_input_chars_per_word": 100, "vocab": {p: n for n, p in enumerate(pieces)}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return tmp_path


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        (
            "tokenizer.json",
            "normalizer",
            {"type": "NFX"},
            r"tokenizer.json: tokenizers .* cannot read it \(.*\). Install",
        ),
        (
            "tokenizer.json",
            "model.type",
            "WordPiece2",
            r"tokenizer.json: tokenizers .* cannot read it \(.*\). Install a",
        ),
        (
            "added_tokens.json",
            "[MASK]",
            7,
            r"added_tokens.json', key \[MASK\]: the id of '\[MASK\]' is 7 here and 4 in",
        ),
        ("tokenizer_config.json", "do_lower_case", False, "key do_lower_case: false, but tokenizer.json has true"),
        (
            "tokenizer.json",
            "normalizer.strip_accents",
            False,
            "key strip_accents: not found, which means true, but tok",
        ),
        ("tokenizer.json", "normalizer.lowercase", False, "key do_lower_case: true, but tokenizer.json has false"),
        ("tokenizer.json", "normalizer.handle_chinese_chars", False, "key tokenize_chinese_chars: not found, which me"),
        (
            "tokenizer_config.json",
            "mask_token",
            "<mask>",
            r"its mask token '<mask>' is not in the vocabulary. Add it, or",
        ),
        ("tokenizer_config.json", "do_basic_tokenize", False, "key do_basic_tokenize: false is not supported"),
    ],
)
def test_invalid_wordpiece_setting_raises(bert, file, key, value, message):
    edit(bert / file, key, value)
    with pytest.raises(UserError, match=message):
        from_folder(bert)


def test_minimal_wordpiece_directory(bert):
    assert from_folder(bert).encode("A ab") == [5, 5, 6]


def test_unknown_class_needs_a_tokenizer_json(bert):
    edit(bert / "tokenizer_config.json", "tokenizer_class", "FutureTokenizer")
    assert from_folder(bert).encode("A ab") == [5, 5, 6]
    (bert / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"class: \"FutureTokenizer\" is not supported, only with a tokenizer.json, or"):
        from_folder(bert)


def test_vocabulary_larger_than_the_model_raises(bert):
    source = SeqIOSource(
        mixture_or_task_name="text_files_masked_lm",
        task_feature_lengths={"inputs": 8, "targets": 8},
        batch_size=1,
        task_arguments={"vocabulary_path": str(bert)},
    )
    with pytest.raises(UserError, match="vocab_size"):
        source.check_vocabulary(6)


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
    vocab = {letter: index for index, letter in enumerate(byte_letters())}
    split = {"type": "Split", "pattern": {"Regex": LLAMA_3_PATTERN}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "added_tokens": [{"content": "<|end|>", "id": 257, "special": True} | FLAGS],
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
        ("pre_tokenizer.pretokenizers.0.pattern.Regex", r"(", "cannot read it"),
        ("model.type", "Mamba", "cannot read it"),
        ("model.merges", ["a x y"], r"key model.merges\[0\]: 'a x y' is not a pair of pieces"),
        ("model.merges", ["a x"], "cannot read it"),
    ],
)
def test_invalid_byte_level_bpe_raises(llama3, key, value, message):
    edit(llama3 / "tokenizer.json", key, value)
    with pytest.raises(UserError, match=message) as raised:
        from_folder(llama3)
    assert "\n" not in str(raised.value)


def test_minimal_byte_level_bpe_directory(llama3):
    vocabulary = from_folder(llama3)
    assert vocabulary.eos_id == 257 and vocabulary.bos_id is None and vocabulary.encode("ab") == [256]


def test_missing_special_token_raises(llama3):
    edit(llama3 / "tokenizer_config.json", "bos_token", "<|begin|>")
    with pytest.raises(UserError, match=r"its bos token '<\|begin\|>' is not in the vocabulary"):
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
    """A minimal GPT-1 directory."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "OpenAIGPTTokenizer"}))
    vocab = {piece: index for index, piece in enumerate(["<unk>", "a", "b</w>", "ab</w>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    return tmp_path


def test_minimal_gpt1_directory(gpt1):
    vocabulary = from_folder(gpt1)
    assert vocabulary.encode("AB ba Áb") == [3, 0, 0, 3] and vocabulary.decode([3, 1, 2]) == "ab ab"
    assert vocabulary.eos_id is None and vocabulary.unk_id == 0 and vocabulary == from_folder(gpt1)


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        ("merges.txt", None, "a c\n", "do not match: 'a c' is not a merge"),
        ("tokenizer_config.json", "unk_token", None, "key unk_token: null is not supported"),
        ("tokenizer_config.json", "eos_token", "<end>", "its eos token '<end>' is not in the vocabulary"),
    ],
)
def test_invalid_gpt1_setting_raises(gpt1, file, key, value, message):
    (gpt1 / file).write_text(value) if key is None else edit(gpt1 / file, key, value)
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
        ("tokenizer_config.json", "pad_token", "[PAD]", r"its pad token '\[PAD\]' is not in the vocabulary"),
        ("added_tokens.json", "new", 925, "added_tokens.json', key new: the id of 'new' is 925 here and 924 in"),
        ("tokenizer.json", "model", {"type": "WordLevel"}, "cannot read it"),
    ],
)
def test_invalid_sentencepiece_setting_raises(llama, file, key, value, message):
    edit(llama / file, key, value)
    with pytest.raises(UserError, match=message):
        from_folder(llama)


def test_added_token_is_found_in_texts(llama):
    edit(llama / "added_tokens.json", "new", 924)
    vocabulary = from_folder(llama)
    assert vocabulary.vocab_size == 925 and vocabulary.encode("new")[-1] == 924


def test_minimal_sentencepiece_directory(llama):
    vocabulary = from_folder(llama)
    assert (vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id) == (2, None, 1, None)


def test_invalid_sentencepiece_model_raises(llama):
    (llama / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(UserError, match="tokenizer.model': not a SentencePiece model"):
        from_folder(llama)


def test_t5_sentinels_in_another_order_raise(tmp_path):
    (tmp_path / "spiece.model").write_bytes(PYTHON_DOCS_MODEL.read_bytes())
    token = {"content": "<extra_id_0>", "special": True}
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, "added_tokens_decoder": {"924": token}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="key added_tokens_decoder.924: .* is not supported"):
        from_folder(tmp_path)


def test_class_without_a_token_that_its_template_needs_raises(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "cls_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="no cls_token, but the tokenizer places one around texts"):
        from_folder(tmp_path)
