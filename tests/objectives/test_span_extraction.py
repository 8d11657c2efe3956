"""Span extraction: loss by hand, ignored positions, and the best span."""

import numpy as np
import pytest
from objective_cases import read_terms

from t5x_like.models.outputs import Outputs
from t5x_like.objectives import heads
from t5x_like.objectives.passes import total_weights
from t5x_like.objectives.span_extraction import MASKED, SpanExtraction, best_span

OBJECTIVE = SpanExtraction(head=heads.EachToken(dropout_rate=0.0), max_answer_length=2)
LENGTH = 5
LOGITS = np.random.default_rng(0).normal(size=(4, LENGTH, 2)).astype(np.float32)
REAL = (4, 3, 5)  # numbers of tokens
# Known, only the start is known, end beyond the row, padding.
BATCH = {
    "encoder_segment_ids": np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], np.int32),
    "span": np.array([[1, 2], [0, -1], [3, LENGTH], [0, 0]], np.int32),
}
PARAMS = {"objective": {"span_extraction": lambda states, dropout_key=None: states}}


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum())


def test_loss_normalizes_over_tokens_and_ignores_unknown_positions():
    terms = read_terms(OBJECTIVE, PARAMS, Outputs(hidden=LOGITS), BATCH)
    starts = [-log_softmax(LOGITS[row, : REAL[row], 0])[at] for row, at in ((0, 1), (1, 0), (2, 3))]
    ends = [-log_softmax(LOGITS[0, : REAL[0], 1])[2]]
    assert float(terms.sums["span_start"]) == pytest.approx(sum(starts), rel=1e-5)
    assert float(terms.sums["span_end"]) == pytest.approx(sum(ends), rel=1e-5)
    assert {name: float(weight) for name, weight in total_weights(OBJECTIVE, BATCH).items()} == {
        "span_start": 3,
        "span_end": 1,
    }
    assert [float(x) for x in terms.metrics["loss"]] == pytest.approx([sum(starts) + sum(ends), 4], rel=1e-5)
    assert float(terms.metrics["accuracy"][1]) == 1.0


def test_predictions_exclude_padding_and_the_null_position():
    predicted = OBJECTIVE.predict(OBJECTIVE.read(PARAMS, Outputs(hidden=LOGITS), BATCH))
    for row, real in enumerate(REAL):
        start, end = LOGITS[row, :, 0], LOGITS[row, :, 1]
        spans = [(i, j) for i in range(1, real) for j in range(i, min(i + 2, real))]
        best = max(spans, key=lambda span: start[span[0]] + end[span[1]])
        assert predicted["predictions"][row].tolist() == list(best)
        difference = start[0] + end[0] - start[best[0]] - end[best[1]]
        assert float(predicted["null_score_difference"][row]) == pytest.approx(difference, rel=1e-5)
        np.testing.assert_array_equal(predicted["start_logits"][row, :real], start[:real])
        assert (predicted["end_logits"][row, real:] == MASKED).all()
    assert predicted["predictions"][3].tolist() == [0, 0]


def test_row_with_only_the_null_position_has_no_span():
    logits = np.full((1, 3), MASKED, np.float32)
    logits[0, 0] = 2.0
    span, score = best_span(logits, logits, 30)
    assert span.tolist() == [[0, 0]] and float(score[0]) == np.float32(MASKED)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head": heads.PooledFirstToken()}, "PooledFirstToken.*the objective needs each token"),
        ({"head": heads.EachToken(), "max_answer_length": 0}, "max_answer_length=0 is not positive"),
    ],
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        SpanExtraction(**settings)
