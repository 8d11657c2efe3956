"""Tests of vocabularies from the tokenizer files of a Hugging Face directory, compared with transformers."""

import json
import random
import re

import pytest
import tensorflow as tf
from tokenizer_directories import (
    save_albert_fast,
    save_bert,
    save_deberta,
    save_deberta_v2,
    save_roberta,
    save_t5,
    train_llama_model,
)

from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.special_tokens import special_tokens

ODD = [
    "",
    " ",
    "  two  spaces \t tab\n\nnewlines\r\n \n x ",
    "don't they'LL 'sea I'M we'Re",
    "a1b22 3.14 12345678 ١٢٣٤ Ⅷ ½",
    "naïve café Ångström İstanbul ΟΔΟΣ straße e\u0301 ạ̈",
    "北京大学 東京都は日本の首都です。 한국어 문장 ｆｕｌｌ ﾊﾝｶｸ",
    "Привет, мир! ﷺ مرحبا بالعالم שלום नमस्ते ภาษาไทย ქართული አማርኛ",
    "👩‍🚀 🙂🏽 🇩🇪 ❤️ can't—won't… «quotes» “curly”",
    "zero\u200bwidth no\u00a0break soft\u00adhyphen line\u2028sep \u3000wide",
    "control \x01\x1c\x1f\x7f chars \ufffd",
    "x" * 99 + " " + "y" * 101 + " " + "=" * 120,
    "http://a.b/c?d=e&f_g #hash @at $5.00 50% [brackets] {x} <y> ~`^|\\",
]


@pytest.fixture(scope="module")
def lines(test_data):
    """A few hundred lines: real text, odd text, and random mixtures of characters of many scripts."""
    real = []
    for name in ("gutenberg/dracula.txt", "wikitext2/test.txt"):
        text = (test_data / "text" / name).read_text(encoding="utf-8", errors="replace").replace("<unk>", "unknown")
        real += [line for line in text.split("\n") if line.strip()][:: len(text) // 9_000]
    draw = random.Random(0)
    alphabet = "".join(ODD[2:]) + "     \n\n\t"
    mixed = ["".join(draw.choices(alphabet, k=draw.randint(1, 40))) for _ in range(150)]
    return [*ODD, *real[:150], *mixed]


def assert_same_ids(vocabulary, reference, lines):
    """Checks the size, the ids of all lines, and the texts that they are decoded to."""
    expected = reference(lines, add_special_tokens=False)["input_ids"]
    found = vocabulary.encode_tf(tf.constant(lines)).to_list()
    assert [line for line, a, b in zip(lines, found, expected, strict=True) if a != b] == []
    assert [list(vocabulary.encode(line)) for line in lines[:5]] == expected[:5]
    assert vocabulary.vocab_size == len(reference)
    known = [ids for ids in expected if vocabulary.unk_id not in ids]
    decoded = reference.batch_decode(known, clean_up_tokenization_spaces=False)
    assert [vocabulary.decode(ids) for ids in known] == decoded
    assert len(known) > len(lines) / 4


def assert_same_special_ids(vocabulary, reference, *roles):
    """Checks the special ids of the roles named; the ids of other roles are None."""
    for role in ("bos", "eos", "pad", "unk", "cls", "sep", "mask"):
        expected = getattr(reference, f"{role}_token_id") if role in roles else None
        assert getattr(vocabulary, f"{role}_id", None) == expected, role


def load(directory):
    import transformers

    return transformers.AutoTokenizer.from_pretrained(directory, split_special_tokens=True)


# ---- BPE and WordPiece -----------------------------------------------------------------------------------------------


@pytest.mark.parity
@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("cased", {}),
        ("uncased", {"strip_accents": False, "tokenize_chinese_chars": False}),
        ("cased", {"strip_accents": True}),
    ],
)
def test_bert_ids_match_transformers(test_data, tmp_path, lines, case, settings):
    save_bert(test_data, tmp_path, case, **settings)
    vocabulary, reference = from_folder(tmp_path), load(tmp_path)
    assert_same_ids(vocabulary, reference, lines)
    assert_same_special_ids(vocabulary, reference, "pad", "unk", "cls", "sep", "mask")
    (tmp_path / "tokenizer.json").unlink()
    from_vocab_txt = from_folder(tmp_path)
    assert from_vocab_txt.pieces == vocabulary.pieces
    assert from_vocab_txt.encode_batch(lines) == vocabulary.encode_batch(lines)


