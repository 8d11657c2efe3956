"""Features of multiple choice: lengths, rows of the converter and without SeqIO, and errors."""

import numpy as np
import pytest
import tensorflow as tf

from t5x_like.data import batches, specs, token_ids
from t5x_like.data.choices import with_choices
from t5x_like.data.features import Choices, FeatureSpec, ModelFeature, TaskFeature, rows_of_shape
from t5x_like.data.seqio_feed import SpecConverter
from t5x_like.errors import UserError

SPEC = specs.multiple_choice(2)
EXAMPLES = [
    {"inputs_0": [7, 8], "token_types_0": [0, 1], "inputs_1": [9], "token_types_1": [0], "targets": [1]},
    {"inputs_0": [5, 6, 7, 8], "token_types_0": [0, 0, 1, 1], "inputs_1": [], "token_types_1": [], "targets": [-1]},
]
EXPECTED = {
    "encoder_input_tokens": [[[7, 8, 0], [9, 0, 0]], [[5, 6, 7], [0, 0, 0]]],
    "encoder_segment_ids": [[[1, 1, 0], [1, 0, 0]], [[1, 1, 1], [0, 0, 0]]],
    "encoder_positions": [[[0, 1, 0], [0, 0, 0]], [[0, 1, 2], [0, 0, 0]]],
    "token_types": [[[0, 1, 0], [0, 0, 0]], [[0, 0, 1], [0, 0, 0]]],
    "label": [[1], [-1]],
}


def test_one_length_holds_for_all_choices():
    assert SPEC.length_keys == ("inputs",)
    assert set(SPEC.task_lengths({"inputs": 3}).values()) == {3, 1}
    assert SPEC.row_shapes({"inputs": 3}) == {name: np.shape(rows)[1:] for name, rows in EXPECTED.items()}
    with pytest.raises(UserError, match="no length for 'inputs'. Give the length of each feature .*: 'inputs'.$"):
        SPEC.task_lengths({"targets": 3})
    with pytest.raises(UserError, match="choices of 'encoder_input_tokens' have 3 and 4 tokens. .* key 'inputs'"):
        SPEC.model_lengths({"inputs_0": 4, "inputs": 3})


def test_converter_pads_each_choice():
    ds = tf.data.Dataset.from_tensor_slices(
        {name: tf.ragged.constant([example[name] for example in EXAMPLES], dtype=tf.int32) for name in EXAMPLES[0]}
    ).map(lambda example: {name: tf.identity(value) for name, value in example.items()})
    rows = list(SpecConverter(SPEC, pack=False)(ds, {"inputs": 3}).as_numpy_iterator())
    assert {name: [row[name].tolist() for row in rows] for name in rows[0]} == EXPECTED


def test_arrays_without_seqio_give_the_same_rows():
    def padded(name, value):
        return value if name == "targets" else (value + [0, 0, 0])[:3]

    arrays = {name: np.array([padded(name, example[name]) for example in EXAMPLES]) for name in EXAMPLES[0]}
    batch = batches.from_arrays(SPEC, arrays)
    assert {name: array.tolist() for name, array in batch.items()} == EXPECTED
    assert batches.pad_rows(batch["encoder_input_tokens"], 2).shape == (4, 2, 3)


def test_each_choice_is_a_row_of_the_model():
    assert rows_of_shape((8, 4, 16), ("batch", "choices", "length")) == (32, 16)
    assert rows_of_shape((8, 16), ("batch", "length")) == (8, 16)


def test_wrong_token_id_names_its_choice():
    limits = SPEC.id_limits(dict.fromkeys(SPEC.task_features, 9))
    batch = {name: np.array(rows) for name, rows in EXPECTED.items()}
    with pytest.raises(UserError, match=r"token id 9 in 'encoder_input_tokens' .row 0, choice 1, position 0"):
        token_ids.check_ids(batch, limits, data="swag", holder="the model")


def test_spec_of_a_task_with_choices():
    names = [f"{name}_{choice}" for name in ("inputs", "token_types") for choice in range(4)]
    assert specs.spec_for_task([*names, "targets"]) == specs.multiple_choice(4)
    assert specs.spec_for_task(["inputs_0", "inputs_1", "targets"]) == specs.multiple_choice(2, specs.ENCODER_INPUTS)


def test_fixed_features_of_each_choice_are_stacked():
    features = (ModelFeature("tokens", "inputs", "tokens"), ModelFeature("at", "position", "tokens"))
    spec = FeatureSpec(features, packable=False, aligned_features=(TaskFeature("position", length=1),))
    stacked = with_choices(spec, 3)
    assert stacked.fixed_lengths == {"position_0": 1, "position_1": 1, "position_2": 1}
    assert stacked.row_shapes({"inputs": 5}) == {"tokens": (3, 5), "at": (3, 1)}


@pytest.mark.parametrize("number", [1, 0, True, 2.0, None])
def test_invalid_number_of_choices_raises(number):
    with pytest.raises(UserError, match="NUM_CHOICES=.* is not an integer of at least 2"):
        specs.multiple_choice(number)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Choices(()), "Choices.sources is empty"),
        (lambda: ModelFeature("x", Choices(("a", "b")), "row_positions", within="c"), "has no choices"),
        (lambda: TaskFeature("x", length=1, length_key="y"), "length=1 and length_key='y' exclude each other"),
    ],
)
def test_invalid_features_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()
