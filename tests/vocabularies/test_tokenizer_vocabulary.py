"""Tests of the vocabularies of the library `tokenizers`: pieces by hand, pipelines, copies, and invalid files."""

import json
import os
import pickle
import unicodedata

import pytest
import tensorflow as tf
from byte_level import byte_letters

from t5x_like.errors import UserError
from t5x_like.vocabularies import vocabulary_files
from t5x_like.vocabularies.special_tokens import special_tokens, word_starts

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SMALL = [*SPECIAL, "un", "##aff", "##able", "want", "##ed", ",", "runn", "##ing", "a", "##a", "[", "]", "mask"]
SMALL += ["北", "京"]


# ---- WordPiece -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(SMALL) + "\n", encoding="utf-8")
    return vocabulary_files.word_pieces(str(tmp_path / "vocab.txt"))


def pieces_of(vocabulary, text):
    return [vocabulary.pieces[index] for index in vocabulary.encode(text)]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        # A word is unknown as a whole if one of its pieces is missing ("##want").
        ("UNwant\u00e9d,running", ["[UNK]", ",", "runn", "##ing"]),
        ("unaffable wanted", ["un", "##aff", "##able", "want", "##ed"]),
        (" \t\nÁ\u200b\x00a\u00a0a  ", ["a", "##a", "a"]),
        ("北京aa", ["北", "京", "a", "##a"]),
        ("a[MASK]", ["a", "[", "mask", "]"]),
        ("", []),
        (" \n ", []),
        ("a" * 100, ["a"] + ["##a"] * 99),
        ("a" * 101 + " a", ["[UNK]", "a"]),
        ("ก" * 60, ["[UNK]"]),  # the limit counts characters, not bytes
    ],
)
def test_wordpiece_pieces(small, text, pieces):
    assert pieces_of(small, text) == pieces


def test_wordpiece_special_ids_word_starts_and_size(small):
    assert (small.pad_id, small.unk_id, small.cls_id, small.sep_id, small.mask_id) == (0, 1, 2, 3, 4)
    assert small.eos_id is None and small.bos_id is None and small.vocab_size == len(SMALL)
    starts = [piece for piece, start in zip(SMALL, small.word_starts, strict=True) if not start]
    assert starts == ["##aff", "##able", "##ed", "##ing", "##a"]


def test_wordpiece_decode_joins_pieces_without_special_tokens(small):
    ids = [2, *small.encode("unaffable, wanted"), 3]
    assert small.decode(ids) == "unaffable, wanted"
    assert small.decode([*small.encode("wanted"), 10_000]) == "wanted [UNK]"
    assert small.decode_tf(tf.constant([ids, [0] * len(ids)])).numpy().tolist() == [b"unaffable, wanted", b""]


def test_words_of_a_text_have_their_normalized_letters(small):
    assert small.encode_words("UNaffable,  x") == [("unaffable", (5, 6, 7)), (",", (10,)), ("x", (1,))]


def test_cased_vocabulary_keeps_case_and_accents(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "Étude", "etude"]), encoding="utf-8")
    path = str(tmp_path / "vocab.txt")
    composed, decomposed = (unicodedata.normalize(form, "Étude") for form in ("NFC", "NFD"))
    cased = vocabulary_files.word_pieces(path, lower_case=False)
    assert [pieces_of(cased, text) for text in (composed, decomposed, "etude")] == [["Étude"], ["Étude"], ["etude"]]
    assert pieces_of(vocabulary_files.word_pieces(path), composed) == ["etude"]
    assert cased != vocabulary_files.word_pieces(path)
    assert cased == pickle.loads(pickle.dumps(cased))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\n", r"\[PAD\] is line 2, but must be line 1"),
        ("[PAD]\n[UNK]\na\n", r"\[SEP\], \[CLS\], \[MASK\] not found"),
        ("\n".join([*SPECIAL, "a", "b", "a"]), "a duplicate piece .'a'."),
        (b"\xff\xfe", "not UTF-8 text"),
    ],
)
def test_invalid_wordpiece_files_raise(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        vocabulary_files.word_pieces(str(path))
    with pytest.raises(UserError, match=r"'.*none.txt' is not a WordPiece vocabulary: file not found"):
        vocabulary_files.word_pieces(str(tmp_path / "none.txt"))


@pytest.mark.parametrize(("case", "size"), [("uncased", 30522), ("cased", 28996)])
def test_published_wordpiece_vocabularies(test_data, case, size):
    path = str(test_data / f"vocab/bert/bert_base_{case}_vocab.txt")
    vocabulary = vocabulary_files.word_pieces(path, lower_case=case == "uncased")
    assert vocabulary.vocab_size == size
    found = (vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)
    assert found == (100, 101, 102, 103)
    text = "John Johanson's house, naïvely."
    known = {
        "uncased": "john johan ##son ' s house , naive ##ly .",
        "cased": "John Johan ##son ' s house , na ##ï ##vel ##y .",
    }
    assert " ".join(pieces_of(vocabulary, text)) == known[case]
    assert vocabulary.decode(vocabulary.encode("unaffable")) == "unaffable"


# ---- byte-level BPE --------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path):
    """All bytes, the merges "a b", "b c", "ab c", "a a", " ab" as pieces 256 … 260, and the end of text."""
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "a"), ("Ġ", "ab")]
    names = [*byte_letters(), *("".join(pair) for pair in merges), "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({name: index for index, name in enumerate(names)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    return vocabulary_files.byte_bpe(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("abc", ["abc"]),  # "a b" is an earlier merge than "b c"
        ("bcab", ["bc", "ab"]),
        ("aaa aaaa", ["aa", "a", " ", "aa", "aa"]),  # from the left
        ("aab", ["a", "ab"]),
        ("ab  ab\n", ["ab", " ", " ab", "\n"]),  # the second space belongs to the word
        ("ab\n\nab", ["ab", "\n", "\n", "ab"]),
        ("ab'sab", ["ab", "'", "s", "ab"]),  # "'s" is split off as a word of its own
        ("", []),
    ],
)
def test_byte_bpe_merges(tiny, text, pieces):
    assert [tiny.decode([index]) for index in tiny.encode(text)] == pieces


