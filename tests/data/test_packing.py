"""Packing by the feature converter: rows worked by hand, and equality with SeqIO's converter."""

import numpy as np
import pytest
import seqio
import tensorflow as tf
from lanes import others_are_full

from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.data.seqio_feed import SeqIOSource, SpecConverter
from t5x_like.data.seqio_feed import packing as packings
from t5x_like.data.specs import ENCODER_DECODER
from t5x_like.errors import UserError


def assert_same(left, right):
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert set(one) == set(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def converted(examples, lengths, *, pack, spec=ENCODER_DECODER, **settings):
    ds = tf.data.Dataset.from_tensor_slices(
        {name: tf.ragged.constant([example[name] for example in examples], dtype=tf.int32) for name in lengths}
    )
    ds = ds.map(lambda example: {name: tf.identity(value) for name, value in example.items()})
    return list(SpecConverter(spec, pack=pack, **settings)(ds, lengths).as_numpy_iterator())


def test_two_examples_share_a_row():
    examples = [{"inputs": [7, 8, 5, 1], "targets": [3, 9, 1]}, {"inputs": [8, 4, 9, 3, 1], "targets": [4, 1]}]
    (row,) = converted(examples, {"inputs": 10, "targets": 7}, pack=True)
    assert {name: array.tolist() for name, array in row.items()} == {
        "encoder_input_tokens": [7, 8, 5, 1, 8, 4, 9, 3, 1, 0],
        "encoder_segment_ids": [1, 1, 1, 1, 2, 2, 2, 2, 2, 0],
        "encoder_positions": [0, 1, 2, 3, 0, 1, 2, 3, 4, 0],
        "decoder_target_tokens": [3, 9, 1, 4, 1, 0, 0],
        "decoder_input_tokens": [0, 3, 9, 0, 4, 0, 0],
        "decoder_loss_weights": [1, 1, 1, 1, 1, 0, 0],
        "decoder_segment_ids": [1, 1, 1, 2, 2, 0, 0],
        "decoder_positions": [0, 1, 2, 0, 1, 0, 0],
    }
    assert {array.dtype for array in row.values()} == {np.dtype(np.int32)}


def test_unpacked_rows_have_one_segment_each():
    examples = [{"inputs": [7, 8, 1], "targets": [3, 1]}, {"inputs": [9, 9, 9, 9, 1], "targets": [4]}]
    first, second = converted(examples, {"inputs": 4, "targets": 3}, pack=False)
    assert first["encoder_segment_ids"].tolist() == [1, 1, 1, 0]
    assert first["encoder_positions"].tolist() == [0, 1, 2, 0]
    assert first["decoder_input_tokens"].tolist() == [0, 3, 0]
    assert first["decoder_loss_weights"].tolist() == [1, 1, 0]
    assert second["encoder_input_tokens"].tolist() == [9, 9, 9, 9]  # trimmed
    assert second["decoder_loss_weights"].tolist() == [1, 0, 0]


@pytest.mark.parametrize("count", others_are_full([0, 1, 7, 200], [0, 200]))
def test_packing_equals_seqio(count):
    generator = np.random.default_rng(count)
    lengths = {"inputs": 12, "targets": 9}
    examples = [
        {"inputs": generator.integers(1, 99, generator.integers(1, 9)), "targets": generator.integers(1, 99, 4)}
        for _ in range(count)
    ]
    if not examples:
        ds = tf.data.Dataset.from_tensor_slices({name: tf.zeros([0, 3], tf.int32) for name in lengths})
        assert list(SpecConverter(ENCODER_DECODER, pack=True)(ds, lengths)) == []
        return
    ds = tf.data.Dataset.from_tensor_slices(
        {name: tf.ragged.constant([example[name].tolist() for example in examples], dtype=tf.int32) for name in lengths}
    ).map(lambda example: {name: tf.identity(value) for name, value in example.items()})
    ours = list(SpecConverter(ENCODER_DECODER, pack=True)(ds, lengths).as_numpy_iterator())
    assert_same(ours, list(seqio.EncDecFeatureConverter(pack=True)(ds, lengths).as_numpy_iterator()))
    packed = np.concatenate([row["encoder_input_tokens"] for row in ours])
    assert packed[packed > 0].tolist() == [token for example in examples for token in example["inputs"]]


def test_segment_ids_match_across_features_with_empty_examples():
    examples = [
        {"inputs": [5], "targets": []},
        {"inputs": [], "targets": []},
        {"inputs": [6], "targets": [7]},
        {"inputs": [], "targets": [8]},
    ]
    (row,) = converted(examples, {"inputs": 4, "targets": 4}, pack=True)
    assert row["encoder_input_tokens"].tolist() == [5, 6, 0, 0]
    assert row["encoder_segment_ids"].tolist() == [1, 2, 0, 0]
    assert row["decoder_target_tokens"].tolist() == [7, 8, 0, 0]
    assert row["decoder_segment_ids"].tolist() == [2, 3, 0, 0]


def test_packing_an_unpackable_spec_raises():
    spec = FeatureSpec((ModelFeature("x", "inputs", "tokens"),), packable=False)
    with pytest.raises(ValueError, match="Set PACK=False"):
        SpecConverter(spec, pack=True)
    (row,) = converted([{"inputs": [3, 4]}], {"inputs": 3}, pack=False, spec=spec)
    assert row["x"].tolist() == [3, 4, 0]


def best_fit(sizes, capacities, *, decreasing, open_rows):
    """Returns the examples of each row in the order of their first examples, with lists and loops."""
    order = sorted(range(len(sizes)), key=lambda example: -sum(sizes[example])) if decreasing else range(len(sizes))
    closed, rows = [], []
    for example in order:
        left = [[space - size for space, size in zip(row["space"], sizes[example], strict=True)] for row in rows]
        fitting = [number for number, spaces in enumerate(left) if min(spaces) >= 0]
        if fitting:
            row = rows[min(fitting, key=lambda number: sum(left[number]))]
        else:
            if not decreasing and len(rows) == open_rows:
                closed, rows = closed + rows, []
            rows.append(row := {"space": list(capacities), "examples": []})
        row["examples"].append(example)
        row["space"] = [space - size for space, size in zip(row["space"], sizes[example], strict=True)]
    return sorted(sorted(row["examples"]) for row in closed + rows)


@pytest.mark.parametrize("packing", ["best_fit", "best_fit_decreasing"])
@pytest.mark.parametrize("capacities", [(12, 9), pytest.param((20,), marks=pytest.mark.full)])
def test_best_fit_equals_lists_and_loops(packing, capacities, monkeypatch):
    monkeypatch.setattr(packings, "OPEN_ROWS", 3)
    generator = np.random.default_rng(len(capacities))
    sizes = np.stack([generator.integers(1, capacity + 1, 60) for capacity in capacities], axis=1)
    counts = {track: tf.constant(sizes[:, track], tf.int32) for track in range(len(capacities))}
    found = packings.pack(packing, counts, dict(enumerate(capacities)), 60)
    row, order = found.row.numpy(), found.order.numpy()
    rows = [order[row == number].tolist() for number in range(int(found.number_of_rows))]
    assert rows == best_fit(sizes.tolist(), capacities, decreasing=packing == "best_fit_decreasing", open_rows=3)
    assert found.segment.numpy().tolist() == [place for each in rows for place in range(1, len(each) + 1)]


@pytest.mark.parametrize(
    ("packing", "expected"),
    [
        ("best_fit", [[1, 1, 1, 1, 2, 2, 2, 0], [3, 3, 3, 3, 0, 0, 0, 0], [4, 4, 4, 4, 4, 0, 0, 0]]),
        ("best_fit_decreasing", [[1, 1, 1, 1, 3, 3, 3, 3], [2, 2, 2, 4, 4, 4, 4, 4]]),
    ],
)
def test_rows_of_best_fit_have_all_examples_in_order(packing, expected):
    examples = [{"inputs": [1 + n] * size, "targets": [n + 5]} for n, size in enumerate((4, 3, 4, 5))]
    rows = converted(examples, {"inputs": 8, "targets": 3}, pack=True, packing=packing)
    assert [row["encoder_input_tokens"].tolist() for row in rows] == expected
    targets = [[5 + token - 1 for token in dict.fromkeys(row) if token] for row in expected]
    assert [[token for token in row["decoder_target_tokens"].tolist() if token] for row in rows] == targets


def test_unknown_packing_raises():
    with pytest.raises(UserError, match="PACKING='first_fit' is unknown. Give one of next_fit, best_fit, best_fit_de"):
        SeqIOSource(mixture_or_task_name="any", task_feature_lengths={}, batch_size=1, packing="first_fit")
