"""Tests of WordPiece and byte-level BPE, compared with Hugging Face's tokenizers and by hand."""

import json
import shutil
import types
import unicodedata

import pytest
import tensorflow as tf

from t5x_like.errors import UserError
from t5x_like.vocabularies import byte_bpe, merges, word_splits, wordpiece
from t5x_like.vocabularies.byte_bpe import ByteBPEVocabulary
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL, LateSentencePieceVocabulary, python_docs
from t5x_like.vocabularies.special_tokens import special_tokens
from t5x_like.vocabularies.wordpiece import WordPieceVocabulary

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SMALL = [
    *SPECIAL,
    "un",
    "##aff",
    "##able",
    "want",
    "##ed",
    ",",
    "runn",
    "##ing",
    "a",
    "##a",
    "[",
    "]",
    "mask",
    "北",
    "京",
]


# ---- WordPiece -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(SMALL) + "\n", encoding="utf-8")
    return WordPieceVocabulary(str(tmp_path / "vocab.txt"))


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
    ],
)
def test_wordpiece_pieces(small, text, pieces):
    assert pieces_of(small, text) == pieces


def test_word_longer_than_100_characters_is_unknown(small):
    assert pieces_of(small, "a" * 100) == ["a"] + ["##a"] * 99
    assert pieces_of(small, "a" * 101 + " a") == ["[UNK]", "a"]
    # The limit counts characters, not bytes.
    assert len(wordpiece.split_words(tf.constant("ก" * 60), lower_case=True)) == 1


def test_wordpiece_special_ids_word_starts_and_size(small):
    assert (small.pad_id, small.unk_id, small.cls_id, small.sep_id, small.mask_id) == (0, 1, 2, 3, 4)
    assert small.eos_id is None and small.bos_id is None and small.vocab_size == len(SMALL)
    starts = [piece for piece, start in zip(SMALL, small.word_starts, strict=True) if not start]
    assert starts == ["##aff", "##able", "##ed", "##ing", "##a"]


def test_wordpiece_decode_joins_pieces(small):
    ids = [2, *small.encode("unaffable, wanted"), 3]
    assert small.decode(ids) == "[CLS] unaffable , wanted [SEP]"
    assert small.decode([*small.encode("wanted"), 10_000]) == "wanted [UNK]"
    assert small.decode_tf(tf.constant([ids, [0] * len(ids)])).numpy().tolist() == [
        b"[CLS] unaffable , wanted [SEP]",
        b" ".join([b"[PAD]"] * len(ids)),
    ]


@pytest.mark.parametrize(
    ("kind", "texts"), [("small", ["unaffable", "", "wanted, running"]), ("tiny", ["ab abc", "", "b\nbc"])]
)
def test_batched_and_pipelined_encoding_match_single_texts(kind, texts, request):
    vocabulary = request.getfixturevalue(kind)
    single = [vocabulary.encode(text) for text in texts]
    assert vocabulary.encode_tf(tf.constant(texts)).to_list() == single
    ds = tf.data.Dataset.from_tensor_slices(texts).map(vocabulary.encode_tf)
    assert ds.element_spec == tf.TensorSpec([None], tf.int32)
    assert [ids.tolist() for ids in ds.as_numpy_iterator()] == single


