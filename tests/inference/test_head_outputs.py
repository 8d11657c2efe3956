"""The fields of the output for labels, scores, tags, choices and spans."""

import numpy as np
import pytest
import seqio

from t5x_like.inference.head_outputs import head_fields
from t5x_like.vocabularies.labels import LabelVocabulary

LABELS = LabelVocabulary(("negative", "positive"))
NO_NAMES = seqio.PassThroughVocabulary(3)
SHARES = np.array([0.25, 0.75], np.float32)


def test_label_has_its_name_and_probabilities_by_name():
    outputs = {"predictions": np.array([1]), "probabilities": SHARES}
    expected = {"prediction": "positive", "probabilities": {"negative": 0.25, "positive": 0.75}}
    assert head_fields([(5, {}, outputs)], LABELS) == {5: expected}


def test_choice_without_names_is_an_index():
    outputs = {"predictions": np.array([1]), "probabilities": SHARES}
    assert head_fields([(0, {}, outputs)], NO_NAMES) == {0: {"prediction": 1, "probabilities": [0.25, 0.75]}}


def test_score_is_a_number():
    found = head_fields([(0, {}, {"predictions": np.array([2.5], np.float32)})], LabelVocabulary(()))
    assert found == {0: {"prediction": 2.5}}


def test_several_scores_have_the_names_of_the_task():
    outputs = {"predictions": np.array([2.5, 1.0], np.float32)}
    assert head_fields([(0, {}, outputs)], LABELS) == {0: {"prediction": {"negative": 2.5, "positive": 1.0}}}
    assert head_fields([(0, {}, outputs)], NO_NAMES) == {0: {"prediction": [2.5, 1.0]}}


def test_tags_are_those_of_the_first_pieces_of_words():
    outputs = {"predictions": np.array([0, 1, 0, 1]), "probabilities": np.stack([SHARES] * 4)}
    found = head_fields([(0, {"first_pieces": np.array([1, 2, -1])}, outputs)], LABELS)
    assert found == {0: {"prediction": ["positive", "negative", None], "probabilities": [0.75, 0.75, None]}}


def test_several_examples_of_a_record_are_a_list():
    rows = [(0, {}, {"predictions": np.array([label])}) for label in (0, 1)]
    assert head_fields(rows, LABELS) == {0: {"examples": [{"prediction": "negative"}, {"prediction": "positive"}]}}


def window(begin, end):
    """Returns the window of some words of "one two three", after a position outside of the context."""
    words = [(0, 3), (4, 7), (8, 13)][begin:end]
    return {
        "context": b"one two three",
        "answers": np.array([], object),
        "starts": np.array([-1, *(start for start, _ in words)]),
        "ends": np.array([-1, *(stop for _, stop in words)]),
        "max_context": np.array([False] + [True] * len(words)),
    }


def span(start, end, length=4):
    logits = {"start_logits": np.zeros(length), "end_logits": np.zeros(length)}
    logits["start_logits"][start[0]], logits["end_logits"][end[0]] = start[1], end[1]
    return {"predictions": np.zeros(2, np.int32), **logits}


def test_best_span_of_all_windows_is_the_answer():
    rows = [(3, window(0, 2), span((1, 1.0), (1, 1.0))), (3, window(1, 3), span((1, 4.0), (2, 1.0)))]
    assert head_fields(rows, NO_NAMES) == {3: {"prediction": "two three", "score": 5.0, "null_score": 0.0}}


def test_best_span_of_a_beam_has_the_score_of_no_answer_added():
    beam = {"beam_spans": np.array([[1, 2], [2, 2]]), "beam_scores": np.array([-3.0, -1.0])}
    rows = [(0, window(0, 3), {"predictions": np.zeros(2, np.int32), **beam, "null_score_difference": np.float32(0.5)})]
    assert head_fields(rows, NO_NAMES) == {0: {"prediction": "two", "score": -1.0, "null_score": -0.5}}


def test_context_without_span_has_no_score():
    found = head_fields([(0, window(0, 0), span((0, 2.0), (0, 1.0)))], NO_NAMES)
    assert found == {0: {"prediction": "", "score": None, "null_score": pytest.approx(3.0)}}
