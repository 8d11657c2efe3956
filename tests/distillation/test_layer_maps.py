"""Layer maps by hand, and the errors for layers that do not exist."""

import pytest

from t5x_like.distillation import layer_maps
from t5x_like.errors import UserError


def resolve(layer_map, student=4, teacher=12):
    return layer_maps.resolve(
        layer_map, ("the encoder of student", student), ("the encoder of teacher", teacher), "HiddenMSE.layers"
    )


def test_maps_of_tinybert_minilm_and_first_layers():
    assert resolve(layer_maps.every(3)) == ((0, 2), (1, 5), (2, 8), (3, 11))
    assert resolve(layer_maps.uniform(), student=6) == ((0, 1), (1, 3), (2, 5), (3, 7), (4, 9), (5, 11))
    assert resolve(layer_maps.first(2)) == ((0, 0), (1, 1))
    assert resolve(layer_maps.last(2)) == ((2, 10), (3, 11))
    assert resolve(((0, 1), (-1, -2))) == ((0, 1), (3, 10))
    assert resolve(layer_maps.only(layer_maps.every(3), 2)) == ((2, 8),)


@pytest.mark.parametrize(
    ("layer_map", "message"),
    [
        (((0, 12),), "HiddenMSE.layers maps student layer 0 to teacher layer 12: the encoder of teacher has 12 layers"),
        (((-5, 0),), "maps student layer -5 to teacher layer 0: the encoder of student has 4 layers. .* from -4 to -1"),
        (layer_maps.every(4), "maps student layer 3 to teacher layer 15: the encoder of teacher has 12 layers"),
        (layer_maps.first(5), "maps student layer 4 to teacher layer 4: the encoder of student has 4 layers"),
        ((), r"HiddenMSE.layers=\(\) is empty"),
        (((0, 1.5),), r"HiddenMSE.layers=\(\(0, 1.5\),\) is not a layer map"),
        ((0, 1, 2), r"HiddenMSE.layers=\(0, 1, 2\) is not a layer map"),
        (layer_maps.only(layer_maps.last(1), 1), "pair 1 is needed, but there are 1 pairs"),
    ],
)
def test_invalid_layers_raise(layer_map, message):
    with pytest.raises(UserError, match=message):
        resolve(layer_map)


def test_uniform_needs_a_multiple():
    with pytest.raises(UserError, match="12 layers of the teacher are not a multiple of the 5 layers of the student"):
        resolve(layer_maps.uniform(), student=5)


@pytest.mark.parametrize("make", [layer_maps.every, layer_maps.first, layer_maps.last])
def test_a_number_that_is_not_positive_raises(make):
    with pytest.raises(UserError, match="=0 is not a positive integer"):
        make(0)
