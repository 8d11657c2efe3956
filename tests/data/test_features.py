import pytest

from t5x_like.data.features import ENCODER_DECODER, FeatureSpec, ModelFeature

pytestmark = pytest.mark.notf


def test_encoder_decoder_reads_inputs_and_targets():
    assert ENCODER_DECODER.task_features == ("inputs", "targets")
    assert ENCODER_DECODER.segment_features == ("encoder_segment_ids", "decoder_segment_ids")


def test_model_lengths_follow_their_sources():
    lengths = ENCODER_DECODER.model_lengths({"inputs": 9, "targets": 5, "unread": 7})
    assert {length for name, length in lengths.items() if name.startswith("encoder_")} == {9}
    assert {length for name, length in lengths.items() if name.startswith("decoder_")} == {5}
    assert len(lengths) == 8


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({"inputs": 9}, "no length for 'targets'; this objective reads 'inputs', 'targets'"),
        ({"inputs": 9, "targets": 0}, "length of 'targets' must be a whole number"),
        ({"inputs": 9.0, "targets": 5}, "length of 'inputs' must be a whole number"),
    ],
)
def test_bad_lengths_name_the_setting(lengths, message):
    with pytest.raises(ValueError, match="TASK_FEATURE_LENGTHS.*" + message):
        ENCODER_DECODER.model_lengths(lengths)


def test_roles_and_names_are_checked():
    with pytest.raises(ValueError, match="'x' has role 'mask'; roles are tokens, shifted"):
        ModelFeature("x", "inputs", "mask")
    twice = (ModelFeature("x", "inputs", "tokens"), ModelFeature("x", "targets", "tokens"))
    with pytest.raises(ValueError, match=r"declared twice: \['x'\]"):
        FeatureSpec(twice, packable=False)
