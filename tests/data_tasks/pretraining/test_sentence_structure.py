"""Tests of StructBERT's corruptions: shuffled trigrams and the order of segments."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from data_tasks import shipped_tasks  # noqa: F401  registers the tasks
from data_tasks.pretraining import sentence_structure
from data_tasks.pretraining.masked_lm import seeded_draws
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.errors import UserError
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.sentence_structure import SentenceStructure
from t5x_like.objectives.word_structure import WordStructure

LENGTHS = {"inputs": 128, "targets": 20, "shuffled_targets": 6}


def test_trigrams_are_disjoint_candidates_and_uniform():
    rows, length = 6000, 12
    candidates = np.ones((rows, length), bool)
    candidates[:, [0, 7, 11]] = False
    draw = seeded_draws(tf.constant([rows, length]), tf.constant([1, 2]))
    firsts = sentence_structure.choose_trigrams(tf.constant(candidates), draw(0), tf.fill([rows], 1)).numpy()
    # Trigrams may begin at 1, 2, 3, 4 and 8.
    np.testing.assert_allclose(firsts.mean(0)[[1, 2, 3, 4, 8]], 0.2, atol=0.02)
    two = sentence_structure.choose_trigrams(tf.constant(candidates), draw(0), tf.fill([rows], 3)).numpy()
    for row in two[:200]:
        starts = np.flatnonzero(row)
        assert (
            {8} < set(starts) and (np.diff(starts) >= 3).all() and candidates[0, starts[:, None] + np.arange(3)].all()
        )
    assert set(two.sum(1)) == {2, 3}, "two trigrams fit into positions 1 to 6 if the first is at 1 or 4"


def test_trigrams_have_all_orders_with_equal_probability():
    rows, length = 6000, 8
    firsts = np.zeros((rows, length), bool)
    firsts[:, [1, 4]] = True
    draw = seeded_draws(tf.constant([rows, length]), tf.constant([3, 4]))
    order = sentence_structure.trigram_order(tf.constant(firsts), draw(1)).numpy()
    assert (order[:, [0, 7]] == [0, 7]).all()
    for first in (1, 4):
        counts = collections.Counter(map(tuple, order[:, first : first + 3].tolist()))
        assert len(counts) == 6 and all(set(each) == {first, first + 1, first + 2} for each in counts)
        np.testing.assert_allclose(np.array([*counts.values()]) / rows, 1 / 6, atol=0.02)


def test_task_restores_shuffled_tokens_and_balances_labels():
    """About 200,000 tokens."""
    source = SeqIOSource(
        mixture_or_task_name="python_docs_sentence_structure", task_feature_lengths=LENGTHS, pack=False, batch_size=64
    )
    iterator = source.host_iterator(Joint([WordStructure(), SentenceStructure()]).features)
    labels, shuffled, tokens, moved = [], 0, 0, []
    for _ in range(25):
        batch = next(iterator)
        labels.extend(batch["next_sentence_label"][:, 0])
        counts = (batch["encoder_segment_ids"] > 0).sum(1)
        weights = batch["shuffled_weights"] > 0
        shuffled, tokens = shuffled + weights.sum(), tokens + counts.sum()
        assert (weights.sum(1) <= 3 * np.round(counts * 0.05 / 3)).all()
        for row in range(8):
            positions = batch["shuffled_positions"][row][weights[row]]
            masked = batch["masked_positions"][row][batch["masked_weights"][row] > 0]
            assert not set(positions) & set(masked)
            found = batch["encoder_input_tokens"][row][positions].reshape(-1, 3)
            targets = batch["shuffled_targets"][row][weights[row]].reshape(-1, 3)
            assert (np.sort(found) == np.sort(targets)).all()
            moved.extend((found != targets).any(1))
    assert 0.035 < shuffled / tokens < 0.06
    assert 0.7 < np.mean(moved) < 0.9  # 5/6, less where tokens of a trigram are equal
    shares = np.bincount(labels) / len(labels)
    # A chunk with a single sentence always has a random second segment.
    assert abs(shares[0] - shares[1]) < 0.05 and 0.33 < shares[2] < 0.5


def test_too_short_length_raises():
    with pytest.raises(UserError, match="up to 6 of 128 tokens .* holds only 3. Set shuffled_targets to 6"):
        next(
            SeqIOSource(
                mixture_or_task_name="python_docs_sentence_structure",
                task_feature_lengths=LENGTHS | {"shuffled_targets": 3},
                pack=False,
                batch_size=2,
            ).host_iterator(WordStructure.features)
        )
