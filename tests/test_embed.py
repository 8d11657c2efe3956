"""`embed`: vectors of texts and tokens, their files, and nearest neighbors."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
import small_models
from families import FAMILIES, random_model, tokens
from numerics import assert_close

from t5x_like.adapters.prompt import Prompt
from t5x_like.embed import embed
from t5x_like.errors import UserError
from t5x_like.inference import neighbors, vector_files
from t5x_like.inference.layer_mix import LayerMix
from t5x_like.inference.open_words import OpenWords
from t5x_like.inference.text_vectors import VectorComputation, pool
from t5x_like.loading import open_model
from t5x_like.models.bert import BertConfig

TEXTS = ["play in the garden.", "a play", "they play cards in a garden"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "bert"
    small_models.write_bert(directory, num_layers=2)
    return open_model(str(directory))


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")
    return str(tmp_path / "in.txt")


def assert_vectors(actual, expected):
    assert_close({"vectors": actual}, {"vectors": expected})


def run(loaded, texts, tmp_path, name, **options):
    return embed(loaded, input_path=texts, output_path=str(tmp_path / name), overwrite=True, **options)


def hidden_states(loaded, text):
    """Returns the hidden states of one text without padding, `[layers + 1, tokens, embed]`."""
    pieces = small_models.PIECES
    words = text.replace(".", " .").split()
    ids = [pieces.index(("##" if at else "") + letter) for word in words for at, letter in enumerate(word)]
    row = np.array([[pieces.index("[CLS]"), *ids, pieces.index("[SEP]")]])
    names = ("encoder/embedding", "encoder/layers/0/hidden", "encoder/output")
    captured = loaded.read_model()({"encoder_input_tokens": row}, capture=names).captured
    return np.stack([captured[name][0] for name in names])


def test_vectors_of_texts_in_all_formats(bert, texts, tmp_path):
    expected = np.stack([hidden_states(bert, text)[-1].mean(axis=0) for text in TEXTS])
    found = np.load(run(bert, texts, tmp_path, "out.npz"))["vectors"]
    assert_vectors(found, expected)
    assert_vectors(np.load(run(bert, texts, tmp_path, "batches.npz", batch_size=2))["vectors"], expected)
    lines = [json.loads(line) for line in open(run(bert, texts, tmp_path, "out.jsonl"))]
    assert [line["inputs"] for line in lines] == TEXTS
    np.testing.assert_array_equal(np.float32([line["vector"] for line in lines]), found)
    np.testing.assert_array_equal(np.loadtxt(run(bert, texts, tmp_path, "out.txt"), np.float32), found)
    unit = np.load(run(bert, texts, tmp_path, "unit.npz", normalize=True))["vectors"]
    assert_vectors(unit, expected / np.linalg.norm(expected, axis=1, keepdims=True))


@pytest.mark.full
def test_vectors_of_tokens_and_mixed_layers(bert, texts, tmp_path):
    options = dict(level="token", layers={0: 0.25, -1: 2.0})
    found = np.load(run(bert, texts, tmp_path, "out.npz", **options))
    states = [hidden_states(bert, text) for text in TEXTS]
    expected = np.concatenate([0.25 * of_text[0] + 2 * of_text[2] for of_text in states])
    assert_vectors(found["vectors"], expected)
    assert found["offsets"].tolist() == np.cumsum([0, *(len(of_text[0]) for of_text in states)]).tolist()
    assert found["tokens"][:4].tolist() == ["[CLS]", "p", "##l", "##a"] and found["tokens"][-1] == "[SEP]"
    lines = open(run(bert, texts, tmp_path, "out.txt", **options)).read().split("\n\n")[:-1]
    assert [line.split(" ")[0] for line in lines[1].split("\n")] == ["[CLS]", "a", "p", "##l", "##a", "##y", "[SEP]"]


def test_hdf5_equals_npz(bert, texts, tmp_path):
    h5py = pytest.importorskip("h5py")
    arrays = np.load(run(bert, texts, tmp_path, "out.npz", level="token"))
    with h5py.File(run(bert, texts, tmp_path, "out.hdf5", level="token")) as file:
        np.testing.assert_array_equal(file["vectors"][()], arrays["vectors"])
        assert file["tokens"].asstr()[:].tolist() == arrays["tokens"].tolist()


def test_tokens_with_line_breaks_have_one_line(tmp_path):
    vector_files.write(str(tmp_path / "out.txt"), [np.float32([[1, 2], [3, 4]])], [{}], [[" a", "\n"]])
    assert (tmp_path / "out.txt").read_text() == " a 1.0 2.0\n\\n 3.0 4.0\n\n"


@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
def test_nul_in_a_token_is_replaced(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    h5py = pytest.importorskip("h5py") if suffix == ".hdf5" else None
    vector_files.write(str(path), [np.float32([[1, 2], [3, 4]])], [{}], [["a\0b", "\0"]])
    tokens = h5py.File(path)["tokens"].asstr()[:] if h5py else np.load(path)["tokens"]
    assert tokens.tolist() == ["a\ufffdb", "\ufffd"]


def test_pooling_by_hand():
    vectors = jnp.array([[[1.0], [2.0], [6.0], [90.0]]])
    is_token = jnp.array([[True, True, True, False]])
    assert pool(vectors, is_token, "mean") == 3.0
    assert pool(vectors, is_token, "cls") == 1.0
    assert pool(vectors, is_token, "cls", -1) == pool(vectors, is_token, "last") == 6.0


@pytest.mark.full
@pytest.mark.parametrize("layers", ["output", 1])
@pytest.mark.parametrize(
    "name, changes", [("etc", {"tokens_per_global": 2}), ("bert", {"adapters": (Prompt(length=3),)})]
)
def test_vectors_are_those_of_tokens(name, changes, layers):
    """Global tokens of ETC and virtual tokens come before the text."""
    config = dataclasses.replace(FAMILIES[name].config, **changes)
    model = random_model(config)
    batch = {"encoder_input_tokens": tokens(2, 7), "encoder_segment_ids": np.ones((2, 7), np.int32)}
    outputs = model(batch, capture=("encoder/layers/0/hidden",))
    expected = outputs.hidden if layers == "output" else outputs.captured["encoder/layers/0/hidden"][:, -7:]
    for pooling, of_text in (("cls", expected[:, 0]), ("mean", expected.mean(axis=1)), (None, expected)):
        computation = VectorComputation(config, LayerMix.of(config, layers), pooling)
        np.testing.assert_allclose(computation.compute(model, batch, None, None), of_text, atol=1e-5)


def test_neighbors_of_a_word_in_sentences(bert, texts, capsys):
    embed(bert, input_path=texts, neighbors_of="Play", count=2)
    blocks = capsys.readouterr().out.splitlines()
    assert blocks[0] == "1: [play] in the garden." and blocks[3] == "2: a [play]" and len(blocks) == 9
    states = [hidden_states(bert, text)[-1] for text in TEXTS]
    first, second = states[0][1:5].mean(axis=0), states[1][2:6].mean(axis=0)
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    shown = dict(reversed(line.strip().split("  ")) for line in blocks[1:3])
    assert float(shown["2: a [play]"]) == pytest.approx(cosine, abs=6e-4)


def test_words_keep_the_punctuation_of_their_tokens():
    """Where only spaces separate tokens. Two words in one token, and words of several tokens, are left out there."""
    sentences, vocabulary = ["I play.", "(They) play, too; in-out play"], OpenWords()
    rows = [vocabulary.encode(text) for text in sentences]
    found = neighbors.occurrences(sentences, rows, vocabulary, 0)
    shown = [(sentences[each.sentence][each.start : each.stop], each.sentence, each.first, each.last) for each in found]
    words = [
        ("I", 0, 0, 1),
        ("play", 0, 1, 2),
        ("They", 1, 0, 1),
        ("play", 1, 1, 2),
        ("too", 1, 2, 3),
        ("play", 1, 4, 5),
    ]
    assert shown == words
    cut = neighbors.occurrences(sentences, [row[:2] for row in rows], vocabulary, 0)
    assert cut == [each for each in found if each.last <= 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(output_path="out.pickle"), "unknown format"),
        (dict(output_path="out.npz", level="word"), "LEVEL='word': unknown"),
        (dict(output_path="out.npz", pooling="max"), "POOLING='max': unknown"),
        (dict(output_path="out.npz", layers=3), r"LAYERS=3: the layers of BertConfig are 0 … 2"),
        (dict(output_path="out.npz", text_column="text"), "TEXT_COLUMN=text: .* has inputs"),
        (dict(output_path="out.npz", neighbors_of="play"), "OUTPUT_PATH=out.npz: NEIGHBOURS=play prints neighbors"),
        (dict(neighbors_of="queen"), "NEIGHBOURS=queen: not a word of the 3 sentences"),
    ],
)
def test_invalid_settings_raise(bert, texts, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        embed(bert, input_path=texts, **options)
    with pytest.raises(UserError, match="NEIGHBOURS=play: BertConfig has no static word vectors"):
        embed(bert, neighbors_of="play")


def test_layers_have_the_numbers_of_transformers():
    config = BertConfig(vocab_size=8, embed_dim=8, mlp_dim=8, num_heads=2, head_dim=4, num_layers=3)
    assert LayerMix.of(config, (1, -1)).weights == {"encoder/layers/0/hidden": 0.5, "encoder/output": 0.5}
    assert LayerMix.of(config).weights == {"encoder/output": 1.0}


@pytest.mark.parity
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_vectors_equal_transformers(name, texts, tmp_path):
    import torch
    import transformers

    directory = tmp_path / name
    getattr(small_models, f"write_{name}")(directory)
    kind = transformers.T5Tokenizer if name == "t5" else transformers.AutoTokenizer
    tokenizer = kind.from_pretrained(directory)
    model = transformers.AutoModel.from_pretrained(directory).eval()
    model = model.encoder if name == "t5" else model
    found = np.load(run(open_model(str(directory)), texts, tmp_path, "out.npz", layers=(0, 1)))["vectors"]
    for vector, text in zip(found, TEXTS, strict=True):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
        assert_vectors(vector, (states[0] + states[1])[0].mean(dim=0).numpy() / 2)
