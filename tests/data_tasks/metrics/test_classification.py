"""Tests of the metrics of classification: worked examples, invalid predictions and unknown targets."""

import numpy as np
import pytest

from data_tasks.downstream.postprocessors import string_label_to_class_id, string_to_float
from data_tasks.metrics import classification, grouped


def test_accuracy_and_f1_count_invalid_predictions_as_wrong():
    targets, predictions = [1, 1, 0, 0, -1], [1, -1, 0, 7, 1]
    assert classification.accuracy(targets, predictions) == {"accuracy": 50}
    # one true positive, one false negative (-1 becomes 0), one false positive (7 becomes 1)
    assert classification.f1(targets, predictions) == {"f1": pytest.approx(50)}
    assert classification.f1([0, 0], [0, 0]) == {"f1": 0}


def test_correlations_match_their_definitions():
    targets, predictions = [1, 1, 1, 0, 0], [1, 1, 0, 0, 1]
    # (tp * tn - fp * fn) / sqrt((tp + fp) (tp + fn) (tn + fp) (tn + fn)) = (2 - 1) / 6
    assert classification.matthews_corrcoef(targets, predictions) == {"matthews_corrcoef": pytest.approx(100 / 6)}
    assert classification.matthews_corrcoef([0, 1], [1, 1]) == {"matthews_corrcoef": 0}
    x, y = [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 4.0, 9.0]
    pearson = 100 * np.corrcoef(x, y)[0, 1]
    assert classification.pearson_corrcoef([*x, -1.0], [*y, 5.0]) == {"pearson_corrcoef": pytest.approx(pearson)}
    assert classification.spearman_corrcoef(x, y) == {"spearman_corrcoef": pytest.approx(100)}


def test_mean_f1_averages_labels_without_weights():
    metric = classification.mean_multiclass_f1(3)
    # F1 of the labels: 2/3 (1 of 2 found, none wrong), 2/3 (1 of 1 found, 1 wrong), 0
    assert metric([0, 0, 1, 2], [0, 1, 1, -1]) == {"mean_3class_f1": pytest.approx(100 * (2 / 3 + 2 / 3) / 3)}


def test_unknown_targets_have_no_metrics():
    metrics = [classification.accuracy, classification.f1, classification.matthews_corrcoef]
    metrics += [classification.pearson_corrcoef, classification.mean_multiclass_f1(2)]
    assert [metric([-1, -1], [0, 1]) for metric in metrics] == [{}] * 5
    assert grouped.exact_match_of_groups([{"value": -1, "group": 0}], [{"value": 1}]) == {}


def test_metrics_of_groups():
    targets = [{"value": value, "group": group} for value, group in [(1, 0), (0, 0), (1, 1), (1, 1)]]
    predictions = [{"value": value} for value in (1, 0, 1, 0)]
    assert grouped.exact_match_of_groups(targets, predictions) == {"exact_match": 50}
    assert grouped.multirc_f1_over_all_answers(targets, predictions) == {"f1": pytest.approx(80)}
    first = grouped.first_of_each_group(lambda targets, predictions: {"pairs": [targets, predictions]})
    assert first(targets, predictions) == {"pairs": [[1, 1], [1, 1]]}


def test_text_is_postprocessed_as_in_t5():
    labels = ("entailment", "not_entailment")
    assert [string_label_to_class_id(text, labels) for text in ("not_entailment", "Entailment", "")] == [1, -1, -1]
    assert [string_to_float(text) for text in ("3.8", " 2 ", "x", "")] == [3.8, 2.0, -1.0, -1.0]
