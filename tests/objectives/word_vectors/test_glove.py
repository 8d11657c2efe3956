"""GloVe: counts and updates against plain rewrites of the published program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from t5x_like import parameters
from t5x_like.data import cooccurrences
from t5x_like.data.cooccurrences import COLUMNS, COUNTS, ROWS, CooccurrenceSource, count
from t5x_like.errors import UserError
from t5x_like.models.word_vectors import WordVectorsConfig
from t5x_like.objectives.row_updates import Tables
from t5x_like.objectives.word_vectors.glove import CONTEXTS, GloVe
from t5x_like.objectives.word_vectors.interface import TABLE
from t5x_like.optimizers.rows import row_adagrad

IDS, DIM = 12, 4


def published_counts(sentences, window, symmetric):
    """Counts as `cooccur.c` does: each word with those up to `window` words before it in its line."""
    found = {}
    for sentence in sentences:
        for at, word in enumerate(sentence):
            for before in range(at - 1, max(at - window, 0) - 1, -1):
                weight = 1.0 / (at - before)
                pairs = [(sentence[before], word)] + [(word, sentence[before])] * symmetric
                for pair in pairs:
                    found[pair] = found.get(pair, 0.0) + weight
    return found


@pytest.mark.parametrize(("window", "symmetric"), [(15, True), (3, True), (2, False)])
def test_counts_equal_the_published_program(window, symmetric, monkeypatch):
    monkeypatch.setattr(cooccurrences, "_BLOCK", 37)
    rng = np.random.default_rng(0)
    sentences = [rng.integers(3, IDS, size).tolist() for size in rng.integers(0, 40, 20)]
    stream = []
    for sentence in sentences:
        stream += [*sentence, 1]
    stream.insert(4, 2)  # unknown words are left out before distances are counted
    found = count(np.array(stream), window, symmetric=symmetric)
    expected = published_counts(sentences, window, symmetric)
    got = dict(zip(zip(found.rows.tolist(), found.columns.tolist(), strict=True), found.counts, strict=True))
    assert got.keys() == expected.keys()
    np.testing.assert_allclose([got[pair] for pair in expected], list(expected.values()), rtol=1e-12)


def test_updates_equal_the_published_program():
    """Each entry of an update reads the vectors before it; with one entry, this is `glove.c`."""
    objective = GloVe(x_max=10.0, examples_per_update=1)
    config = WordVectorsConfig(vocab_size=IDS, embed_dim=DIM)
    model = config.make(jax.random.key(0))
    params = {"model": model, "objective": objective.init(jax.random.key(1), model)}
    optimizer = row_adagrad(0.05)
    start = Tables(parameters.named_leaves(params), parameters.named_leaves(optimizer.init(params)))
    rng = np.random.default_rng(0)
    words, contexts = rng.integers(3, IDS, (2, 2, 8)).astype(np.int32)
    counts = np.exp(rng.normal(1, 2, (2, 8))).astype(np.float32)
    counts[1, -2:] = 0
    batch = {ROWS: jnp.asarray(words), COLUMNS: jnp.asarray(contexts), COUNTS: jnp.asarray(counts)}
    found = objective.update(start, batch, optimizer.apply, rate=jnp.float32(0.05), key=None)

    names = TABLE, CONTEXTS, "objective/biases/embedding", "objective/context_biases/embedding"
    w, v, b, c = values = [np.array(start.values[name], np.float64) for name in names]
    sums = gw, gv, gb, gc = [np.ones_like(value) for value in values]
    cost = 0.0
    for i, j, x in zip(words.ravel(), contexts.ravel(), counts.ravel(), strict=True):
        if x > 0:
            difference = w[i] @ v[j] + b[i] + c[j] - np.log(x)
            weighted = difference if x > 10 else (x / 10) ** 0.75 * difference
            cost += 0.5 * weighted * difference
            step_w, step_v = 0.05 * weighted * v[j], 0.05 * weighted * w[i]
            w[i] -= step_w / np.sqrt(gw[i])
            v[j] -= step_v / np.sqrt(gv[j])
            gw[i] += step_w**2
            gv[j] += step_v**2
            b[i] -= weighted / np.sqrt(gb[i])
            c[j] -= weighted / np.sqrt(gc[j])
            gb[i] += weighted**2
            gc[j] += weighted**2
    assert_close(dict(found.tables.values), dict(zip(names, values, strict=True)))
    assert_close(dict(found.tables.states), dict(zip(names, sums, strict=True)))
    assert float(found.metrics["loss"][0]) == pytest.approx(cost, rel=1e-5)
    assert float(found.metrics["loss"][1]) == 14
    np.testing.assert_array_equal(objective.vectors(start.values, ()), start.values[TABLE] + start.values[CONTEXTS])


class Text:
    """A source of one row of words."""

    name = "text"

    def eval_batches(self, spec):
        tokens = np.array([[3, 4, 5, 1, 3, 5, 6, 7]])
        yield {ROWS: tokens, "encoder_segment_ids": np.ones_like(tokens)}


def test_each_epoch_has_all_counts_and_resumes():
    source = CooccurrenceSource(text=Text(), batch_size=2, entries_per_row=3, window=2)
    number = len(source.matrix.counts)
    iterator = source.host_iterator(cooccurrences.SPEC)
    batches = [next(iterator) for _ in range(number)]  # 6 epochs
    state = iterator.state_before(2)
    entries = np.concatenate([np.stack([batch[ROWS], batch[COLUMNS]], -1).reshape(-1, 2) for batch in batches])
    epochs = [[tuple(pair) for pair in epoch] for epoch in entries.reshape(6, number, 2).tolist()]
    assert all(sorted(epoch) == sorted(epochs[0]) and len(set(epoch)) == number for epoch in epochs)
    assert epochs[0] != epochs[1]
    resumed = source.host_iterator(cooccurrences.SPEC)
    resumed.restore(state)
    np.testing.assert_array_equal(next(resumed)[COUNTS], batches[-2][COUNTS])
    halves = [next(source.host_iterator(None, process_index=index, process_count=2))[ROWS] for index in range(2)]
    np.testing.assert_array_equal(np.concatenate(halves), batches[0][ROWS])
    (last,) = list(source.eval_batches(cooccurrences.SPEC))[number // 6 :] or [None]
    assert last is None or np.count_nonzero(last[COUNTS]) == number % 6


def test_invalid_settings_raise():
    with pytest.raises(UserError, match="X_MAX=0 is not positive"):
        GloVe(x_max=0)
    with pytest.raises(UserError, match="WINDOW=0 is not positive"):
        CooccurrenceSource(text=Text(), batch_size=1, window=0)