def test_cased_vocabulary_keeps_case_and_accents(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "Étude", "etude"]), encoding="utf-8")
    path = str(tmp_path / "vocab.txt")
    composed, decomposed = (unicodedata.normalize(form, "Étude") for form in ("NFC", "NFD"))
    cased = WordPieceVocabulary(path, lower_case=False)
    assert [pieces_of(cased, text) for text in (composed, decomposed, "etude")] == [["Étude"], ["Étude"], ["etude"]]
    assert pieces_of(WordPieceVocabulary(path), composed) == ["etude"]
    assert cased != WordPieceVocabulary(path) and cased == WordPieceVocabulary(path, lower_case=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\n", r"\[PAD\] is line 2, but must be line 1"),
        ("[PAD]\n[UNK]\na\n", r"\[CLS\], \[SEP\], \[MASK\] not found"),
        ("\n".join([*SPECIAL, "a", "b", "a"]), "a duplicate piece .'a'."),
        (b"\xff\xfe", "not UTF-8 text"),
    ],
)
def test_invalid_wordpiece_files_raise(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        _ = WordPieceVocabulary(str(path)).vocab_size


def test_path_is_looked_up_at_use(tmp_path, small):
    paths = {}
    late = WordPieceVocabulary(lambda: paths["now"], lambda: paths["lower"])
    paths.update(now=str(tmp_path / "none.txt"), lower=True)
    with pytest.raises(UserError, match=r"'.*none.txt' is not a WordPiece vocabulary: file not found"):
        _ = late.vocab_size
    paths.update(now=small.vocab_file)
    assert late == small and late.encode("wanted") == [8, 9]


def published(test_data, case):
    return WordPieceVocabulary(str(test_data / f"vocab/bert/bert_base_{case}_vocab.txt"), lower_case=case == "uncased")


@pytest.mark.parametrize(("case", "size"), [("uncased", 30522), ("cased", 28996)])
def test_published_wordpiece_vocabularies(test_data, case, size):
    vocabulary = published(test_data, case)
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


def real_lines(test_data):
    """Returns lines of real text in several languages and scripts."""
    lines = []
    for name in ("gutenberg/dracula.txt", "gutenberg/alice29.txt", "wikitext2/test.txt"):
        lines += (test_data / "text" / name).read_text(encoding="utf-8", errors="replace").split("\n")[::9]
    lines += (test_data / "text/bert_sample_text/sample_text.txt").read_text(encoding="utf-8").split("\n")
    return [line for line in lines if line.strip()]


ODD_TEXTS = [
    "",
    "  two  spaces\n\n\tand a tab \u3000x\x1cy",
    "It's they'RE 'S 12345 ½ Ⅷ naïve Étude ΑΣ ß İ",
    "北京 ひらがな <|endoftext|> [MASK] </s>",
    "a\ufffdb\x00c\x85d\u2028 !\r\n?\n",
]


@pytest.mark.parametrize("kind", ["uncased", "cased", "GPT2", "GPT2_FAST", "LLAMA_3"])
def test_python_and_tensorflow_encode_to_equal_ids(test_data, kind):
    if kind in ("uncased", "cased"):
        vocabulary = published(test_data, kind)
    else:
        options = {"add_prefix_space": kind == "GPT2_FAST", "keep_whole_words": kind == "LLAMA_3"}
        vocabulary = ByteBPEVocabulary(*gpt2_files(test_data), split=getattr(word_splits, kind), **options)
    texts = [*real_lines(test_data)[::50], *ODD_TEXTS]
    assert vocabulary.encode_tf(tf.constant(texts)).to_list() == [list(vocabulary.encode(text)) for text in texts]


@pytest.mark.parity
@pytest.mark.parametrize("case", ["uncased", "cased"])
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 29], ids=["every", "every 29th"])
def test_wordpiece_ids_match_hugging_face(test_data, case, step):
    import transformers

    vocabulary = published(test_data, case)
    reference = transformers.BertTokenizer(vocabulary.vocab_file, do_lower_case=vocabulary.lower_case)
    # Each character is placed between two letters, for all scripts below U+3400. Characters that Python or TensorFlow
    # (Unicode 15.0) does not define are excluded.
    unicode_15_1 = range(0x2EBF0, 0x2EE5E)
    codes = [code for code in [*range(1, 0x3400), *range(0x3400, 0x110000, step)] if code not in unicode_15_1]
    characters = [chr(code) for code in codes if unicodedata.category(chr(code)) not in ("Cn", "Cs")]
    odd = ["ΟΔΟΣ ΣΑΣ", "İstanbul", "ก" * 60, "x" * 100 + " " + "y" * 101, "a\u2028b\u3000c", "👩‍🚀 can't—won't…"]
    texts = [*real_lines(test_data), *odd, *(f"a{character}b" for character in characters)]
    found = vocabulary.encode_tf(tf.constant(texts)).to_list()
    expected = [reference.convert_tokens_to_ids(reference.tokenize(text)) for text in texts]
    assert [text for text, a, b in zip(texts, found, expected, strict=True) if a != b] == []


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


