"""The span-boundary objective: spans of masked positions, and which tokens count."""

import numpy as np
import pytest

from t5x_like.errors import UserError
from t5x_like.objectives.span_boundary import SpanBoundary, spans


def test_spans_are_runs_of_adjacent_positions():
    positions = np.array([[3, 4, 5, 9, 10, 12], [1, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5]], np.int32)
    weights = np.array([[1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]], np.int32)
    start, end = spans(positions, weights)
    assert start[0].tolist() == [3, 3, 3, 9, 9, 12] and end[0].tolist() == [5, 5, 5, 10, 10, 12]
    assert (start[1, 0], end[1, 0]) == (1, 1) and start[2, :3].tolist() == [0] * 3 and end[2, :3].tolist() == [2] * 3


def test_spans_at_the_ends_of_a_text_and_long_spans_have_no_weight():
    # Two packed texts, [CLS] at 0 and 8, [SEP] at 7 and 15; padding from 16.
    segments = np.repeat([[1, 2, 0]], [8, 8, 2], axis=1).astype(np.int32)

    def weights(*positions, max_targets=15):
        row = np.zeros((1, 6), np.int32)
        row[0, : len(positions)] = positions
        rows = {
            "masked_positions": row,
            "masked_weights": (np.arange(6) < len(positions)).astype(np.int32)[None],
            "encoder_segment_ids": segments,
        }
        return SpanBoundary(max_targets=max_targets).weights(rows)["span_boundary"][0, : len(positions)].tolist()

    assert weights(2, 3, 5) == [1, 1, 1]
    assert weights(1, 2, 5) == [0, 0, 1]  # begins the text
    assert weights(2, 4, 5, 6) == [1, 0, 0, 0]  # ends the text
    assert weights(9, 10, 11, 13) == [0, 0, 0, 1]
    assert weights(11, 14) == [1, 0]
    assert weights(2, 3, 4, 5, max_targets=2) == [1, 1, 0, 0]


def test_invalid_arguments_raise():
    with pytest.raises(UserError, match="SpanBoundary.max_targets=0: not positive"):
        SpanBoundary(max_targets=0)
