"""Files of word vectors: word2vec's, GloVe's and fastText's text, and word2vec's binary format."""

import struct

import numpy as np
import pytest

from t5x_like import convert_vectors
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.data.subwords import Subwords
from t5x_like.embed import embed
from t5x_like.errors import UserError
from t5x_like.interop import fasttext_files, word_vectors
from t5x_like.interop.word_vectors import Vectors
from t5x_like.loading import open_model
from t5x_like.objectives.word_vectors.interface import TABLE
from t5x_like.vocabularies.word_counts import WordCounts

WORDS = ("the", "naïve", "queen", "king")
VALUES = np.float32([[0.1, -2.5, 1e-20], [3, 4, 5], [1, 1, 0], [1, 0.9, 0]])
FOUND = Vectors(WORDS, VALUES)
NAMES = ["v.vec", "v.txt", "v.glove.txt", "v.bin"]


@pytest.mark.parametrize("name", NAMES)
def test_files_keep_words_and_values(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(word_vectors.to_bytes(str(path), FOUND))
    found = word_vectors.read(str(path))
    assert found.words == WORDS and found.vectors.tobytes() == VALUES.tobytes()
    assert (path.read_bytes().split(b"\n")[0] == b"4 3") == (name != "v.glove.txt")


@pytest.mark.parametrize("name", NAMES)
def test_the_first_words_are_read(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(word_vectors.to_bytes(str(path), FOUND))
    found = word_vectors.read(str(path), limit=2)
    assert found.words == WORDS[:2] and found.vectors.tobytes() == VALUES[:2].tobytes()


def test_published_layouts_by_hand(tmp_path):
    path = tmp_path / "v.bin"
    # word2vec ends a vector with a line break; gensim does not.
    for end in (b"\n", b""):
        path.write_bytes(b"2 1\n" + b"a " + b"\0\0\x80\x3f" + end + b"b " + b"\0\0\0\xc0" + end)
        found = word_vectors.read(str(path))
        assert found.words == ("a", "b") and found.vectors.tolist() == [[1.0], [-2.0]]
    (tmp_path / "v.txt").write_text("a 1 2 \n. . 3 4 \na 5 6\n")  # a space before the end, as word2vec writes it
    found = word_vectors.read(str(tmp_path / "v.txt"))
    assert found.words == ("a", ". .") and found.vectors.tolist() == [[1, 2], [3, 4]]
    (tmp_path / "v.vec").write_bytes("\ufeff2 1\na 1\nb 2\n".encode())
    assert word_vectors.read(str(tmp_path / "v.vec")).words == ("a", "b")


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("v.bin", b"2 1\na \0\0\x80\x3fb \0\0", "ends in word 2 of 2. The file is truncated"),
        ("v.bin", b"999999999999 300\na \0\0", "999,999,999,999 vectors of 300 features have .*truncated"),
        ("v.bin", b"words", "the first line b'' is not the number of words and of features"),
        ("v.txt", b"2 2\na 1 2\n", "1 words, but its first line says 2"),
        ("v.txt", b"a 1 2\nb 1\n", "v.txt:2: 1 numbers, but 2 are expected"),
        ("v.vec", b"a 1 x\n", "v.vec:1: not a word and its vector"),
        ("v.vec", b"a 1 nan\n", "a value is not finite"),
        ("v.bin", b"0 2\n", "no vectors found"),
    ],
)
def test_invalid_files_raise(tmp_path, name, contents, message):
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(UserError, match=message):
        word_vectors.read(str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("v.vec", b"3 1\n 1\na 2\nb 3\n"),
        ("v.txt", b"a 2\n 1\nb 3\n"),
        ("v.bin", b"3 1\na \0\0\0\x40\n \0\0\x80\x3f\nb \0\0\x40\x40\n"),
    ],
)
def test_vectors_without_a_word_are_left_out(tmp_path, name, contents, caplog):
    (tmp_path / name).write_bytes(contents)
    found = word_vectors.read(str(tmp_path / name))
    assert found.words == ("a", "b") and found.vectors.tolist() == [[2.0], [3.0]]
    assert f"{name}: 1 vectors have no word and are left out" in caplog.text


def test_fasttext_model_with_an_empty_word_is_read(tmp_path):
    """Its vocabulary, a word and its count per line, has the other words."""
    words = WordCounts(("b", "", "a"), np.array([3, 2, 1]))
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    model = fasttext_files.FastTextModel(words, Subwords(0, 0, 0), values, values + 10)
    (tmp_path / "m.bin").write_bytes(fasttext_files.to_bytes(model))
    _, leaves, _, vocabulary = convert_vectors.read(str(tmp_path / "m.bin"), None)
    assert vocabulary == b"b 3\na 1\n" and leaves[TABLE][3:].tolist() == [[0, 1], [4, 5]]


