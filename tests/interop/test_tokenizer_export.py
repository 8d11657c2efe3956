"""Tokenizers of exported models: SentencePiece models as tokenizer.json, and special tokens."""

import io
import json
import re

import pytest
import sentencepiece

from data_tasks.downstream import templates
from t5x_like.interop import sentencepiece_tokenizers, tokenizer_export
from t5x_like.interop.tokenizer_export import Reader
from t5x_like.vocabularies import converters, late, tokenizer_files, tokenizer_folder
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

TEXTS = (
    *("", " ", "\n", "  lead and trail  ", "two  spaces", "\tindented\n\n  lines\n", "café ☕ 😀", "ﬁne № ①"),
    *("a<b>c & d", "x" * 40, "don't DON'T 12345", "東京 tower", "def f(x):\n    return x\r\n"),
)


def train(**settings) -> bytes:
    """Trains a SentencePiece model on the licenses of the shipped text and `TEXTS`."""
    lines = [line for text in TEXTS for line in text.split("\n") if line] * 3
    lines += re.findall(r".{1,60}", json.dumps(sentencepiece_tokenizers.__doc__ * 5))
    model = io.BytesIO()
    given = {"vocab_size": 400, "byte_fallback": True, "hard_vocab_limit": False, "minloglevel": 2} | settings
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **given)
    return model.getvalue()


MODELS = {
    "shipped": PYTHON_DOCS_MODEL.read_bytes,
    "bpe": lambda: train(model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False),
    "bpe with user-defined pieces": lambda: train(
        model_type="bpe", user_defined_symbols=["\n", "<"], normalization_rule_name="identity"
    ),
    "unigram without bytes": lambda: train(model_type="unigram", vocab_size=90, byte_fallback=False),
    "unigram without prefix": lambda: train(model_type="unigram", add_dummy_prefix=False),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request) -> bytes:
    return MODELS[request.param]()


def as_tokenizer(contents: bytes):
    return sentencepiece_tokenizers.tokenizer(converters.parse_sentencepiece(contents, "model"), {}, None)


def test_tokenizer_json_gives_the_ids_of_the_sentencepiece_model(model):
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = as_tokenizer(model)
    for text in TEXTS:
        ids = reference.encode(text)
        assert tokenizer.encode(text).ids == ids, text
        assert tokenizer.decode(ids) == reference.decode(ids), text


@pytest.mark.parametrize("piece", ["\n", "<b>"])
def test_model_that_tokenizer_json_cannot_represent_is_exported_alone(tmp_path, piece):
    contents = train(model_type="bpe", user_defined_symbols=[piece])  # normalization makes a newline a space
    (tmp_path / "own.model").write_bytes(contents)
    model = Reader(shape="decoder", vocab_size=500, sentencepiece="tokenizer.model")
    assert tokenizer_export.files(str(tmp_path / "own.model"), model) == {"tokenizer.model": contents}


@pytest.mark.parametrize("name", ["t5_32k/cc_all.32000.sentencepiece.model", "albert/spiece.model"])
def test_published_models_give_equal_ids_on_real_paragraphs(test_data, name):
    contents = (test_data / "vocab" / name).read_bytes()
    reference, tokenizer = sentencepiece.SentencePieceProcessor(model_proto=contents), as_tokenizer(contents)
    text = (test_data / "text/wikitext2/test.txt").read_text(encoding="utf-8").replace("<unk>", "unknown")
    paragraphs = [line for line in text.split("\n") if line.strip()][:300]
    assert [tokenizer.encode(line).ids for line in paragraphs] == reference.encode(paragraphs)


