"""Tests of T5's noise masks. Random spans without a roll are tested in test_preprocessors.py."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf

from data_tasks.pretraining import noise_masks

LENGTHS = [1, 2, 7, 40, 100]


def seed(number=0):
    return tf.constant([number, 7], tf.int64)


def runs(row):
    return [(value, len(list(group))) for value, group in itertools.groupby(row.tolist())]


@pytest.mark.parametrize(
    "mask",
    [
        lambda lengths: noise_masks.iid_mask(lengths, 100, seed(), 0.9),
        lambda lengths: noise_masks.regular_mask(lengths, 100, seed(), 0.9),
        lambda lengths: noise_masks.after_prefix_mask(lengths, 100, seed()),
        lambda lengths: noise_masks.random_spans_mask(lengths + 1, 101, seed(), 0.9, 3.0, random_roll=True)[:, :100],
    ],
)
def test_padding_is_never_noise(mask):
    rows = mask(tf.constant(LENGTHS)).numpy()
    assert rows.shape == (5, 100) and rows.dtype == bool
    assert not any(row[length + 1 :].any() for row, length in zip(rows, LENGTHS, strict=True))
    assert rows[-1].any()


def test_iid_mask_is_uniform_and_independent():
    rows = noise_masks.iid_mask(tf.fill([4000], 50), 50, seed(), 0.15).numpy()
    # Four standard deviations: of 200,000 draws, of 4,000 in a column, and of 196,000 pairs.
    assert rows.mean() == pytest.approx(0.15, abs=4 * (0.15 * 0.85 / 200_000) ** 0.5)
    assert np.abs(rows.mean(axis=0) - 0.15).max() < 4 * (0.15 * 0.85 / 4000) ** 0.5
    assert (rows[:, 1:] & rows[:, :-1]).mean() == pytest.approx(0.0225, abs=4 * (0.0225 / 196_000) ** 0.5)


def test_regular_mask_has_one_span_length_and_period_per_row():
    rows = noise_masks.regular_mask(tf.fill([2000], 60), 60, seed(), 0.25, 1, 3).numpy()
    seen = collections.Counter()
    for row in rows:
        inner = runs(row)[1:-1]  # the ends of the row may cut runs short
        spans = {length for is_noise, length in inner if is_noise}
        gaps = {length for is_noise, length in inner if not is_noise}
        assert len(spans) == 1 and len(gaps) == 1
        (span,), (gap,) = spans, gaps
        assert span + gap == 4 * span
        seen[span] += 1
    assert sorted(seen) == [1, 2, 3]
    assert all(abs(count - 2000 / 3) < 4 * (2000 * 2 / 9) ** 0.5 for count in seen.values())
    assert rows.mean() == pytest.approx(0.25, abs=0.01)
    assert np.abs(rows.mean(axis=0) - 0.25).max() < 4 * (0.25 * 0.75 / 2000) ** 0.5


@pytest.mark.parametrize(("density", "least"), [(0.5, 1), (0.25, 5)])
def test_random_prefix_lengths_are_uniform(density, least):
    # 10 and 9 lengths: round((1 - 2 * 0.25) * 10) is 5.
    lengths = noise_masks.random_prefix_lengths(tf.fill([10_000], 11), seed(), density).numpy()
    counts = collections.Counter(lengths.tolist())
    assert sorted(counts) == list(range(least, 11))
    expected = 10_000 / (11 - least)
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < (27.9 if least == 1 else 20.6)  # p = 0.001 with 9 and with 5 degrees of freedom


def test_after_prefix_mask_has_its_density():
    rows = noise_masks.after_prefix_mask(tf.fill([4000], 101), 101, seed(), 0.25).numpy()
    assert rows.mean() == pytest.approx(0.25, abs=0.01)
    assert not rows[:, 0].any() and rows[:, -1].all()
    with pytest.raises(ValueError, match="noise_density=0.6"):
        noise_masks.random_prefix_lengths(tf.constant([5]), seed(), 0.6)


def test_rolled_spans_keep_counts_and_are_uniform():
    lengths = tf.fill([6000], 20)
    plain = noise_masks.random_spans_mask(lengths, 20, seed(), 0.15, 3.0).numpy()
    rolled = noise_masks.random_spans_mask(lengths, 20, seed(), 0.15, 3.0, random_roll=True).numpy()
    # 3 noise tokens in one span: without a roll, always the last three.
    assert (plain == np.arange(20).__ge__(17)).all()
    assert (rolled.sum(axis=1) == 3).all()
    assert np.abs(rolled.mean(axis=0) - 0.15).max() < 4 * (0.15 * 0.85 / 6000) ** 0.5
    assert {len(runs(np.concatenate([row, row]))) for row in rolled} <= {4, 5}  # one span per cycle


def test_roll_stays_within_row_length():
    rows = tf.constant([[1, 2, 3, 4, 5], [1, 2, 3, 0, 0], [0, 0, 0, 0, 0]])
    rolled = noise_masks.roll(rows, tf.constant([5, 3, 0]), tf.constant([2, -1, 4]))
    assert rolled.numpy().tolist() == [[4, 5, 1, 2, 3], [2, 3, 1, 0, 0], [0, 0, 0, 0, 0]]