# ---- byte-level BPE --------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path):
    """All bytes, the merges "a b", "b c", "ab c", "a a", " ab" as pieces 256 … 260, and the end of text."""
    letters = byte_bpe.byte_letters()
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "a"), ("Ġ", "ab")]
    names = [letters[byte] for byte in range(256)] + ["".join(pair) for pair in merges] + ["<|endoftext|>"]
    (tmp_path / "encoder.json").write_text(json.dumps({name: index for index, name in enumerate(names)}))
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    return ByteBPEVocabulary(str(tmp_path / "encoder.json"), str(tmp_path / "vocab.bpe"))


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
    assert [tiny.pieces[index].decode() for index in tiny.encode(text)] == pieces


def test_every_other_flag_of_each_run():
    flags = [True, True, True, False, True, True, False, False, True]
    expected = [True, False, True, False, True, False, False, False, True]
    assert merges.every_other(tf.constant(flags)).numpy().tolist() == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello world's  end, they'LL", ["Hello", " world", "'s", " ", " end", ",", " they", "'", "LL"]),
        ("say:\n\n  yes!!! 12a", ["say", ":", "\n\n ", " yes", "!!!", " 12", "a"]),
        ("   ", ["   "]),
        ("\u3000\u00a0x", ["\u3000", "\u00a0", "x"]),
    ],
)
def test_split_words_matches_gpt2(text, words):
    found = word_splits.GPT2(tf.constant([text])).to_list()[0]
    assert [word.decode() for word in found] == words


def test_byte_bpe_is_lossless_and_decodes_invalid_bytes(tiny):
    text = "zwölf  Boxkämpfer,\t日本語 \x00\x1e 🙂\r\n"
    assert tiny.decode(tiny.encode(text)) == text
    assert tiny.decode_tf(tiny.encode_tf(tf.constant([text]))).numpy()[0].decode() == text
    assert tiny.decode([0xE6, ord("a"), 10_000]) == "\ufffda\ufffd"
    ids = [ord("a"), tiny.eos_id, ord("b")]
    assert tiny.decode(ids) == "a"
    assert tiny.decode_tf(tf.constant([ids, [98, 99, 100]])).numpy().tolist() == [b"a", b"bcd"]
    assert tiny.encode("<|endoftext|>") != [tiny.eos_id]


def test_roberta_ids(tiny, tmp_path):
    old = [*range(97, 262), *range(97)]
    lines = [f"{number} 5" for number in old] + ["madeupword0000 0", "madeupword0001 0"]
    (tmp_path / "dict.txt").write_text("\n".join(lines) + "\n")
    roberta = ByteBPEVocabulary(*tiny.files[:2], str(tmp_path / "dict.txt"))
    assert roberta.vocab_size == 4 + 262 + 3 + 1
    assert (roberta.bos_id, roberta.pad_id, roberta.eos_id, roberta.unk_id, roberta.mask_id) == (0, 1, 2, 3, 269)
    assert roberta.encode("a abc") == [4, 4 + old.index(ord(" ")), 4 + 258 - 97]
    ids = [0, *roberta.encode("a abc"), 269, 1, 2, 4]  # special tokens are not text
    assert roberta.decode(ids) == roberta.decode_tf(tf.constant(ids)).numpy().decode() == "a abc"
    assert roberta.special_names[269] == "<mask>" and roberta.text_prefix == (0,) and tiny.text_prefix == ()
    starts = {piece for piece, start in zip(roberta.pieces, roberta.word_starts, strict=True) if start}
    assert {b" ", b" ab", b"\n", b"<s>", b"<mask>"} <= starts and not starts & {b"a", b"abc"}
    with pytest.raises(ValueError, match="has no mask token, only bos .*endoftext"):
        _ = tiny.mask_id


def test_mismatched_byte_bpe_files_raise(tiny, tmp_path):
    encoder, merges, _ = tiny.files
    (tmp_path / "other.bpe").write_text("a b\nx yz\n")
    (tmp_path / "short.txt").write_text("3 1\n4 1\n")
    (tmp_path / "holes.json").write_text('{"a": 0, "b": 2}')
    for files, message in (
        ((encoder, str(tmp_path / "other.bpe")), "do not match.*'yz'"),
        ((encoder, merges, str(tmp_path / "short.txt")), "does not list each of the 262 ids"),
        ((str(tmp_path / "holes.json"), merges), r"are not the numbers 0 … 1, each used once"),
    ):
        with pytest.raises(ValueError, match=message):
            _ = ByteBPEVocabulary(*files).vocab_size
    with pytest.raises(UserError, match="none.json"):
        _ = ByteBPEVocabulary(str(tmp_path / "none.json"), merges).vocab_size


