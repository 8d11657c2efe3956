"""ELECTRA's examples of two segments: equal to the loop of the released code with the same draws; distributions."""

import random

import numpy as np
import pytest
import seqio
import tensorflow as tf

from data_tasks.pretraining import segment_examples as segmenting
from data_tasks.pretraining.sentence_pairs import Documents, assemble_pairs
from t5x_like.errors import UserError
from t5x_like.vocabularies.special_tokens import SpecialTokens

CLS, SEP = 1, 2
SPECIAL = SpecialTokens(cls=CLS, sep=SEP, mask=3)


def random_documents(count, seed):
    """Returns documents as lists of sentences, in which all tokens differ."""
    rng, token, documents = random.Random(seed), iter(range(10, 10**9)), []
    for _ in range(count):
        lengths = [rng.choice((1, 2, 3, 6, 12, 40)) for _ in range(rng.randint(1, 30))]
        documents.append([[next(token) for _ in range(length)] for length in lengths])
    return documents


def batch_of(documents):
    return {
        "tokens": tf.ragged.constant([sum(document, []) for document in documents], dtype=tf.int32),
        "sentence_lengths": tf.ragged.constant([[len(s) for s in document] for document in documents], dtype=tf.int32),
        "document": tf.range(len(documents), dtype=tf.int64),
    }


def loop(documents, targets, single, overflow, length):
    """Makes examples like `ExampleBuilder` of the released code, with given draws for each example in order."""
    rows, single, overflow = [], iter(single), iter(overflow)

    def finish(sentences, target):
        goal, coin, a, b = 100_000 if next(single) else (target - 3) // 2, next(overflow), [], []
        for sentence in sentences:
            fits = len(a) == 0 or len(a) + len(sentence) < goal
            if fits or (len(b) == 0 and len(a) < goal and coin):
                a += sentence
            else:
                b += sentence
        a = a[: length - 2]
        b = b[: max(0, length - len(a) - 3)]
        ids, types = [CLS, *a, SEP], [0] * (len(a) + 2)
        if b:
            ids, types = [*ids, *b, SEP], types + [1] * (len(b) + 1)
        padding = [0] * (length - len(ids))
        rows.append((ids + padding, types + padding))

    for number, document in enumerate(documents):
        sentences, step = [], 0
        for sentence in document:
            sentences.append(sentence)
            if sum(map(len, sentences)) >= targets[step][number]:
                finish(sentences, targets[step][number])
                sentences, step = [], step + 1
        if sentences:
            finish(sentences, targets[step][number])
    return rows


def test_examples_equal_the_loop_of_the_released_code():
    documents, length = random_documents(20, seed=0), 24
    docs, rng = Documents.from_batch(batch_of(documents)), np.random.default_rng(1)
    targets = np.where(rng.random((40, 20)) < 0.5, rng.integers(5, length + 1, (40, 20)), length).astype(np.int32)
    starts = segmenting.example_starts(docs, lambda step: tf.gather(tf.constant(targets), step))
    number = len(starts.first)
    single, overflow = rng.random((2, number)) < [[0.2], [0.5]]
    goals = segmenting.first_segment_goals(starts.target, tf.constant(single))
    tokens, pairs = segmenting.divide(docs, starts.first, goals, tf.constant(overflow), length)
    found = assemble_pairs(tokens, pairs, SPECIAL, length)
    expected = loop(documents, targets, single, overflow, length)
    assert len(expected) == number > 100
    ids, types = (np.array(each) for each in zip(*expected, strict=True))
    np.testing.assert_array_equal(found["inputs"], ids)
    np.testing.assert_array_equal(found["token_types"], types)
    # A sentence of A may come after one of B.
    a_ends = [row[row.tolist().index(SEP) - 1] for row in ids]
    b_starts = [row[types.tolist()[n].index(1)] if 1 in types[n] else 10**9 for n, row in enumerate(ids)]
    assert np.any(np.array(a_ends) > np.array(b_starts))


def examples_of(documents, length):
    ds = tf.data.Dataset.from_tensor_slices(batch_of(documents))
    ds = ds.map(lambda example: {name: tf.convert_to_tensor(value) for name, value in example.items()})
    with seqio.utils.map_seed_manager(3):
        return list(segmenting.segment_examples(ds, {"inputs": length}, {}, special=SPECIAL).as_numpy_iterator())


@pytest.mark.full
def test_distributions_over_long_documents():
    length, token = 64, iter(range(10, 10**9))
    documents = [[[next(token)] for _ in range(10_000)] for _ in range(20)]  # 200,000 sentences of one token
    rows = examples_of(documents, length)
    seps = np.array([(row["inputs"] == SEP).sum() for row in rows])
    single = (seps == 1).mean()
    assert single == pytest.approx(0.1, abs=4 * (0.09 / len(rows)) ** 0.5)
    tokens = np.array([(row["inputs"] > 3).sum() for row in rows]) + seps + 1
    # A target of n tokens, up to 60, gives n tokens of text and the special ones.
    short = tokens[tokens < length]
    assert len(short) / len(rows) == pytest.approx(0.05 * 56 / 60, abs=4 * (0.05 / len(rows)) ** 0.5 + 20 / len(rows))
    assert short.min() < 12
    full = [row for row in rows if (row["inputs"] != 0).all() and row["token_types"].any()]
    a_lengths = np.array([(row["token_types"] == 0).sum() - 2 for row in full])
    # Below the goal (64 - 3) // 2, or equal to it in half of the examples. A few full rows have a random target.
    assert np.isin(a_lengths, [29, 30]).mean() > 0.99
    assert (a_lengths == 30).mean() == pytest.approx(0.5, abs=4 * (0.25 / len(full)) ** 0.5)


def test_too_short_rows_raise():
    with pytest.raises(UserError, match="TASK_FEATURE_LENGTHS=.'inputs': 4.: an example has three special tokens"):
        examples_of([[[10, 11]]], 4)
