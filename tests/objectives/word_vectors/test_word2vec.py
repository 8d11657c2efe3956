"""word2vec: contexts, losses and updates by hand, and against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recipes
from numerics import assert_close

from t5x_like import parameters
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.errors import UserError
from t5x_like.models.word_vectors import WordVectorsConfig
from t5x_like.objectives import passes
from t5x_like.objectives.row_updates import Tables
from t5x_like.objectives.word_vectors.interface import TABLE
from t5x_like.objectives.word_vectors.word2vec import ContinuousBagOfWords, SkipGram, shuffled
from t5x_like.objectives.word_vectors.word_contexts import contexts, offsets
from t5x_like.objectives.word_vectors.word_outputs import HierarchicalSoftmax, NegativeSampling
from t5x_like.optimizers import adamw, finetuning_groups
from t5x_like.optimizers.rows import row_sgd
from t5x_like.partitioning import Partitioner
from t5x_like.training.program import make_program

COUNTS = [40, 30, 20, 12, 9, 7, 5, 3]
IDS, DIM = 3 + len(COUNTS), 8
# Two rows: sentences end at EOS (1) and at the end of a row; 2 is unknown, 0 padding.
TOKENS = np.array([[3, 4, 1, 5, 6, 3], [7, 2, 8, 9, 1, 0]])
BATCH = {"encoder_input_tokens": jnp.asarray(TOKENS), "encoder_segment_ids": (TOKENS != 0).astype(np.int32)}


@pytest.fixture
def path(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"w{index} {count}\n" for index, count in enumerate(COUNTS)))
    return str(tmp_path / "vocab.txt")


def tables(table):
    rng = np.random.default_rng(0)
    values = {name: jnp.asarray(rng.normal(size=(IDS, DIM)), jnp.float32) for name in (TABLE, table)}
    return Tables(values, {})


def pairs_of(found, window):
    at, offset = np.nonzero(np.asarray(found.in_window))
    words = np.asarray(found.words)
    return [
        (int(words[i]), int(words[i + shift])) for i, shift in zip(at, np.asarray(offsets(window))[offset], strict=True)
    ]


def test_contexts_end_with_sentences_and_rows():
    found = contexts(jnp.asarray(TOKENS), jnp.ones(IDS), 1, jax.random.key(0))
    # Unknown words do not count for distances.
    assert pairs_of(found, 1) == [(3, 4), (4, 3), (5, 6), (6, 5), (6, 3), (3, 6), (7, 8), (8, 7), (8, 9), (9, 8)]


def test_dropped_words_do_not_separate_their_neighbors():
    keep = jnp.ones(IDS).at[6].set(0.0)
    found = contexts(jnp.asarray(TOKENS), keep, 1, jax.random.key(0))
    assert pairs_of(found, 1) == [(3, 4), (4, 3), (5, 3), (3, 5), (7, 8), (8, 7), (8, 9), (9, 8)]


def test_windows_are_uniform_from_1():
    tokens = jnp.full((1, 4000), 3)
    found = contexts(tokens, jnp.ones(IDS), 4, jax.random.key(1))
    sizes = np.sum(np.asarray(found.in_window)[4:-4, 4:], axis=1)
    shares = np.bincount(sizes, minlength=5)[1:] / len(sizes)
    np.testing.assert_allclose(shares, 0.25, atol=0.03)
    assert np.array_equal(found.in_window[4:-4, :4][:, ::-1], found.in_window[4:-4, 4:])


def test_negative_samples_follow_the_counts_and_skip_the_word(path):
    counts = SkipGram(path).counts
    targets = jnp.full(40000, 3)
    found = NegativeSampling(negatives=1).decisions(counts, targets, jax.random.key(0))
    drawn = np.asarray(found.ids[:, 1])
    expected = np.array(COUNTS) ** 0.75
    np.testing.assert_allclose(np.bincount(drawn, minlength=IDS)[3:] / len(drawn), expected / expected.sum(), atol=0.01)
    np.testing.assert_array_equal(found.weights[:, 1], drawn != 3)
    assert found.labels[:, 0].all() and not found.labels[:, 1].any()


@pytest.mark.parametrize("size", [1, 2, 5, 37, 100])
def test_examples_are_shuffled(size):
    is_example = (np.arange(size) % 3 != 1).astype(bool)
    numbers, draws = np.flatnonzero(is_example), 2000
    keys = jax.random.split(jax.random.key(0), draws)
    orders = np.asarray(jax.vmap(lambda key: shuffled(jnp.asarray(is_example), key))(keys))
    assert (orders[:, len(numbers) :] == 0).all()
    orders = orders[:, : len(numbers)]
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.broadcast_to(numbers, orders.shape))
    # Each example is equally often at each place, and neighbors are not neighbors afterwards.
    places = np.argsort(orders, axis=1)
    counts = np.stack([np.bincount(column, minlength=len(numbers)) for column in places.T])
    expected = draws / len(numbers)
    np.testing.assert_allclose(counts, expected, atol=5 * np.sqrt(expected))
    if len(numbers) > 2:
        distances = np.abs(np.diff(places, axis=1)).mean(axis=0)
        np.testing.assert_allclose(distances, (len(numbers) + 1) / 3, rtol=0.1)


def updates_by_hand(objective, table, tables, key, rate, size):
    """Returns the tables after a step and the summed loss, computed example by example in NumPy."""
    stream_key, order_key, loop_key = jax.random.split(key, 3)
    found = contexts(jnp.asarray(TOKENS), jnp.ones(IDS), objective.window, stream_key)
    is_example = objective.examples(found)
    candidates = np.asarray(shuffled(is_example, order_key))[: np.sum(is_example)]
    assert sorted(candidates) == np.flatnonzero(is_example).tolist()
    values = {name: np.asarray(value, np.float64) for name, value in tables.values.items()}
    loss = 0.0
    for start in range(0, len(candidates), size):
        chunk = np.resize(candidates[start : start + size], size)
        inputs, counted, targets = map(np.asarray, objective.inputs(found, jnp.asarray(chunk), IDS))
        key = jax.random.fold_in(loop_key, start // size)
        ids, labels, weights = map(np.asarray, objective.output.decisions(objective.counts, jnp.asarray(targets), key))
        old = {name: value.copy() for name, value in values.items()}
        for row in range(min(size, len(candidates) - start)):
            words = inputs[row][counted[row]]
            mean = old[TABLE][words].mean(axis=0)
            error = np.zeros(DIM)
            for id_, label, weight in zip(ids[row], labels[row], weights[row], strict=True):
                if weight:
                    probability = 1 / (1 + np.exp(-mean @ old[table][id_]))
                    loss -= np.log(probability if label else 1 - probability)
                    step = rate * (label - probability)
                    error += step * old[table][id_]
                    values[table][id_] += step * mean
            for word in words:
                values[TABLE][word] += error
    return values, loss


@pytest.mark.parametrize("kind", [SkipGram, ContinuousBagOfWords])
@pytest.mark.parametrize("output", [NegativeSampling(negatives=3), HierarchicalSoftmax()])
def test_updates_equal_numpy(kind, output, path):
    objective = kind(path, output=output, window=3, subsampling=0.0, examples_per_update=4)
    name = f"objective/{output.table}/embedding"
    start, key, rate = tables(name), jax.random.key(3), 0.1
    found = objective.update(start, BATCH, row_sgd(rate).apply, rate=rate, key=key)
    expected, loss = updates_by_hand(objective, name, start, key, rate, 4)
    assert_close(dict(found.tables.values), expected)
    assert float(found.metrics["loss"][0]) == pytest.approx(loss, rel=1e-5)
    untouched = [0, 1, 2] if output.table == "output" else [9, 10]
    rows = jnp.array(untouched)
    np.testing.assert_array_equal(found.tables.values[name][rows], start.values[name][rows])


def test_one_update_is_the_gradient_of_the_loss(path):
    objective = SkipGram(path, window=2, subsampling=0.0, examples_per_update=64)
    config = WordVectorsConfig(vocab_size=IDS, embed_dim=DIM)
    model = config.make(jax.random.key(0))
    params = {"model": model, "objective": objective.init(jax.random.key(1), model)}
    start = tables("objective/output/embedding")
    params = parameters.rebuild(params, start.values)
    read = passes.terms(passes.forward_at_evaluation(objective, params, BATCH)).metrics["loss"]
    assert np.isfinite(read[0]) and read[1] > 0
    stream_key, order_key, loop_key = jax.random.split(jax.random.key(5), 3)
    found = contexts(jnp.asarray(TOKENS), jnp.ones(IDS), 2, stream_key)
    candidates = jnp.pad(shuffled(objective.examples(found), order_key), (0, 16))
    number = int(jnp.sum(objective.examples(found)))
    inputs, _, targets = objective.inputs(found, candidates, IDS)
    ids, labels, weights = objective.output.decisions(objective.counts, targets, jax.random.fold_in(loop_key, 0))

    def loss(values):
        logits = jnp.einsum("ed,ejd->ej", values[TABLE][inputs[:, 0]], values["objective/output/embedding"][ids])
        signs = 2 * labels - 1
        return -jnp.sum((weights * jax.nn.log_sigmoid(signs * logits))[:number])

    gradient = jax.grad(loss)(start.values)
    updated = objective.update(start, BATCH, row_sgd(1.0).apply, rate=1.0, key=jax.random.key(5)).tables.values
    assert_close({name: start.values[name] - updated[name] for name in updated}, gradient)


def program(path, **changes):
    settings = dict(mixture_or_task_name="any", task_feature_lengths={"targets": 6}, batch_size=8, pack=False)
    recipe = recipes.make(
        model=WordVectorsConfig(vocab_size=IDS, embed_dim=DIM),
        objective=SkipGram(path, subsampling=0.0, examples_per_update=8),
        optimizer=changes.pop("optimizer", row_sgd(0.1)),
        data=SeqIOSource(**settings),
        partitioner=Partitioner(ici={"fsdp": -1}, devices=jax.devices()[:1]),
        **changes,
    )
    return make_program(recipe)


def test_invalid_settings_raise(path):
    with pytest.raises(UserError, match="SkipGram updates rows of tables. Give --gin_file=optimizers/row_sgd.gin"):
        program(path, optimizer=adamw(learning_rate=0.1))
    groups = finetuning_groups(layer_decay=0.9)
    with pytest.raises(UserError, match="PARAMETER_GROUPS: SkipGram trains all rows.*without the groups '[.][*]'"):
        program(path, optimizer=row_sgd(0.1, groups=groups))
    with pytest.raises(UserError, match="MICROBATCHES=2: SkipGram updates rows of tables, without a gradient"):
        program(path, microbatches=2)
    with pytest.raises(UserError, match="WINDOW=0 is not positive"):
        SkipGram(path, window=0)
    with pytest.raises(UserError, match="NEGATIVES=0 is not positive"):
        NegativeSampling(negatives=0)
