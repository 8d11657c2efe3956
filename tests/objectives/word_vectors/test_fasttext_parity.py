"""fastText beside its library: updates of all pairs of a text, and the vectors of a longer one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close
from published_word_vectors import Published, exact, keep_order, near
from word_similarities import DIM as TEXT_DIM
from word_similarities import EPOCHS, MIN_COUNT, Text, assert_agree, train

from t5x_like.objectives.row_updates import Tables
from t5x_like.objectives.word_vectors.fasttext import SubwordBagOfWords, SubwordSkipGram
from t5x_like.objectives.word_vectors.interface import TABLE
from t5x_like.objectives.word_vectors.word_outputs import Decisions, HierarchicalSoftmax
from t5x_like.optimizers.rows import row_sgd
from t5x_like.vocabularies import word_counts
from t5x_like.vocabularies.word_counts import FIRST_WORD_ID

DIM, BUCKETS, RATE = 8, 20, 0.5
MODELS = {"skipgram": SubwordSkipGram, "cbow": SubwordBagOfWords}


class OtherWord:
    """The other one of two words as negative sample. The library draws until a sample is not the target."""

    table = "output"

    def decisions(self, counts, targets, key):
        ids = jnp.stack([targets, 2 * FIRST_WORD_ID + 1 - targets], axis=1)
        return Decisions(ids, jnp.broadcast_to(jnp.array([1.0, 0.0]), ids.shape), jnp.ones(ids.shape))


# Loss of the library -> our output, and the counts of words. No two nodes of their tree have equal counts.
OUTPUTS = {"hs": (HierarchicalSoftmax(), (40, 30, 20, 12, 9, 7, 5, 3)), "ns": (OtherWord(), (40, 23))}


def sigmoid_of_the_library(score):
    """Returns the sigmoid as fastText does: at one of 513 arguments from -8 to 8, whose index is rounded down."""
    if abs(score) > 8:
        return float(score > 8)
    return exact(int((score + 8) * 512 / 16) / 32 - 8)


@pytest.mark.parity
@pytest.mark.parametrize("loss", OUTPUTS)
@pytest.mark.parametrize("model", MODELS)
def test_updates_equal_those_of_the_library(tmp_path, model, loss, monkeypatch):
    """One update after another: the library's equal its formulas with its sigmoids, ours with exact sigmoids."""
    fasttext = pytest.importorskip("fasttext")
    output, counts = OUTPUTS[loss]
    words = [f"w{index}" for index in range(len(counts))]
    text = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    path = tmp_path / "text.txt"
    path.write_text(" ".join(words[index] for index in text))  # without an end of line, which would be a word
    settings = {"model": model, "loss": loss, "dim": DIM, "ws": 1, "minCount": 1, "minn": 2, "maxn": 3, "neg": 1}
    settings |= {"bucket": BUCKETS, "thread": 1, "t": 1.0, "lr": RATE, "verbose": 0, "lrUpdateRate": len(text) - 1}
    first, last = (fasttext.train_unsupervised(str(path), epoch=epoch, **settings) for epoch in (0, 1))
    assert last.get_words() == words

    (tmp_path / "vocab.txt").write_text("".join(f"{w} {n}\n" for w, n in zip(words, counts, strict=True)))
    objective = MODELS[model](
        str(tmp_path / "vocab.txt"),
        shortest=2,
        longest=3,
        buckets=BUCKETS,
        output=output,
        window=1,
        subsampling=0.0,
        examples_per_update=1,
    )
    buckets = ([len(words) + bucket for bucket in objective.subwords.buckets_of(word)] for word in words)
    rows = [[index, *found] for index, found in enumerate(buckets)]
    codes = word_counts.huffman(np.array(counts))

    def decisions(target):
        if loss == "ns":
            return [(target, 1), (1 - target, 0)]
        # The label is the bit; in word2vec, and here, it is 1 - bit.
        return zip(*(each[target, : codes.lengths[target]].tolist() for each in (codes.nodes, codes.bits)), strict=True)

    contexts = near(text.tolist())
    if model == "skipgram":
        examples = [(rows[word], other) for word, others in contexts for other in others]
    else:
        examples = [([row for other in others for row in rows[other]], word) for word, others in contexts]
    start = first.get_input_matrix(), first.get_output_matrix()
    published = Published(*start, decisions, sigmoid_of_the_library).train(examples, RATE)
    found = {"inputs": last.get_input_matrix(), "outputs": last.get_output_matrix()}
    assert np.abs(found["inputs"] - start[0]).max() > 0.1
    assert_close(found, {"inputs": published.inputs, "outputs": published.outputs})

    def tables(inputs, outputs):
        special = np.zeros((FIRST_WORD_ID, DIM))
        outputs = -outputs if loss == "hs" else np.concatenate([special, outputs])
        values = {TABLE: np.concatenate([special, inputs]), f"objective/{output.table}/embedding": outputs}
        return Tables({name: jnp.asarray(value, jnp.float32) for name, value in values.items()}, {})

    keep_order(monkeypatch)
    batch = {"encoder_input_tokens": jnp.asarray(text[None] + FIRST_WORD_ID)}
    ours = objective.update(tables(*start), batch, row_sgd(RATE).apply, rate=RATE, key=jax.random.key(0))
    published = Published(*start, decisions, exact).train(examples, RATE)
    assert_close(dict(ours.tables.values), dict(tables(published.inputs, published.outputs).values))
    np.testing.assert_allclose(ours.metrics["loss"][0], published.loss, rtol=1e-5)


@pytest.mark.parity
def test_skip_gram_of_a_text_agrees_with_the_library(tmp_path, test_data):
    """All runs begin with the same vectors: fastText 0.9.2 has no seed. Its second run reads other rows first."""
    fasttext = pytest.importorskip("fasttext")
    text = Text.read(test_data / "text/gutenberg/sherlock.txt", tmp_path)
    buckets, path = 20_000, tmp_path / "text.txt"

    def run(seed, epochs):
        # Without ends of lines, which would be words; the library cuts the text into rows of 1,024 words.
        path.write_text(" ".join(word for row in text.rows(seed) for word in row))
        return fasttext.train_unsupervised(
            str(path),
            dim=TEXT_DIM,
            ws=5,
            neg=5,
            minn=3,
            maxn=6,
            t=1e-3,
            lr=0.05,
            minCount=MIN_COUNT,
            bucket=buckets,
            epoch=epochs,
            thread=1,
            verbose=0,
        )

    first = run(1, 0)
    ids = [first.get_word_id(word) for word in text.words]
    rows = first.get_input_matrix()
    rows = np.concatenate([rows[ids], rows[len(ids) :]])
    theirs = [
        np.stack([model.get_word_vector(word) for word in text.words]) for model in (run(1, EPOCHS), run(2, EPOCHS))
    ]
    objective = SubwordSkipGram(str(text.path), buckets=buckets, window=5, subsampling=1e-3)
    assert_agree(train(objective, text, rows, rate=0.05, seed=3), theirs)
