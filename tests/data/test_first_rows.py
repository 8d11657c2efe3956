"""The first rows of a run: constant labels and padding are problems, once."""

import numpy as np
import pytest

from t5x_like.data import batches, specs
from t5x_like.data.first_rows import FirstRows

pytestmark = pytest.mark.notf

LABELED = specs.with_label(specs.ENCODER_INPUTS, num_labels=3)


def batch_of(labels, spec=LABELED, tokens=4, name="targets"):
    inputs = np.zeros((len(labels), 8), np.int32)
    inputs[:, :tokens] = 5
    return batches.from_arrays(spec, {"inputs": inputs, name: np.array(labels, np.int32)[:, None]})


def problems(spec, *found, rows=4):
    first = FirstRows(spec, rows)
    return [first.add(batch) for batch in found]


def test_constant_labels_are_reported_once_after_enough_rows():
    none, some, after = problems(LABELED, batch_of([1, 1]), batch_of([1, -1]), batch_of([1, 1]))
    assert none == after == [] and len(some) == 1
    assert some[0].startswith("all 3 labels 'label' in the first 4 rows are 1, from which nothing is learned.")


def test_different_and_unknown_labels_are_no_problem():
    assert problems(LABELED, batch_of([1, 1]), batch_of([1, 0])) == [[], []]
    assert problems(LABELED, batch_of([-1, -1, -1, 2])) == [[]]
    assert problems(specs.ENCODER_INPUTS, batch_of([1] * 4, specs.ENCODER_INPUTS)) == [[]]


def test_labels_without_a_known_number_are_checked():
    """As those of next sentences: one integer per example is a label."""
    spec = specs.with_label(specs.ENCODER_INPUTS)
    assert len(problems(spec, batch_of([1] * 4, spec))[0]) == 1
    names = [each.name for each in specs.SENTENCE_PAIRS.features]
    assert "next_sentence_label" in names and "next_sentence_label" in FirstRows(specs.SENTENCE_PAIRS)._labels


def test_padding_is_reported():
    (found,) = problems(LABELED, batch_of([0, 1, 2, 0], tokens=3))
    assert len(found) == 1 and found[0].startswith("62% of the positions of 'encoder_segment_ids' in the first 4 rows")