@pytest.mark.parity
def test_bart_with_a_space_before_texts_matches_transformers(test_data, tmp_path, lines):
    save_roberta(test_data, tmp_path, "Bart", add_prefix_space=True)
    vocabulary, reference = from_folder(tmp_path), load(tmp_path)
    assert_same_ids(vocabulary, reference, lines)
    assert_same_special_ids(vocabulary, reference, "bos", "pad", "eos", "unk", "cls", "sep", "mask")
    (tmp_path / "tokenizer.json").unlink()
    assert from_folder(tmp_path).encode_batch(lines) == vocabulary.encode_batch(lines)


@pytest.mark.parity
def test_gpt1_ids_match_transformers(test_data, tmp_path, lines):
    tokenizers = pytest.importorskip("tokenizers")
    import transformers

    trained = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    trained.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    trained.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    settings = {"special_tokens": ["<unk>"], "end_of_word_suffix": "</w>", "show_progress": False}
    trained.train_from_iterator(lines[::2], tokenizers.trainers.BpeTrainer(vocab_size=1500, **settings))
    trained.model.save(str(tmp_path))
    files = (str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    transformers.OpenAIGPTTokenizerFast(*files).save_pretrained(tmp_path)
    vocabulary, reference = from_folder(tmp_path), load(tmp_path)
    assert_same_ids(vocabulary, reference, lines)
    assert_same_special_ids(vocabulary, reference, "unk")
    ids = vocabulary.encode_tf(tf.constant(lines))
    assert any(vocabulary.unk_id in row for row in ids.to_list())
    decoded = [text.decode() for text in vocabulary.decode_tf(ids).numpy()]
    assert decoded == [vocabulary.decode(row) for row in ids.to_list()]
    (tmp_path / "tokenizer.json").unlink()
    assert from_folder(tmp_path).encode_tf(tf.constant(lines)).to_list() == ids.to_list()


# ---- SentencePiece ---------------------------------------------------------------------------------------------------


@pytest.mark.parity
@pytest.mark.parametrize("legacy", [True, False])
def test_t5_ids_match_transformers(test_data, tmp_path, lines, legacy):
    reference = save_t5(test_data, tmp_path, legacy=legacy)
    vocabulary = from_folder(tmp_path)
    if not legacy:
        # Segmentations of the same letter, such as "x xx" and "xx x", have equal scores. The text that transformers
        # prepends decides between them.
        lines = [line for line in lines if not re.search(r"(\w)\1\1", line)]
    assert_same_ids(vocabulary, reference, lines)
    assert_same_special_ids(vocabulary, reference, "eos", "pad", "unk")
    assert vocabulary.vocab_size == 32100 and vocabulary.extra_ids == 100
    for number in (0, 1, 99):
        sentinel = f"<extra_id_{number}>"
        assert vocabulary.encode(sentinel) == [reference.convert_tokens_to_ids(sentinel)] == [32099 - number]


@pytest.mark.parity
def test_t5_tokenizer_json_alone_gives_ids_of_the_fast_tokenizer(test_data, tmp_path, lines):
    transformers = pytest.importorskip("transformers")
    save_t5(test_data, tmp_path)
    transformers.T5TokenizerFast.from_pretrained(tmp_path).save_pretrained(tmp_path / "fast")
    (tmp_path / "fast/spiece.model").unlink()
    vocabulary = from_folder(tmp_path / "fast")
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "fast/tokenizer.json"))
    assert vocabulary.encode_batch(lines) == reference(lines, add_special_tokens=False).input_ids
    # Of segmentations with equal scores, such as "x xx" and "xx x", SentencePiece chooses others.
    lines = [line for line in lines if not re.search(r"(\w)\1\1", line) and line == line.rstrip()]
    assert vocabulary.encode_batch(lines) == from_folder(tmp_path).encode_tf(tf.constant(lines)).to_list()
    assert (vocabulary.vocab_size, vocabulary.extra_ids, vocabulary.eos_id, vocabulary.pad_id) == (32100, 100, 1, 0)
    assert vocabulary.encode("near<extra_id_0>") == [*vocabulary.encode("near"), 32099]