def test_exported_tokenizer_of_albert_changes_text_first(test_data, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    (tmp_path / "spiece.model").write_bytes((test_data / "vocab/albert/spiece.model").read_bytes())
    model = Reader(shape="encoder", vocab_size=30000, sentencepiece="spiece.model", lowers_text=True)
    files = tokenizer_export.files(str(tmp_path / "spiece.model"), model)
    tokenizer = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    text = "He said ``NAÏVE'' to the well-known Müller"
    # Of the released model: user-defined pieces, such as "-", are found before the others.
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    expected = model.encode('he said "naive" to the well-known muller')
    assert tokenizer.encode(text, add_special_tokens=False).ids == expected
    for name, contents in files.items():
        (tmp_path / name).write_bytes(contents)
    assert from_folder(tmp_path).encode(text) == expected


@pytest.fixture
def shipped(tmp_path) -> str:
    path = tmp_path / "spiece.model"
    path.write_bytes(PYTHON_DOCS_MODEL.read_bytes())
    return str(path)


@pytest.mark.parametrize(
    ("shape", "bos_id", "before", "after"),
    [
        ("encoder_decoder", 0, [], [1]),
        ("decoder", 1, [1], []),
        ("decoder", None, [], []),
        ("encoder", None, [1022], [1021]),
    ],
)
@pytest.mark.parity
def test_exported_sentencepiece_tokenizer_adds_the_tokens_of_training(shipped, tmp_path, shape, bos_id, before, after):
    transformers = pytest.importorskip("transformers")
    model = Reader(shape=shape, vocab_size=1100, bos_id=bos_id, has_token_types=shape == "encoder")
    files = tokenizer_export.files(shipped, model)
    tokenizer_files.write(files, str(tmp_path / "exported"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    vocabulary = from_folder(tmp_path / "exported")
    text = "first line\nsecond <extra_id_0> line"
    assert tokenizer(text).input_ids == [*before, *vocabulary.encode(text), *after]
    assert 1023 in tokenizer(text).input_ids
    assert ("token_type_ids" in tokenizer(text)) == (shape == "encoder")
    assert (vocabulary.vocab_size, vocabulary.extra_ids) == (1024, 100)
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id) == (bos_id if shape == "decoder" else None, 1, 0)
    assert tokenizer_folder.special_ids(str(tmp_path / "exported"))["eos"] == tokenizer.eos_token_id == 1


@pytest.mark.parametrize("shape", ["encoder", "encoder_decoder", "decoder"])
@pytest.mark.parametrize(
    "special",
    [{"bos_id": -1}, {"bos_id": 1, "eos_id": 2}, {"bos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}],
    ids=["eos", "bos", "cls"],
)
@pytest.mark.parity
def test_exported_sentencepiece_tokenizer_adds_the_tokens_of_tasks(tmp_path, shape, special):
    transformers = pytest.importorskip("transformers")
    path = str(tmp_path / "own.model")
    (tmp_path / "own.model").write_bytes(train(model_type="unigram", **special))
    model = Reader(shape=shape, vocab_size=600, has_token_types=shape == "encoder", reads_tasks=True)
    tokenizer_files.write(tokenizer_export.files(path, model), str(tmp_path / "exported"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    vocabulary = late.sentencepiece_model(path)
    template = templates.template_of(vocabulary)
    texts = [vocabulary.encode_tf(text) for text in ("lead and", "two spaces")]
    assert tokenizer("lead and").input_ids == templates.single(template, texts[0], 60).inputs.numpy().tolist()
    found, expected = tokenizer("lead and", "two spaces"), templates.pair(template, *texts, 60)
    assert found.input_ids == expected.inputs.numpy().tolist()
    if shape == "encoder":
        assert found.token_type_ids == expected.token_types.numpy().tolist()


def test_model_without_room_for_sentinels_has_fewer(shipped):
    files = tokenizer_export.files(shipped, Reader(shape="decoder", vocab_size=925, bos_id=1))
    added = json.loads(files["tokenizer.json"])["added_tokens"]
    assert [token["id"] for token in added if token["content"].startswith("<extra_id_")] == [924]


@pytest.mark.parametrize(("pieces", "lower_case"), [("[PAD] [UNK] a ##é", True), ("[PAD] [UNK] A ##b", False)])
def test_word_pieces_get_the_case_of_their_pieces(tmp_path, pieces, lower_case):
    path = tmp_path / "any.txt"
    path.write_text("\n".join(pieces.split()) + "\n")
    files = tokenizer_export.files(str(path), Reader(shape="encoder", vocab_size=4))
    config = json.loads(files["tokenizer_config.json"])
    assert config == {"tokenizer_class": "BertTokenizer", "do_lower_case": lower_case}
    assert files["vocab.txt"] == path.read_bytes()


@pytest.mark.parametrize(
    ("shape", "bos_id", "default", "expected"),
    [
        ("decoder", 7, {}, {"bos_token_id": 7, "eos_token_id": 1}),
        ("decoder", None, {}, {"bos_token_id": 1, "eos_token_id": 1}),
        (
            "encoder_decoder",
            1,
            {"eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2},
            {"bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 1, "forced_eos_token_id": 1},
        ),
        ("encoder", None, {}, None),
    ],
)
def test_special_tokens_are_those_of_training(tmp_path, shape, bos_id, default, expected):
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "<|endoftext|>": 1}))
    (tmp_path / "merges.txt").write_text("")
    assert tokenizer_export.special_tokens(str(tmp_path), shape, default, bos_id) == expected
    without = None if shape != "encoder_decoder" else {**default, "decoder_start_token_id": bos_id}
    assert tokenizer_export.special_tokens(str(tmp_path / "none"), shape, default, bos_id) == without


def test_start_of_the_decoder_that_is_not_known_is_that_of_the_family(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "<|endoftext|>": 1}))
    (tmp_path / "merges.txt").write_text("")
    for path in (str(tmp_path), None):
        found = tokenizer_export.special_tokens(path, "encoder_decoder", {"decoder_start_token_id": 2}, None)
        assert found is None or found["decoder_start_token_id"] == 2


@pytest.mark.parametrize(
    ("stored", "length", "expected"), [({}, 9, 9), ({"model_max_length": 512}, 9, 9), ({}, None, None)]
)
def test_tokenizer_truncates_to_the_length_of_training(tmp_path, stored, length, expected):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **stored}))
    reader = tokenizer_export.Reader(shape="encoder", vocab_size=6, max_length=length)
    settings = json.loads(tokenizer_export.files(str(tmp_path), reader)["tokenizer_config.json"])
    assert settings.get("model_max_length") == expected and settings["tokenizer_class"] == "BertTokenizer"


