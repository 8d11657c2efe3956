"""Metrics of sets of labels, by hand."""

import pytest

from data_tasks.metrics.multi_label import loose_f1, set_accuracy

TARGETS = [[1, 0, 1], [0, 1, 0], [1, 1, 1], [-1, -1, -1]]
PREDICTIONS = [[0.9, 0.6, 0.7], [0.1, 0.8, 0.2], [0.2, 0.9, 0.5], [0.9, 0.9, 0.9]]


def test_accuracy_counts_equal_sets():
    assert set_accuracy(TARGETS, PREDICTIONS) == {"set_accuracy": pytest.approx(100 / 3)}


def test_loose_f1_of_examples_and_of_all_labels():
    # Common labels 2, 1, 1; predicted 3, 1, 1; true 2, 1, 3.
    precision, recall = (2 / 3 + 1 + 1) / 3, (1 + 1 + 1 / 3) / 3
    macro = 2 * precision * recall / (precision + recall)
    micro = 2 * (4 / 5) * (4 / 6) / (4 / 5 + 4 / 6)
    found = loose_f1(TARGETS, PREDICTIONS)
    assert found == {"loose_macro_f1": pytest.approx(100 * macro), "loose_micro_f1": pytest.approx(100 * micro)}
    assert loose_f1([[1, 0]], [[0.0, 0.0]]) == {"loose_macro_f1": 0.0, "loose_micro_f1": 0.0}
    assert loose_f1(TARGETS[3:], PREDICTIONS[3:]) == set_accuracy([], []) == {}
