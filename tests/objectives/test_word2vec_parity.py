"""word2vec beside gensim: counts, codes of the tree, and the loss of all pairs of each sentence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.data import word_counts
from t5x_like.data.word_counts import FIRST_WORD_ID
from t5x_like.objectives.row_updates import TABLE, Tables
from t5x_like.objectives.word2vec import ContinuousBagOfWords, SkipGram
from t5x_like.objectives.word_outputs import HierarchicalSoftmax

# No two nodes of their tree have equal counts, whose order would be a choice of the program.
COUNTS = (40, 30, 20, 12, 9, 7, 5, 3)
WORDS = tuple(f"w{index}" for index in range(len(COUNTS)))
DIM = 16


@pytest.fixture(scope="module")
def corpus():
    """Sentences of two or more words, as ids from 0: gensim also scores words without a context."""
    rng = np.random.default_rng(0)
    ids = rng.permutation(np.repeat(np.arange(len(COUNTS)), COUNTS))
    ends = np.cumsum(rng.integers(2, 10, len(ids)))
    return np.split(ids, ends[ends < len(ids) - 1])


@pytest.fixture(scope="module")
def theirs(corpus):
    def make(is_skip_gram):
        models = pytest.importorskip("gensim.models")
        sentences = [[WORDS[index] for index in sentence] for sentence in corpus]
        options = {"vector_size": DIM, "window": 1, "min_count": 1, "sample": 0, "hs": 1, "negative": 0, "workers": 1}
        model = models.Word2Vec(sg=int(is_skip_gram), cbow_mean=1, **options)
        model.build_vocab(sentences)
        assert tuple(model.wv.index_to_key) == WORDS
        rng = np.random.default_rng(1)
        model.wv.vectors = rng.normal(size=(len(WORDS), DIM), scale=0.5).astype(np.float32)
        model.syn1 = rng.normal(size=(len(WORDS), DIM), scale=0.5).astype(np.float32)
        return model, model.score(sentences, total_sentences=len(sentences))

    return make


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


def looked_up(scores):
    """Returns logarithms of sigmoids as gensim does: at one of 1,000 arguments from -6, whose index is rounded down."""
    arguments = (np.arange(1000) / 1000 * 2 - 1) * 6
    return -np.log1p(np.exp(-arguments))[((scores + 6) * (1000 // 6 // 2)).astype(int)]


@pytest.mark.parity
@pytest.mark.parametrize("kind", [SkipGram, ContinuousBagOfWords])
def test_counts_codes_and_losses_equal_those_of_gensim(tmp_path, corpus, theirs, kind):
    model, scores = theirs(kind is SkipGram)
    found = {word: model.wv.get_vecattr(word, "count") for word in WORDS}
    assert tuple(found.values()) == COUNTS
    (tmp_path / "vocab.txt").write_text("".join(f"{word} {count}\n" for word, count in found.items()))
    objective = kind(str(tmp_path / "vocab.txt"), output=HierarchicalSoftmax(), window=1, subsampling=0.0)

    targets = jnp.arange(len(WORDS)) + FIRST_WORD_ID
    decisions = objective.output.decisions(word_counts.read(objective.vocabulary_path), targets, jax.random.key(0))
    for word, ids, labels, weights in zip(WORDS, *map(np.asarray, decisions), strict=True):
        assert ids[weights > 0].tolist() == model.wv.get_vecattr(word, "point").tolist()
        assert (1 - labels[weights > 0]).tolist() == model.wv.get_vecattr(word, "code").tolist()

    special = np.zeros((FIRST_WORD_ID, DIM), np.float32)
    tables = Tables(
        {
            TABLE: jnp.asarray(np.concatenate([special, model.wv.vectors])),
            f"objective/{objective.output.table}/embedding": jnp.asarray(model.syn1),
        },
        {},
    )
    for sentence, score in zip(corpus, scores, strict=True):
        row = jnp.asarray(sentence[None] + FIRST_WORD_ID)
        batch = {"encoder_input_tokens": row, "encoder_segment_ids": jnp.ones_like(row)}
        keep_tables = lambda table, state, *_: (table, state)  # noqa: E731
        ours = objective.update(tables, batch, keep_tables, rate=jnp.zeros(()), key=jax.random.key(0))
        scores_of_decisions = signed_scores(model, sentence, kind is SkipGram)
        np.testing.assert_allclose(score, looked_up(scores_of_decisions).sum(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            ours.metrics["loss"][0], np.logaddexp(0, -scores_of_decisions).sum(), rtol=1e-5, atol=1e-6
        )