@pytest.mark.parametrize(
    ("tokenizer_class", "expected"),
    [("RobertaTokenizer", {"5": {"lstrip": True, "content": "<mask>"}}), ("GPT2Tokenizer", {})],
)
def test_config_states_that_a_mask_has_the_space_before_it(tmp_path, tokenizer_class, expected):
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "a", "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class}))
    files = tokenizer_export.files(str(tmp_path), Reader(shape="encoder", vocab_size=6))
    found = json.loads(files["tokenizer_config.json"]).get("added_tokens_decoder", {})
    assert {index: {key: token[key] for key in ("lstrip", "content")} for index, token in found.items()} == expected


def test_config_states_the_token_types_that_versions_of_transformers_return_differently(tmp_path):
    (tmp_path / "spiece.model").write_bytes(train(model_type="unigram"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "AlbertTokenizer"}))
    files = tokenizer_export.files(str(tmp_path), Reader(shape="encoder", vocab_size=500))
    assert "token_type_ids" in json.loads(files["tokenizer_config.json"])["model_input_names"]


@pytest.mark.parametrize(("stored", "expected"), [({}, True), ({"add_bos_token": False}, False)])
def test_config_states_the_bos_that_versions_of_transformers_add_differently(tmp_path, stored, expected):
    (tmp_path / "tokenizer.model").write_bytes(train(model_type="bpe"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", **stored}))
    files = tokenizer_export.files(str(tmp_path), Reader(shape="decoder", vocab_size=500))
    assert json.loads(files["tokenizer_config.json"])["add_bos_token"] == expected
