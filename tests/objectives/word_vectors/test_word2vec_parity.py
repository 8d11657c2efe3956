"""word2vec beside gensim: counts, codes of the tree, losses and updates of all pairs, and the vectors of a text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close
from published_word_vectors import Published, exact, keep_order, near
from word_similarities import DIM as TEXT_DIM
from word_similarities import EPOCHS, MIN_COUNT, Text, assert_agree, train

from t5x_like.objectives.row_updates import Tables
from t5x_like.objectives.word_vectors.interface import TABLE
from t5x_like.objectives.word_vectors.word2vec import ContinuousBagOfWords, SkipGram
from t5x_like.objectives.word_vectors.word_outputs import HierarchicalSoftmax, NegativeSampling
from t5x_like.optimizers.rows import row_sgd
from t5x_like.vocabularies import word_counts
from t5x_like.vocabularies.word_counts import FIRST_WORD_ID

# No two nodes of their tree have equal counts, whose order would be a choice of the program.
COUNTS = (40, 30, 20, 12, 9, 7, 5, 3)
WORDS = tuple(f"w{index}" for index in range(len(COUNTS)))
DIM = 16
# Counts to this power leave one word to draw, the most frequent one, so that both libraries draw the same negatives.
ONE_WORD = 150
OUTPUTS = {
    "hierarchical": (HierarchicalSoftmax(), {"hs": 1, "negative": 0}, "syn1"),
    "negative": (NegativeSampling(1, power=ONE_WORD), {"hs": 0, "negative": 1, "ns_exponent": ONE_WORD}, "syn1neg"),
}


@pytest.fixture(scope="module")
def corpus():
    """Sentences of two or more words, as ids from 0: gensim also scores words without a context."""
    rng = np.random.default_rng(0)
    ids = rng.permutation(np.repeat(np.arange(len(COUNTS)), COUNTS))
    ends = np.cumsum(rng.integers(2, 10, len(ids)))
    return np.split(ids, ends[ends < len(ids) - 1])


@pytest.fixture(scope="module")
def theirs(corpus):
    """Returns `make(kind, output) -> (model of gensim, sentences of words)`, with random vectors."""

    def make(kind, output):
        models = pytest.importorskip("gensim.models")
        sentences = [[WORDS[index] for index in sentence] for sentence in corpus]
        _, options, table = OUTPUTS[output]
        model = models.Word2Vec(
            sg=int(kind is SkipGram),
            cbow_mean=1,
            vector_size=DIM,
            window=1,
            min_count=1,
            sample=0,
            workers=1,
            **options,
        )
        model.build_vocab(sentences)
        assert tuple(model.wv.index_to_key) == WORDS
        rng = np.random.default_rng(1)
        model.wv.vectors = rng.normal(size=(len(WORDS), DIM), scale=0.5).astype(np.float32)
        setattr(model, table, rng.normal(size=(len(WORDS), DIM), scale=0.5).astype(np.float32))
        return model, sentences

    return make


@pytest.fixture
def vocabulary_path(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{word} {n}\n" for word, n in zip(WORDS, COUNTS, strict=True)))
    return str(tmp_path / "vocab.txt")


def our_tables(objective, vectors, outputs):
    """Returns the tables of an objective with values of gensim; those of negative samples have special ids, too."""
    special = np.zeros((FIRST_WORD_ID, DIM), np.float32)
    vectors = np.concatenate([special, vectors])
    if isinstance(objective.output, NegativeSampling):
        outputs = np.concatenate([special, outputs])
    name = f"objective/{objective.output.table}/embedding"
    return name, Tables({TABLE: jnp.asarray(vectors), name: jnp.asarray(outputs)}, {})


def signed_scores(model, sentence, is_skip_gram):
    """Returns the scores of all decisions of a sentence, of which sigmoids are taken, by loops over words."""
    found = []
    for at, word in enumerate(sentence):
        others = [sentence[near] for near in (at - 1, at + 1) if 0 <= near < len(sentence)]
        inputs = model.wv.vectors[others]
        signs = 1.0 - 2.0 * model.wv.get_vecattr(WORDS[word], "code")
        nodes = model.syn1[model.wv.get_vecattr(WORDS[word], "point")]
        means = inputs if is_skip_gram else [inputs.mean(axis=0)]
        found += [signs * (nodes @ mean) for mean in means]
    return np.concatenate(found)


def arguments():
    """Returns the 1,000 arguments from -6 at which gensim knows sigmoids."""
    return (np.arange(1000) / 1000 * 2 - 1) * 6


def looked_up(scores):
    """Returns logarithms of sigmoids as gensim does: at one of `arguments`, whose index is rounded down."""
    return -np.log1p(np.exp(-arguments()))[((scores + 6) * (1000 // 6 // 2)).astype(int)]


def sigmoid_of_gensim(score):
    """Returns the sigmoid of `looked_up`; None for scores beyond ±6, of which gensim makes no update."""
    return float(np.exp(looked_up(np.float64(score)))) if abs(score) < 6 else None


@pytest.mark.parity
@pytest.mark.parametrize("kind", [SkipGram, ContinuousBagOfWords])
def test_counts_codes_and_losses_equal_those_of_gensim(vocabulary_path, corpus, theirs, kind):
    model, sentences = theirs(kind, "hierarchical")
    scores = model.score(sentences, total_sentences=len(sentences))
    assert tuple(model.wv.get_vecattr(word, "count") for word in WORDS) == COUNTS
    objective = kind(vocabulary_path, output=HierarchicalSoftmax(), window=1, subsampling=0.0)

    targets = jnp.arange(len(WORDS)) + FIRST_WORD_ID
    decisions = objective.output.decisions(word_counts.read(vocabulary_path), targets, jax.random.key(0))
    for word, ids, labels, weights in zip(WORDS, *map(np.asarray, decisions), strict=True):
        assert ids[weights > 0].tolist() == model.wv.get_vecattr(word, "point").tolist()
        assert (1 - labels[weights > 0]).tolist() == model.wv.get_vecattr(word, "code").tolist()

    _, tables = our_tables(objective, model.wv.vectors, model.syn1)

    @jax.jit
    def loss(batch):
        keep_tables = lambda table, state, *_: (table, state)  # noqa: E731
        updated = objective.update(tables, batch, keep_tables, rate=jnp.zeros(()), key=jax.random.key(0))
        return updated.metrics["loss"][0]

    longest = max(map(len, corpus))
    for sentence, score in zip(corpus, scores, strict=True):
        row = np.zeros((1, longest), np.int32)
        row[0, : len(sentence)] = sentence + FIRST_WORD_ID
        ours = loss({"encoder_input_tokens": row, "encoder_segment_ids": np.minimum(row, 1)})
        scores_of_decisions = signed_scores(model, sentence, kind is SkipGram)
        np.testing.assert_allclose(score, looked_up(scores_of_decisions).sum(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ours, np.logaddexp(0, -scores_of_decisions).sum(), rtol=1e-5, atol=1e-6)


@pytest.mark.parity
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("kind", [SkipGram, ContinuousBagOfWords])
def test_updates_equal_those_of_gensim(vocabulary_path, corpus, theirs, kind, output, monkeypatch):
    """One update after another: gensim's equal its formulas with its table of sigmoids, ours with exact sigmoids."""
    model, sentences = theirs(kind, output)
    made, _, name = OUTPUTS[output]
    vectors, outputs, rate = model.wv.vectors.copy(), getattr(model, name).copy(), 0.1
    model.train(sentences, total_examples=len(sentences), epochs=1, start_alpha=rate, end_alpha=rate, compute_loss=True)

    def decisions(target):
        if output == "negative":
            return [(target, 1)] + [(0, 0)] * (target != 0)
        return [
            (node, 1 - int(bit))
            for node, bit in zip(
                *(model.wv.get_vecattr(WORDS[target], each) for each in ("point", "code")), strict=True
            )
        ]

    contexts = [found for sentence in corpus for found in near(sentence.tolist())]
    if kind is SkipGram:
        examples = [([other], word) for word, others in contexts for other in others]
    else:
        examples = [(others, word) for word, others in contexts]
    published = Published(vectors, outputs, decisions, sigmoid_of_gensim).train(examples, rate)
    found = {"vectors": model.wv.vectors, "outputs": getattr(model, name)}
    assert_close(found, {"vectors": published.inputs, "outputs": published.outputs})
    if output == "negative":  # gensim's loss of hierarchical softmax has the sigmoid of the wrong sign
        np.testing.assert_allclose(model.get_latest_training_loss(), published.loss, rtol=1e-5)

    keep_order(monkeypatch)
    objective = kind(vocabulary_path, output=made, window=1, subsampling=0.0, examples_per_update=1)
    name, tables = our_tables(objective, vectors, outputs)
    rows = np.zeros((len(corpus), max(map(len, corpus))), np.int32)
    for row, sentence in zip(rows, corpus, strict=True):
        row[: len(sentence)] = sentence + FIRST_WORD_ID
    batch = {"encoder_input_tokens": jnp.asarray(rows)}
    ours = objective.update(tables, batch, row_sgd(rate).apply, rate=rate, key=jax.random.key(0))
    published = Published(vectors, outputs, decisions, exact).train(examples, rate)
    _, expected = our_tables(objective, published.inputs, published.outputs)
    assert_close(dict(ours.tables.values), dict(expected.values))
    np.testing.assert_allclose(ours.metrics["loss"][0], published.loss, rtol=1e-5)
    assert ours.metrics["loss"][1] == len(examples)


@pytest.mark.parity
@pytest.mark.parametrize(("kind", "rate"), [(ContinuousBagOfWords, 0.1), (SkipGram, 0.05)])
def test_vectors_of_a_text_agree_with_those_of_gensim(kind, rate, tmp_path, test_data):
    models = pytest.importorskip("gensim.models")
    text = Text.read(test_data / "text/gutenberg/sherlock.txt", tmp_path)
    theirs = []
    for seed in (1, 2):
        model = models.Word2Vec(
            text.rows(seed),
            sg=int(kind is SkipGram),
            cbow_mean=1,
            vector_size=TEXT_DIM,
            window=5,
            min_count=MIN_COUNT,
            sample=1e-3,
            negative=5,
            alpha=rate,
            min_alpha=rate / 1e4,
            epochs=EPOCHS,
            workers=1,
            batch_words=1000,
            seed=seed,
        )
        theirs.append(model.wv[text.words])
    objective = kind(str(text.path), window=5, subsampling=1e-3)
    # gensim's first vectors are uniform, too.
    first = np.random.default_rng(3).uniform(-1 / TEXT_DIM, 1 / TEXT_DIM, (len(text.words), TEXT_DIM))
    assert_agree(train(objective, text, first, rate=rate, seed=3), theirs)