def gpt2_files(test_data):
    return str(test_data / "vocab/gpt2/encoder.json"), str(test_data / "vocab/gpt2/vocab.bpe")


def test_published_ids_of_gpt2_and_roberta(test_data):
    gpt2 = ByteBPEVocabulary(*gpt2_files(test_data))
    roberta = ByteBPEVocabulary(*gpt2_files(test_data), str(test_data / "vocab/roberta_dict/dict.txt"))
    assert (gpt2.vocab_size, gpt2.eos_id, roberta.vocab_size, roberta.mask_id) == (50257, 50256, 50265, 50264)
    # Known ids of "Hello world", and of ".", " the".
    assert gpt2.encode("Hello world") == [15496, 995]
    assert roberta.encode("Hello world. the") == [31414, 232, 4, 5]


@pytest.mark.parity
def test_byte_bpe_ids_match_hugging_face(test_data):
    import transformers

    vocabulary = ByteBPEVocabulary(*gpt2_files(test_data))
    reference = transformers.GPT2Tokenizer(*gpt2_files(test_data))
    codes = [code for code in range(1, 0x3400) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]
    odd = ["=" * 300 + "- -" * 40, "\n \t\n  x\u00a0\u3000y  ", "don't they'LL 'sea", "a1b2 3.14", " ", "x" * 200]
    documents = (test_data / "text/wikitext2/test.txt").read_text(encoding="utf-8").split("\n \n")[:60]
    texts = [*documents, *odd, *(f"a {chr(code)}b  {chr(code) * 2}" for code in codes)]
    found = vocabulary.encode_tf(tf.constant(texts)).to_list()
    expected = [reference.convert_tokens_to_ids(reference.tokenize(text)) for text in texts]
    assert [text for text, a, b in zip(texts, found, expected, strict=True) if a != b] == []


# ---- SentencePiece ---------------------------------------------------------------------------------------------------


def test_sentencepiece_model_is_found_in_a_directory(tmp_path):
    shutil.copy(PYTHON_DOCS_MODEL, tmp_path / "spiece.model")
    (tmp_path / "config.json").write_text("{}")
    assert LateSentencePieceVocabulary(lambda: str(tmp_path)).encode("def") == python_docs().encode("def")


@pytest.mark.parametrize("text", ["near<extra_id_0>it", "(<extra_id_0>)", "東京<extra_id_0>", "\n<extra_id_0>"])
def test_sentinels_need_no_space_before_them(text):
    vocabulary = python_docs()
    expected = vocabulary.encode(text.replace("<", " <", 1))
    assert 1023 in expected
    assert vocabulary.encode(text) == vocabulary.encode_tf(tf.constant(text)).numpy().tolist() == expected


def test_successive_sentinels_are_ids_and_others_are_characters():
    vocabulary = python_docs()
    for text, sentinels in (("<extra_id_0><extra_id_1><extra_id_99>", [1023, 1022, 924]), ("a<extra_id_100>", [])):
        ids = vocabulary.encode(text)
        assert ids == vocabulary.encode_tf(tf.constant([text])).to_list()[0]
        assert [index for index in ids if index >= 924] == sentinels


def test_model_file_with_some_special_pieces_alone_raises():
    class Model:
        pieces = ("<unk>", "[CLS]", "[SEP]")

        def PieceToId(self, piece):
            return self.pieces.index(piece) if piece in self.pieces else 0

        def IdToPiece(self, index):
            return self.pieces[index]

    vocabulary = types.SimpleNamespace(tokenizer=Model(), extra_ids=100, sentencepiece_model_file="spm.model")
    with pytest.raises(UserError, match=r"spm.model has no piece \[MASK\]. Give the Hugging Face directory"):
        special_tokens(vocabulary)
