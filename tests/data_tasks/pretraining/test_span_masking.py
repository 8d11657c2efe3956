"""Tests of SpanBERT's masking and blocks: equal to loops over tokens with the same draws, and their distributions."""

import collections
import math

import numpy as np
import pytest
import tensorflow as tf

from data_tasks import shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.pretraining.masked_lm import Rows, seeded_draws
from data_tasks.pretraining.sentence_blocks import blocks
from data_tasks.pretraining.sentence_pairs import Documents
from data_tasks.pretraining.span_masking import SpanMasking, select_spans
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.specs import MASKED_LM
from t5x_like.errors import UserError
from t5x_like.vocabularies.special_tokens import SpecialTokens

CLS, SEP, MASK = 1, 2, 3
SPECIAL = SpecialTokens(CLS, SEP, MASK)


class Pieces:
    """A vocabulary of 40 ids, of which those from 30 on continue a word."""

    vocab_size, extra_ids = 40, 0
    word_starts = np.arange(40) < 30


def random_rows(rng, rows, length, longest=None):
    counts = rng.integers(3, length + 1, rows) if longest is None else np.full(rows, longest)
    tokens = rng.integers(4, 40, (rows, length))
    tokens[:, 0] = CLS
    tokens[np.arange(rows), counts - 1] = SEP
    tokens *= np.arange(length) < counts[:, None]
    return Rows(tf.constant(tokens, tf.int32), tf.constant(counts, tf.int32), SPECIAL)


def by_loop(tokens, anchors, wanted):
    """Chooses the positions of one text without special tokens, by a loop over anchors and sizes of spans."""
    starts = [position for position, token in enumerate(tokens) if Pieces.word_starts[token] or position == 0]
    bounds = [*starts, len(tokens)]
    chosen = set()
    while len(chosen) < wanted:
        anchor, size = next(anchors)
        if anchor in chosen:
            continue
        word = max(index for index, start in enumerate(starts) if start <= anchor)
        for position in range(starts[word], bounds[min(word + size, len(starts))]):
            if len(chosen) == wanted:
                break
            chosen.add(position)
    return chosen


def test_spans_are_those_of_a_loop_over_anchors():
    rng = np.random.default_rng(0)
    rows, length = 200, 40
    given = random_rows(rng, rows, length)
    scores, words = rng.permutation(rows * length).reshape(rows, length), rng.integers(1, 5, (rows, length))
    wanted = np.ceil(0.4 * given.text.numpy().sum(1)).astype(np.int32)
    starts = Pieces.word_starts[given.tokens.numpy()]
    chosen = select_spans(given, tf.constant(starts), scores.astype(np.uint32), words.astype(np.int32), wanted).numpy()
    assert (chosen.sum(1) == wanted).all()
    for row in range(rows):
        text = np.flatnonzero(given.text[row])
        anchors = [(anchor, words[row, text[anchor]]) for anchor in np.argsort(-scores[row, text])]
        expected = by_loop(given.tokens.numpy()[row, text], iter(anchors), wanted[row])
        assert set(np.flatnonzero(chosen[row])) == {text[position] for position in expected}


def run_lengths(chosen):
    """Returns the number of runs of adjacent chosen tokens by length."""
    edges = np.flatnonzero(np.diff(np.pad(chosen, ((0, 0), (1, 1))).astype(int).ravel()))
    return collections.Counter((edges[1::2] - edges[::2]).tolist())


def test_distribution_of_spans_is_that_of_the_published_algorithm():
    """210,000 tokens of text, against the loop with rejected anchors and NumPy's draws."""
    rng, rows, length = np.random.default_rng(1), 1640, 130
    given = random_rows(rng, rows, length, longest=length)
    chosen = SpanMasking().choose(given, seeded_draws(tf.constant([rows, length]), tf.constant([1, 2])), 20, Pieces)
    found = run_lengths(chosen.numpy())
    probabilities = 0.2 * 0.8 ** np.arange(10)
    probabilities /= probabilities.sum()
    assert probabilities @ np.arange(1, 11) == pytest.approx(3.8, abs=0.01)  # the published mean
    expected = np.zeros((rows, length), bool)
    anchors = iter(lambda: (rng.integers(length - 2), rng.choice(np.arange(1, 11), p=probabilities)), None)
    for row in range(rows):
        positions = by_loop(given.tokens.numpy()[row, 1:-1], anchors, math.ceil(0.15 * (length - 2)))
        expected[row, [position + 1 for position in positions]] = True
    reference = run_lengths(expected)
    assert chosen.numpy().sum() == expected.sum()
    for size in range(1, 21):
        counts = found[size], reference[size]
        assert abs(counts[0] - counts[1]) < 4 * math.sqrt(sum(counts) + 1), f"{size}: {counts}"


