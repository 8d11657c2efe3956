"""fastText's classifier: hashes of n-grams, updates, and hierarchical softmax, equal NumPy rewrites."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from t5x_like import convert_vectors
from t5x_like.data.subwords import hash_of
from t5x_like.errors import UserError
from t5x_like.models.word_vectors import WordVectorsConfig
from t5x_like.objectives import passes
from t5x_like.objectives.row_updates import Tables
from t5x_like.objectives.word_vectors.fasttext_classification import OUTPUT, FastTextClassification, LabelTree
from t5x_like.objectives.word_vectors.interface import TABLE
from t5x_like.optimizers.rows import row_sgd
from t5x_like.parameters import rebuild
from t5x_like.vocabularies.word_counts import EOS

WORDS = ("the", "naïve", "queen", "ox")
LABELS = ("a", "b", "c", "d")
BUCKETS, DIM, FIRST = 50, 6, 7
TEXTS = [[3, 4, 2, 5, 6, 1], [5, 5, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [6, 3, 4, 1, 0, 0]]
TARGETS = [2, 0, 1, -1]


@pytest.fixture
def make(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{word} {9 - index}\n" for index, word in enumerate(WORDS)))

    def make(**options):
        settings = {"labels": LABELS, "vocabulary_path": str(tmp_path / "vocab.txt"), "word_ngrams": 3}
        return FastTextClassification(**settings | {"buckets": BUCKETS} | options)

    return make


def rows_of(text, objective):
    """Returns the rows of a text, as fastText's dictionary makes them, in Python's integers."""
    names = dict(enumerate(("", EOS, "", *WORDS)))
    signed = {index: int(np.uint32(hash_of(name.encode())).view(np.int32)) for index, name in names.items()}
    text = [index for index in text if index]
    text, found = [*text, *([1] if text and text[-1] != 1 else [])], []
    for index in text:
        if index == 2:
            continue
        subwords = objective.subwords.buckets_of(names[index]) if index >= 3 else []
        found += [index, *(FIRST + bucket for bucket in subwords)]
    for start in range(len(text)):
        h = signed[text[start]] % 2**64
        for stop in range(start + 1, min(start + objective.word_ngrams, len(text))):
            h = (h * 116049371 + signed[text[stop]]) % 2**64
            if 2 not in text[start : stop + 1]:
                found.append(FIRST + h % BUCKETS)
    return found


def random_tables():
    rng = np.random.default_rng(0)
    sizes = {TABLE: (FIRST + BUCKETS, DIM), OUTPUT: (len(LABELS), DIM)}
    return {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}


def batch():
    tokens = np.array(TEXTS)
    return {
        "encoder_input_tokens": jnp.asarray(tokens),
        "encoder_segment_ids": jnp.asarray(tokens != 0, jnp.int32),
        "label": jnp.asarray(TARGETS)[:, None],
    }


def softmax_errors(mean, table, label):
    logits = table @ mean
    found = np.exp(logits - logits.max())
    found /= found.sum()
    return -np.log(found[label]), dict(enumerate(found - np.eye(len(LABELS))[label]))


# Huffman's tree of counts 5, 9, 1, 2 by hand: node 0 has the labels 2 (bit 0) and 3 (bit 1), node 1 has node 0 (0) and
# the label 0 (1), the root has node 1 (0) and the label 1 (1).
PATHS = {0: [(2, 0), (1, 1)], 1: [(2, 1)], 2: [(2, 0), (1, 0), (0, 0)], 3: [(2, 0), (1, 0), (0, 1)]}


def tree_errors(mean, table, label):
    decided = {node: 1 / (1 + np.exp(-table[node] @ mean)) for node, _ in PATHS[label]}
    loss = -sum(np.log(decided[node] if bit else 1 - decided[node]) for node, bit in PATHS[label])
    return loss, {node: decided[node] - bit for node, bit in PATHS[label]}


@pytest.mark.parametrize(
    ("options", "errors_of"),
    [({}, softmax_errors), ({"output": LabelTree((5, 9, 1, 2)), "shortest": 2, "longest": 3}, tree_errors)],
)
def test_updates_after_each_row(make, options, errors_of):
    objective, values = make(**options), random_tables()
    tables = Tables({name: jnp.asarray(value) for name, value in values.items()}, {})
    found = jax.jit(lambda tables: _pair(objective.update(tables, batch(), row_sgd(0.1).apply, rate=0.1, key=None)))(
        tables
    )
    expected, losses = {name: value.astype(np.float64) for name, value in values.items()}, []
    for text, label in zip(TEXTS, TARGETS, strict=True):
        rows = rows_of(text, objective)
        if not rows or label < 0:
            continue
        mean, of_mean = expected[TABLE][rows].mean(axis=0), np.zeros(DIM)
        loss, errors = errors_of(mean, expected[OUTPUT], label)
        losses.append(loss)
        for row, error in errors.items():
            of_mean += error * expected[OUTPUT][row]
        for row, error in errors.items():
            expected[OUTPUT][row] -= 0.1 * error * mean
        np.subtract.at(expected[TABLE], rows, 0.1 * of_mean / len(rows))
    assert len(losses) == 2
    assert_close(found[0], expected)
    np.testing.assert_allclose(found[1]["loss"], [sum(losses), 2], rtol=1e-5)


def _pair(updated):
    return dict(updated.tables.values), updated.metrics


@pytest.mark.parametrize("options", [{}, {"output": LabelTree((5, 9, 1, 2))}])
def test_evaluation_gives_the_loss_before_an_update_and_probabilities(make, options):
    objective, values = make(**options), random_tables()
    config = WordVectorsConfig(vocab_size=FIRST, embed_dim=DIM, buckets=BUCKETS)
    model = config.make(jax.random.key(0))
    params = {"model": model, "objective": objective.init(jax.random.key(0), model)}
    params = rebuild(params, {name: jnp.asarray(value) for name, value in values.items()})
    pass_ = passes.forward_at_evaluation(objective, params, batch())
    tables = Tables({name: jnp.asarray(value) for name, value in values.items()}, {})
    updated = objective.update(tables, batch(), lambda table, state, *_: (table, state), rate=0.0, key=None)
    terms = passes.terms(pass_)
    # The row without words has a label, but no vector: evaluation does not count it either.
    assert_close(
        {name: np.stack(terms.metrics[name]) for name in ("loss", "accuracy")},
        {name: np.stack(updated.metrics[name]) for name in ("loss", "accuracy")},
    )
    np.testing.assert_allclose(objective.predict(pass_)["probabilities"].sum(axis=-1), 1, rtol=1e-5)


def test_invalid_settings_raise(make):
    with pytest.raises(UserError, match="BUCKETS=0: must be 0 without n-grams"):
        make(buckets=0)
    with pytest.raises(UserError, match=r"LABEL_COUNTS=\(1, 2\): 2 counts, but 4 LABELS"):
        make(output=LabelTree((1, 2)))
    with pytest.raises(UserError, match="BUCKETS=50: the model has 7"):
        make().init(jax.random.key(0), WordVectorsConfig(vocab_size=7, embed_dim=2, buckets=7).make(jax.random.key(0)))


@pytest.mark.parametrize("options", [{}, {"output": LabelTree((5, 9, 1, 2)), "shortest": 2, "longest": 3}])
def test_files_keep_labels_and_all_rows(make, tmp_path, options):
    objective, values = make(**options), random_tables()
    values[TABLE][[0, 2]] = 0  # padding and unknown words are not in the file
    config, path = WordVectorsConfig(vocab_size=FIRST, embed_dim=DIM, buckets=BUCKETS), str(tmp_path / "m.bin")
    convert_vectors.write(config, objective, values, str(tmp_path / "vocab.txt"), path)
    found, leaves, described, vocabulary = convert_vectors.read(path, None)
    assert found == config and vocabulary == (tmp_path / "vocab.txt").read_bytes()
    assert leaves.keys() == values.keys() and all(np.array_equal(leaves[name], values[name]) for name in leaves)
    # Labels are in the order of the file with a tree, and in that of the alphabet without.
    labels, counts = (("b", "a", "d", "c"), (9, 5, 2, 1)) if options else (("a", "b", "c", "d"), None)
    assert f"LABELS = {labels}" in described and "word_ngrams = 3" in described
    assert (f"counts = {counts}" in described) == bool(options)


@pytest.mark.parametrize("order", [LABELS, LABELS[::-1]])
def test_trees_of_labels_with_equal_counts_stay(make, tmp_path, order):
    """The tree of the file breaks ties by the order of its labels."""
    objective, values = make(output=LabelTree((5, 5, 5, 5)), labels=order), random_tables()
    config, path = WordVectorsConfig(vocab_size=FIRST, embed_dim=DIM, buckets=BUCKETS), str(tmp_path / "m.bin")
    convert_vectors.write(config, objective, values, str(tmp_path / "vocab.txt"), path)
    _, leaves, described, _ = convert_vectors.read(path, None)
    assert f"LABELS = {tuple(order)}" in described and "counts = (5, 5, 5, 5)" in described
    np.testing.assert_array_equal(leaves[OUTPUT], values[OUTPUT])


@pytest.mark.parity
@pytest.mark.parametrize("options", [{}, {"output": LabelTree((5, 9, 1, 2))}, {"shortest": 2, "longest": 3}])
def test_the_library_predicts_the_same(make, tmp_path, options):
    fasttext = pytest.importorskip("fasttext")
    objective, values = make(**options), random_tables()
    config, path = WordVectorsConfig(vocab_size=FIRST, embed_dim=DIM, buckets=BUCKETS), str(tmp_path / "m.bin")
    convert_vectors.write(config, objective, values, str(tmp_path / "vocab.txt"), path)
    model = config.make(jax.random.key(0))
    params = {"model": model, "objective": objective.init(jax.random.key(0), model)}
    params = rebuild(params, {name: jnp.asarray(value) for name, value in values.items()})
    text = [3, 4, 5, 6]  # both end it with </s>
    rows = {
        name: jnp.asarray([value]) for name, value in (("encoder_input_tokens", text), ("encoder_segment_ids", [1] * 4))
    }
    predicted = objective.predict(passes.forward_at_evaluation(objective, params, rows))["probabilities"][0]
    names, theirs = fasttext.load_model(path).f.predict(" ".join(WORDS) + "\n", 4, 0.0, "strict"), {}
    for probability, name in names:
        theirs[name.removeprefix("__label__")] = probability
    np.testing.assert_allclose([theirs[label] for label in LABELS], predicted, rtol=1e-4, atol=2e-5)
