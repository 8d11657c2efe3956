"""fastText: n-grams, hashes, updates, and files that its library reads and writes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from t5x_like import convert_vectors
from t5x_like.data.subwords import Subwords, hash_of, ngrams
from t5x_like.errors import UserError
from t5x_like.interop import fasttext_files
from t5x_like.models.word_vectors import WordVectorsConfig
from t5x_like.objectives.row_updates import Tables
from t5x_like.objectives.word_vectors.fasttext import SubwordBagOfWords, SubwordSkipGram, mean_vectors
from t5x_like.objectives.word_vectors.interface import TABLE
from t5x_like.objectives.word_vectors.word2vec import shuffled
from t5x_like.objectives.word_vectors.word_contexts import contexts
from t5x_like.objectives.word_vectors.word_outputs import HierarchicalSoftmax
from t5x_like.optimizers.rows import row_sgd
from t5x_like.vocabularies import word_counts

OUTPUT = "objective/output/embedding"
BUCKETS, DIM = 50, 8
WORDS = ("the", "naïve", "queen", "ox")


def test_ngrams_and_hashes_by_hand():
    assert [hash_of(text) for text in (b"", b"a", b"foobar")] == [
        0x811C9DC5,
        0xE40C292C,
        0xBF9CF968,
    ]  # published FNV-1a
    # "é" is 0xC3 0xA9; both bytes are negative as signed characters.
    h = (0x811C9DC5 ^ 0xFFFFFFC3) * 16777619 % 2**32
    assert hash_of("é".encode()) == (h ^ 0xFFFFFFA9) * 16777619 % 2**32
    assert list(ngrams("né", 2, 3)) == [b"<n", "<né".encode(), "né".encode(), "né>".encode(), "é>".encode()]
    assert list(ngrams("ab", 1, 1)) == list(ngrams("ab", 0, 1)) == [b"a", b"b"]


@pytest.fixture
def objective(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{word} {9 - index}\n" for index, word in enumerate(WORDS)))
    return SubwordSkipGram(
        str(tmp_path / "vocab.txt"), buckets=BUCKETS, window=1, subsampling=0.0, examples_per_update=8
    )


def test_one_update_by_hand(objective):
    """With one example, the rows of the word get the gradient of their mean, undivided."""
    rng = np.random.default_rng(0)
    values = {
        TABLE: jnp.asarray(rng.normal(size=(7 + BUCKETS, DIM)), jnp.float32),
        OUTPUT: jnp.asarray(rng.normal(size=(7, DIM)), jnp.float32),
    }
    tokens = jnp.array([[4, 5, 1]])  # two examples: each word predicts the other one
    batch = {"encoder_input_tokens": tokens, "encoder_segment_ids": jnp.ones_like(tokens)}
    key = jax.random.key(0)
    found = objective.update(Tables(values, {}), batch, row_sgd(0.1).apply, rate=0.1, key=key)
    assert float(found.metrics["loss"][1]) == 2

    expected = {name: np.array(value, np.float64) for name, value in values.items()}
    old = {name: value.copy() for name, value in expected.items()}
    number = 7 + BUCKETS
    stream_key, order_key, loop_key = jax.random.split(key, 3)
    stream = contexts(tokens, jnp.ones(7), 1, stream_key)
    candidates = shuffled(objective.examples(stream), order_key)
    candidates = jnp.pad(candidates, (0, -candidates.size % 8))[:8]
    _, _, targets = objective.inputs(stream, candidates, number)
    decisions = objective.output.decisions(objective.counts, targets, jax.random.fold_in(loop_key, 0))
    assert sorted(targets[:2].tolist()) == [4, 5]
    for row in range(2):
        word = 9 - int(targets[row])
        rows = [word, *(7 + bucket for bucket in objective.subwords.buckets_of(WORDS[word - 3]))]
        mean, error = old[TABLE][rows].mean(axis=0), np.zeros(DIM)
        for id_, label, weight in zip(*(np.asarray(each)[row] for each in decisions), strict=True):
            step = 0.1 * weight * (label - 1 / (1 + np.exp(-mean @ old[OUTPUT][id_])))
            error += step * old[OUTPUT][id_]
            expected[OUTPUT][id_] += step * mean
        np.add.at(expected[TABLE], rows, error)
    assert_close(dict(found.tables.values), expected)
    vectors = np.asarray(objective.vectors(values, WORDS))
    rows = [5, *(7 + bucket for bucket in objective.subwords.buckets_of("queen"))]
    np.testing.assert_allclose(vectors[5], old[TABLE][rows].mean(axis=0), rtol=1e-4, atol=1e-5)


def test_vectors_of_many_words_with_a_long_one(monkeypatch):
    """A padded array of the n-grams of all words would have 1.6 GB."""
    words = [f"w{number}" for number in range(10_000)] + ["x" * 10_000]
    rng, subwords = np.random.default_rng(0), Subwords(BUCKETS, 3, 6)
    table = rng.normal(size=(3 + len(words) + BUCKETS, 2)).astype(np.float32)
    monkeypatch.setattr(Subwords, "rows", None)
    found = np.asarray(mean_vectors(subwords, jnp.asarray(table), words))
    assert np.array_equal(found[:3], table[:3])
    for index in (0, 4095, 4096, 10_000):
        rows = [3 + index, *(3 + len(words) + bucket for bucket in subwords.buckets_of(words[index]))]
        np.testing.assert_allclose(found[3 + index], table[rows].mean(axis=0, dtype=np.float64), rtol=1e-5)


def test_a_bag_of_words_updates_all_rows_of_its_context(tmp_path, objective):
    """One example: the word in the middle of three. Files of both kinds are told apart."""
    bag = SubwordBagOfWords(
        objective.vocabulary_path, buckets=BUCKETS, window=1, subsampling=0.0, examples_per_update=4
    )
    found = contexts(jnp.array([[4, 5, 6, 1]]), jnp.ones(7), 1, jax.random.key(0))
    number = 7 + BUCKETS
    (middle,) = np.flatnonzero(np.asarray(found.words) == 5)
    inputs, counted, targets = bag.inputs(found, jnp.array([middle]), number)
    expected = [
        row
        for word in ("naïve", "ox")
        for row in (3 + WORDS.index(word), *(7 + bucket for bucket in bag.subwords.buckets_of(word)))
    ]
    assert targets.tolist() == [5] and inputs[0][counted[0]].tolist() == expected
    config, path = WordVectorsConfig(vocab_size=7, embed_dim=DIM, buckets=BUCKETS), str(tmp_path / "v.bin")
    convert_vectors.write(config, bag, random_leaves(WORDS), objective.vocabulary_path, path)
    assert "SubwordBagOfWords" in convert_vectors.read(path, None)[2]


def test_invalid_settings_raise(objective):
    with pytest.raises(UserError, match="MIN_NGRAM=4, MAX_NGRAM=3"):
        SubwordSkipGram(shortest=4, longest=3)
    with pytest.raises(UserError, match="BUCKETS=50: the model has 7"):
        objective.init(
            jax.random.key(0), WordVectorsConfig(vocab_size=7, embed_dim=2, buckets=7).make(jax.random.key(0))
        )


def random_leaves(words):
    rng = np.random.default_rng(0)
    rows = 3 + len(words)
    values = {TABLE: rng.normal(size=(rows + BUCKETS, DIM)), OUTPUT: rng.normal(size=(rows, DIM))}
    leaves = {name: value.astype(np.float32) for name, value in values.items()}
    for leaf in leaves.values():
        leaf[[0, 2]] = 0  # padding and unknown words are not in the file
    return leaves


def test_files_keep_words_counts_and_all_rows(tmp_path, objective):
    config, leaves = WordVectorsConfig(vocab_size=7, embed_dim=DIM, buckets=BUCKETS), random_leaves(WORDS)
    path = str(tmp_path / "v.bin")
    convert_vectors.write(config, objective, leaves, str(tmp_path / "vocab.txt"), path)
    found, again, described, vocabulary = convert_vectors.read(path, None)
    assert found == config and vocabulary == (tmp_path / "vocab.txt").read_bytes()
    assert "SubwordSkipGram" in described and f"buckets = {BUCKETS}" in described
    assert again.keys() == leaves.keys() and all(np.array_equal(again[name], leaves[name]) for name in leaves)


def test_words_that_are_not_utf_8_are_left_out(tmp_path, objective, caplog):
    """Published files have such words."""
    config, leaves = WordVectorsConfig(vocab_size=7, embed_dim=DIM, buckets=BUCKETS), random_leaves(WORDS)
    path = tmp_path / "v.bin"
    convert_vectors.write(config, objective, leaves, str(tmp_path / "vocab.txt"), str(path))
    path.write_bytes(path.read_bytes().replace(b"na\xc3\xafve", b"na\xefvee"))
    found, again, _, vocabulary = convert_vectors.read(str(path), None)
    kept = [0, 1, 2, 3, 5, 6, *range(7, 7 + BUCKETS)]
    assert found.vocab_size == 6 and vocabulary == b"the 9\nqueen 7\nox 6\n"
    assert np.array_equal(again[TABLE], leaves[TABLE][kept]) and "1 words are empty or not valid UTF-8" in caplog.text


@pytest.mark.parametrize(("lengths", "described"), [((0, 3), (1, 3)), ((3, 0), (0, 0))])
def test_lengths_of_ngrams_that_fasttext_ignores(tmp_path, lengths, described):
    """`minn` 0 is 1 if there are n-grams, and is not read if `maxn` is 0."""
    inputs, outputs = np.zeros((4 + 5, 2), np.float32), np.zeros((4, 2), np.float32)
    counts = fasttext_files.WordCounts(WORDS, np.array([4, 3, 2, 1]))
    model = fasttext_files.FastTextModel(
        counts,
        Subwords(5, *lengths),
        inputs,
        outputs[:1],
        kind=fasttext_files.CLASSIFIER,
        loss=fasttext_files.SOFTMAX,
        word_ngrams=2,
        labels=fasttext_files.WordCounts(("a",), np.ones(1, np.int64)),
    )
    (tmp_path / "v.bin").write_bytes(fasttext_files.to_bytes(model))
    text = convert_vectors.read(str(tmp_path / "v.bin"), None)[2]
    assert all(f".{name} = {value}\n" in text for name, value in zip(("shortest", "longest"), described, strict=True))


@pytest.mark.parametrize("loss", [fasttext_files.TREE, fasttext_files.SOFTMAX])
def test_output_vectors_without_negative_samples_are_not_read(tmp_path, objective, loss):
    """Rows of a tree belong to its nodes, not to words."""
    config, leaves = WordVectorsConfig(vocab_size=7, embed_dim=DIM, buckets=BUCKETS), random_leaves(WORDS)
    path = tmp_path / "v.bin"
    convert_vectors.write(config, objective, leaves, str(tmp_path / "vocab.txt"), str(path))
    model = fasttext_files.read(str(path), path.read_bytes())
    path.write_bytes(fasttext_files.to_bytes(model._replace(loss=loss)))
    _, again, _, _ = convert_vectors.read(str(path), None)
    assert again.keys() == {TABLE} and np.array_equal(again[TABLE], leaves[TABLE])


def test_binary_file_of_hierarchical_softmax_raises(tmp_path, objective):
    (tmp_path / "vocab.txt").write_bytes(word_counts.to_bytes(objective.counts))
    config, leaves = WordVectorsConfig(vocab_size=7, embed_dim=DIM, buckets=BUCKETS), random_leaves(WORDS)
    del leaves[OUTPUT]
    other = SubwordSkipGram(buckets=BUCKETS, output=HierarchicalSoftmax())
    with pytest.raises(UserError, match="the run has HierarchicalSoftmax. Give a .vec file"):
        convert_vectors.write(config, other, leaves, str(tmp_path / "vocab.txt"), str(tmp_path / "v.bin"))
    convert_vectors.write(config, other, leaves, str(tmp_path / "vocab.txt"), str(tmp_path / "v.vec"))


@pytest.mark.parity
def test_the_library_reads_the_file_and_its_file_is_the_same(tmp_path, objective):
    fasttext = pytest.importorskip("fasttext")
    config, leaves = WordVectorsConfig(vocab_size=7, embed_dim=DIM, buckets=BUCKETS), random_leaves(WORDS)
    path, copy = tmp_path / "v.bin", tmp_path / "copy.bin"
    convert_vectors.write(config, objective, leaves, str(tmp_path / "vocab.txt"), str(path))
    theirs = fasttext.load_model(str(path))
    assert theirs.get_words() == ["</s>", *WORDS]
    ours = dict(zip(WORDS, np.asarray(objective.vectors(leaves, WORDS))[3:], strict=True))
    ours["naïvely"] = objective.compose("naïvely", leaves[TABLE])  # not in the vocabulary
    for word, vector in ours.items():
        buckets = theirs.get_subwords(word)[1][word in WORDS :].tolist()
        assert buckets == [1 + len(WORDS) + bucket for bucket in objective.subwords.buckets_of(word)]
        np.testing.assert_allclose(theirs.get_word_vector(word), vector, rtol=1e-5, atol=1e-6)
    theirs.save_model(str(copy))
    assert copy.read_bytes() == path.read_bytes()


@pytest.mark.parity
def test_vectors_of_ngrams_from_length_0_equal_the_library(tmp_path):
    fasttext = pytest.importorskip("fasttext")
    (tmp_path / "text.txt").write_text("naïve queens über 日本語 ox x\n" * 20)
    settings = {"minn": 0, "maxn": 3, "dim": 4, "bucket": 50, "minCount": 1, "epoch": 1, "thread": 1, "verbose": 0}
    theirs = fasttext.train_unsupervised(str(tmp_path / "text.txt"), **settings)
    theirs.save_model(str(tmp_path / "v.bin"))
    _, leaves, _, vocabulary = convert_vectors.read(str(tmp_path / "v.bin"), None)
    subwords = fasttext_files.read("v.bin", (tmp_path / "v.bin").read_bytes()).subwords
    words = [line.rpartition(" ")[0] for line in vocabulary.decode().splitlines()]
    vectors = mean_vectors(subwords, jnp.asarray(leaves[TABLE]), words)
    for word, vector in zip(words, np.asarray(vectors)[3:], strict=True):
        np.testing.assert_allclose(vector, theirs.get_word_vector(word), rtol=1e-5, atol=1e-6)


@pytest.mark.parity
def test_gensim_reads_the_file(tmp_path, objective):
    gensim = pytest.importorskip("gensim.models.fasttext")
    config, leaves = WordVectorsConfig(vocab_size=7, embed_dim=DIM, buckets=BUCKETS), random_leaves(WORDS)
    path = tmp_path / "v.bin"
    convert_vectors.write(config, objective, leaves, str(tmp_path / "vocab.txt"), str(path))
    theirs = gensim.load_facebook_model(str(path)).wv
    for word, vector in zip(WORDS, np.asarray(objective.vectors(leaves, WORDS))[3:], strict=True):
        np.testing.assert_allclose(theirs[word], vector, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(theirs["naïvely"], objective.compose("naïvely", leaves[TABLE]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda contents: contents[:-3], "3 bytes too early. The file is truncated"),
        (lambda contents: contents[:70], "is truncated"),
        (lambda contents: contents[:4] + b"\x0d" + contents[5:], "version 13 of fastText's format"),
        (lambda contents: contents[:36] + b"\x03" + contents[37:], "a classifier with loss 2"),
    ],
)
def test_invalid_files_raise(change, message):
    rng = np.random.default_rng(0)
    counts = fasttext_files.WordCounts(WORDS, np.array([4, 3, 2, 1]))
    inputs, outputs = (rng.normal(size=(size, 2)).astype(np.float32) for size in (4 + 5, 4))
    model = fasttext_files.FastTextModel(counts, Subwords(5, 3, 6), inputs, outputs)
    contents = fasttext_files.to_bytes(model)
    found = fasttext_files.read("v.bin", contents)
    assert found.words.words == WORDS and np.array_equal(found.inputs, inputs)
    with pytest.raises(UserError, match=message):
        fasttext_files.read("v.bin", change(contents))