def test_spans_of_tokens_may_begin_within_words():
    rng, rows, length = np.random.default_rng(1), 400, 60
    given = random_rows(rng, rows, length, longest=length)
    draw = seeded_draws(tf.constant([rows, length]), tf.constant([1, 2]))
    chosen = SpanMasking(success=1 / 3, max_words=9, whole_words=False).choose(given, draw, 20, Pieces).numpy()
    assert (chosen.sum(1) == math.ceil(0.15 * (length - 2))).all()
    first = chosen & ~np.pad(chosen, ((0, 0), (1, 0)))[:, :-1]
    within = (given.tokens.numpy() >= 30) & first
    assert within.sum() / first.sum() == pytest.approx(10 / 36, abs=0.03)


def test_a_span_has_one_kind_of_replacement_with_the_frequencies_of_the_text():
    rng, rows, length = np.random.default_rng(2), 4000, 20
    tokens = np.where(rng.random((rows, length)) < 0.7, 4, rng.integers(5, 40, (rows, length)))
    tokens[:, 0], tokens[:, -1] = CLS, SEP
    given = Rows(tf.constant(tokens, tf.int32), tf.fill([rows], length), SPECIAL)
    chosen = np.zeros((rows, length), bool)
    chosen[:, 3:6] = chosen[:, 10:14] = True
    draw = seeded_draws(tf.constant([rows, length]), tf.constant([3, 4]))
    found = SpanMasking().replacements(given, tf.constant(chosen), draw, Pieces).numpy()
    spans = [(found[:, part], tokens[:, part]) for part in (slice(3, 6), slice(10, 14))]
    masked = np.concatenate([(new == MASK).all(1) for new, _ in spans])
    assert not any(((new == MASK).any(1) & ~(new == MASK).all(1)).any() for new, _ in spans)
    kept = np.concatenate([(new == old).all(1) for new, old in spans])
    # A random span equals its text with probability 0.5² · … ≈ 0.1 here, which adds to the 10 % that stay.
    assert masked.mean() == pytest.approx(0.8, abs=0.015) and 0.1 <= kept.mean() < 0.15
    random = np.concatenate([new[~(new == MASK).all(1) & ~(new == old).all(1)].ravel() for new, old in spans])
    assert not np.isin(random, [0, CLS, SEP]).any() and 0.5 < (random == 4).mean() < 0.75


def test_blocks_have_whole_sentences_of_one_document():
    lengths = [[3, 4, 2], [9, 1], [5], [2, 2, 2, 2, 2]]
    sizes = tf.ragged.constant(lengths, tf.int32)
    total = sum(map(sum, lengths))
    batch = {
        "tokens": tf.RaggedTensor.from_row_lengths(tf.range(total), [sum(each) for each in lengths]),
        "sentence_lengths": sizes,
        "document": tf.range(4, dtype=tf.int64),
    }
    found = blocks(Documents.from_batch(batch), 7).to_list()
    # [3 4] [2] | the sentence of 9 tokens is dropped [1] | [5] | [2 2 2] [2 2]
    assert [len(block) for block in found] == [7, 2, 1, 5, 6, 4]
    assert found[1] == [7, 8] and found[2] == [18] and sum(found, []) == [*range(9), *range(18, total)]


def test_task_gives_packed_rows_of_spans():
    source = SeqIOSource(
        mixture_or_task_name="python_docs_span_masking",
        task_feature_lengths={"inputs": 128, "targets": 19},
        pack=True,
        batch_size=16,
    )
    batch = next(source.host_iterator(MASKED_LM))
    weights, positions = batch["masked_weights"] > 0, batch["masked_positions"]
    assert 0.13 < weights.sum() / (batch["encoder_segment_ids"] > 0).sum() < 0.16
    adjacent = (np.diff(positions, axis=1) == 1) & weights[:, 1:]
    assert adjacent.sum() > 0.5 * weights.sum()


def test_invalid_maskings_raise():
    for arguments, message in (
        ({"rate": 1.0}, "mask rate 1.0"),
        ({"success": 0}, "success=0"),
        ({"max_words": 0}, "=0"),
    ):
        with pytest.raises(UserError, match=message):
            SpanMasking(**arguments)
    with pytest.raises(UserError, match="up to 19 of 128 tokens .* holds only 10. Set targets to 19"):
        SpanMasking().check(128, 10)