def test_byte_bpe_is_lossless_and_decodes_invalid_bytes(tiny):
    text = "zwölf  Boxkämpfer,\t日本語 \x00\x1e 🙂\r\n"
    assert tiny.decode(tiny.encode(text)) == text
    assert tiny.decode_tf(tiny.encode_tf(tf.constant([text]))).numpy()[0].decode() == text
    assert tiny.decode([0xE6, ord("a"), 10_000]) == "\ufffda"
    ids = [ord("a"), tiny.eos_id, ord("b")]
    assert tiny.decode(ids) == "a"
    assert tiny.decode_tf(tf.constant([ids, [98, 99, 100]])).numpy().tolist() == [b"a", b"bcd"]
    assert tiny.encode("<|endoftext|>") != [tiny.eos_id]
    assert tiny.encode_tf(tf.constant(b"a\xff")).numpy().tolist() == tiny.encode("a\ufffd")


def test_word_starts_and_special_tokens_of_byte_bpe(tiny):
    starts = {piece for piece, start in zip(tiny.pieces, tiny.word_starts, strict=True) if start}
    assert {"Ġ", "Ġab", "Ċ", "<|endoftext|>"} <= starts and not starts & {"a", "abc", "é"}
    assert tiny.text_prefix == () and tiny.word_space == " "
    with pytest.raises(UserError, match="has no mask token, only bos .*endoftext"):
        _ = tiny.mask_id
    with pytest.raises(UserError, match=r"TokenizerVocabulary has neither \[CLS\], \[SEP\] and \[MASK\] nor three"):
        special_tokens(tiny)


def test_published_ids_of_gpt2(test_data, tmp_path):
    for name, published in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        os.symlink(test_data / "vocab/gpt2" / published, tmp_path / name)
    gpt2 = vocabulary_files.byte_bpe(str(tmp_path))
    assert (gpt2.vocab_size, gpt2.eos_id, gpt2.encode("Hello world")) == (50257, 50256, [15496, 995])


def test_mismatched_byte_bpe_files_raise(tiny, tmp_path):
    path = str(tmp_path / "merges.txt")
    for merges in ("a b\nx yz\n", "a b c\n"):
        (tmp_path / "merges.txt").write_text(merges)
        with pytest.raises(UserError, match="merges.txt' and its vocab.json do not match: '.*' is not a merge of two"):
            vocabulary_files.read_merges(path, vocabulary_files.read_ids(str(tmp_path / "vocab.json")))
    with pytest.raises(UserError, match="none.json"):
        vocabulary_files.read_ids(str(tmp_path / "none.json"))


# ---- pipelines and copies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "texts"), [("small", ["unaffable", "", "wanted, running"]), ("tiny", ["ab abc", "", "b\nbc"])]
)
def test_batched_and_pipelined_encoding_match_single_texts(kind, texts, request):
    vocabulary = request.getfixturevalue(kind)
    single = [vocabulary.encode(text) for text in texts]
    assert vocabulary.encode_tf(tf.constant(texts)).to_list() == single
    assert vocabulary.encode_tf(tf.constant([texts, texts])).to_list() == [single, single]
    ragged = tf.RaggedTensor.from_row_lengths(texts, [2, 1])
    assert vocabulary.encode_tf(ragged).to_list() == [single[:2], single[2:]]
    ds = tf.data.Dataset.from_tensor_slices(texts).map(vocabulary.encode_tf)
    assert ds.element_spec == tf.TensorSpec([None], tf.int32)
    assert [ids.tolist() for ids in ds.as_numpy_iterator()] == single


@pytest.mark.parametrize("kind", ["small", "tiny"])
def test_position_of_encoding_pipeline_can_be_saved(kind, request, tmp_path):
    vocabulary = request.getfixturevalue(kind)
    ds = tf.data.Dataset.from_tensor_slices(["a ab", "aa a", "a aa", "ab"]).map(vocabulary.encode_tf)
    iterator = iter(ds)
    next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "position"))
    expected = [ids.numpy().tolist() for ids in iterator]
    resumed = iter(ds)
    tf.train.Checkpoint(iterator=resumed).read(path).assert_consumed()
    assert [ids.numpy().tolist() for ids in resumed] == expected and len(expected) == 3


def test_copies_encode_in_other_processes_and_after_a_fork(small):
    expected = small.encode("unaffable wanted")
    assert "library_tokenizer" not in small.__getstate__()
    copy = pickle.loads(pickle.dumps(small))
    assert copy == small and copy.encode("unaffable wanted") == expected
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, json.dumps(small.encode("unaffable wanted")).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and json.loads(os.read(read, 1000)) == expected


def test_lone_surrogate_raises(small):
    with pytest.raises(UserError, match=r"'a \\ud800': a lone surrogate is not a character of Unicode. Decode"):
        small.encode("a \ud800")


def test_vocabulary_without_marks_of_words_raises(tmp_path):
    from tokenizers import Tokenizer, models

    from t5x_like.vocabularies.tokenizer_vocabulary import TokenizerVocabulary

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(UserError, match="whole words cannot be masked"):
        word_starts(TokenizerVocabulary(words.to_str(), str(tmp_path), {}))