@pytest.mark.parity
@pytest.mark.parametrize("save", [save_deberta, save_deberta_v2])
def test_deberta_ids_match_transformers(test_data, tmp_path, lines, save):
    reference = save(test_data, tmp_path)
    vocabulary, reference = from_folder(tmp_path), load(tmp_path)
    assert_same_ids(vocabulary, reference, lines)
    special = special_tokens(vocabulary)
    expected = reference.cls_token_id, reference.sep_token_id, reference.mask_token_id
    assert (special.cls, special.sep, special.mask) == expected == (1, 2, len(reference) - 1)


@pytest.mark.parity
@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False, "keep_accents": True}])
def test_albert_model_alone_matches_transformers(test_data, tmp_path, lines, settings):
    (tmp_path / "spiece.model").write_bytes((test_data / "vocab/albert/spiece.model").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "AlbertTokenizer"} | settings))
    assert from_folder(tmp_path).encode_batch(lines) == load(tmp_path)(lines, add_special_tokens=False).input_ids


@pytest.mark.parity
def test_text_of_several_added_tokens_matches_transformers(test_data, tmp_path, lines):
    """Added tokens that are not special are found in texts, whatever file adds them."""
    import transformers

    save_albert_fast(test_data, tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    reference.add_tokens(["<|new|>", "river stone"])
    reference.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    reference.save_pretrained(tmp_path)
    vocabulary, reference = from_folder(tmp_path), load(tmp_path)
    texts = [*lines[:50], "the river stone<|new|>and", "a<|new|>", "<|new|> <|new|>"]
    assert vocabulary.encode_batch(texts) == reference(texts, add_special_tokens=False).input_ids
    assert vocabulary.vocab_size == len(reference) == 30003
    assert vocabulary.decode([30002, *vocabulary.encode("a<|new|>")]) == "a<|new|>"
    contents = json.loads((tmp_path / "tokenizer.json").read_text())
    contents["added_tokens"] = [token for token in contents["added_tokens"] if token["id"] < 30000]
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    assert from_folder(tmp_path).encode_batch(texts) == vocabulary.encode_batch(texts)


@pytest.fixture(scope="module")
def llama_model(test_data, tmp_path_factory):
    return train_llama_model(test_data, tmp_path_factory.mktemp("llama"))


@pytest.mark.parity
@pytest.mark.parametrize("settings", [{"legacy": True}, {"legacy": False}, {"add_prefix_space": False}])
def test_llama_ids_match_transformers(tmp_path, llama_model, lines, settings):
    import transformers

    transformers.LlamaTokenizerFast(str(llama_model), **{"add_prefix_space": True} | settings).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(llama_model.read_bytes())
    for _ in range(2):
        vocabulary, reference = from_folder(tmp_path), load(tmp_path)
        assert_same_ids(vocabulary, reference, lines)
        assert_same_special_ids(vocabulary, reference, "bos", "eos", "unk")
        assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id) == (1, 2, None)
        ids = [1, *vocabulary.encode("a b"), 2, 5]
        assert vocabulary.decode_tf(tf.constant([ids])).numpy()[0].decode() == vocabulary.decode(ids) == "a b"
        (tmp_path / "tokenizer.json").unlink(missing_ok=True)  # the model alone


@pytest.mark.parametrize("tokenizer_class", ["LlamaTokenizer", "TokenizersBackend", "FutureTokenizer"])
@pytest.mark.parametrize("prefix", ["Prepend", "Metaspace"])
@pytest.mark.parity
def test_llama_tokenizer_json_alone_gives_equal_ids(tmp_path, llama_model, lines, prefix, tokenizer_class):
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    transformers.LlamaTokenizerFast(str(llama_model)).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.model").unlink(missing_ok=True)
    (tmp_path / "special_tokens_map.json").unlink(missing_ok=True)
    contents = json.loads((tmp_path / "tokenizer.json").read_text())
    if prefix == "Metaspace":  # as transformers 5 writes it
        space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
        contents |= {"normalizer": None, "pre_tokenizer": space}
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    config = {"tokenizer_class": tokenizer_class, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    vocabulary = from_folder(tmp_path)
    lines = [*lines, " one", "  two", ""]
    expected = [encoding.ids for encoding in reference.encode_batch(lines, add_special_tokens=False)]
    assert vocabulary.encode_tf(tf.constant(lines)).to_list() == expected
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id) == (1, 2, None)