@pytest.mark.parity
def test_version_11_of_fasttext_has_classifiers_without_ngrams(tmp_path):
    fasttext = pytest.importorskip("fasttext")
    (tmp_path / "text.txt").write_text("__label__a quiet river\n__label__b old stone bridge\n" * 20)
    settings = {"minn": 2, "maxn": 3, "bucket": 20, "dim": 4, "epoch": 3, "thread": 1, "verbose": 0}
    fasttext.train_supervised(str(tmp_path / "text.txt"), **settings).save_model(str(tmp_path / "12.bin"))
    contents = (tmp_path / "12.bin").read_bytes()
    (tmp_path / "11.bin").write_bytes(contents[:4] + struct.pack("<i", 11) + contents[8:])
    library = fasttext.load_model(str(tmp_path / "11.bin"))
    found = fasttext_files.read("11.bin", (tmp_path / "11.bin").read_bytes())
    assert found.subwords.longest == 0 and found.inputs.shape == (len(found.words.words), 4)
    for word, row in zip(found.words.words, found.inputs, strict=True):
        np.testing.assert_array_equal(library.get_word_vector(word), row)
    assert fasttext_files.read("12.bin", contents).subwords.longest == 3
    with pytest.raises(UserError, match="version 13 of fastText's format. Give a file of version 11 or 12"):
        fasttext_files.read("13.bin", contents[:4] + struct.pack("<i", 13) + contents[8:])


def test_other_size_raises(tmp_path):
    (tmp_path / "v.txt").write_text("a 1 2\n")
    with pytest.raises(UserError, match="vectors of 2 features, but embed_dim=3"):
        word_vectors.read(str(tmp_path / "v.txt"), 3)


def test_conversion_to_a_run_and_back(tmp_path, capsys):
    source, run, result = (str(tmp_path / name) for name in ("in.bin", "run", "out.vec"))
    (tmp_path / "in.bin").write_bytes(word_vectors.to_bytes(source, FOUND))
    convert(Source(source), Target(run))
    loaded = open_model(run)
    convert(Source(run, model=loaded.config), Target(result))
    found = word_vectors.read(result)
    assert found.words == WORDS and found.vectors.tobytes() == VALUES.tobytes()
    embed(loaded, neighbors_of="queen", count=2)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["0.999", "king"], ["0.700", "naïve"]]
    with pytest.raises(UserError, match="NEIGHBOURS=Queen: not among the 4 words"):
        embed(loaded, neighbors_of="Queen")
    (tmp_path / "texts.txt").write_text("the queen unknown\n")
    vectors = np.load(embed(loaded, input_path=str(tmp_path / "texts.txt"), output_path=str(tmp_path / "o.npz")))
    np.testing.assert_allclose(vectors["vectors"], [(VALUES[0] + VALUES[2]) / 2], rtol=1e-6)


def test_end_of_sentence_has_its_row(tmp_path):
    (tmp_path / "v.txt").write_text("2 2\n</s> 7 8\na 1 2\n")
    config, leaves, _, vocabulary = convert_vectors.read(str(tmp_path / "v.txt"), None)
    assert config.vocab_size == 4 and vocabulary == b"a 0\n"
    assert leaves[TABLE].tolist() == [[0, 0], [7, 8], [0, 0], [1, 2]]
    (tmp_path / "v.txt").write_text("</s> 7 8\n<unk> 7 8\n")
    with pytest.raises(UserError, match="v.txt: no words besides </s>, <unk>"):
        convert_vectors.read(str(tmp_path / "v.txt"), None)


@pytest.mark.parity
def test_gensim_reads_the_files_and_its_files_are_read(tmp_path):
    models = pytest.importorskip("gensim.models")
    for name in NAMES:
        path = tmp_path / name
        path.write_bytes(word_vectors.to_bytes(str(path), FOUND))
        options = {"binary": name.endswith(".bin"), "no_header": name == "v.glove.txt"}
        theirs = models.KeyedVectors.load_word2vec_format(str(path), **options)
        assert theirs.index_to_key == list(WORDS) and np.array_equal(theirs.vectors, VALUES)
    for name in ("g.bin", "g.txt"):
        theirs.save_word2vec_format(str(tmp_path / name), binary=name == "g.bin")
        found = word_vectors.read(str(tmp_path / name))
        assert found.words == WORDS and np.array_equal(found.vectors, VALUES)
