import pytest

from t5x_like.data import features
from t5x_like.data.features import ENCODER_DECODER, FeatureSpec, ModelFeature, TaskFeature

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
        (32, "=32 is not a dictionary. Give a length in tokens per feature, such as {'inputs': 128"),
        ("inputs", "='inputs' is not a dictionary"),
        (None, "=None is not a dictionary"),
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


def test_every_spec_names_what_it_reads():
    assert features.CAUSAL_LM.task_features == features.NEXT_TOKEN.task_features == ("targets",)
    assert features.PREFIX_LM.task_features == ("inputs", "targets")
    assert features.MASKED_LM.task_features == ("inputs", "masked_positions", "targets")
    assert set(features.SENTENCE_PAIRS.task_features) == {
        *features.MASKED_LM.task_features,
        "token_types",
        "next_sentence_label",
    }
    assert [spec.packable for spec in (features.PREFIX_LM, features.MASKED_LM, features.SENTENCE_PAIRS)] == [
        True,
        True,
        False,
    ]


def test_joined_lengths_add_up():
    lengths = features.PREFIX_LM.model_lengths({"inputs": 9, "targets": 5})
    assert set(lengths.values()) == {14}
    assert set(lengths) == {feature.name for feature in features.PREFIX_LM.features}


def test_features_that_run_along_others_take_their_lengths():
    given = {"inputs": 128, "targets": 20}
    assert features.SENTENCE_PAIRS.task_lengths(given) == {
        "inputs": 128,
        "masked_positions": 20,
        "targets": 20,
        "token_types": 128,
        "next_sentence_label": 1,
    }
    lengths = features.SENTENCE_PAIRS.model_lengths(given)
    assert lengths["token_types"] == lengths["encoder_input_tokens"] == 128
    assert lengths["masked_positions"] == lengths["masked_targets"] == lengths["masked_weights"] == 20
    assert lengths["next_sentence_label"] == 1
    with pytest.raises(ValueError, match="no length for 'targets'; this objective reads 'inputs', 'targets'$"):
        features.SENTENCE_PAIRS.task_lengths({"inputs": 128, "masked_positions": 20})


@pytest.mark.parametrize(
    ("names", "spec"),
    [
        (("targets",), features.CAUSAL_LM),
        (("inputs", "targets"), features.ENCODER_DECODER),
        (("targets", "masked_positions", "inputs"), features.MASKED_LM),
        (
            ("inputs", "targets", "masked_positions", "token_types", "next_sentence_label", "url"),
            features.SENTENCE_PAIRS,
        ),
    ],
)
def test_a_tasks_features_tell_its_kind(names, spec):
    assert features.for_task(names) is spec


def test_a_task_that_nothing_reads_is_refused():
    with pytest.raises(ValueError, match="the features 'labels' is read by no objective"):
        features.for_task(["labels"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelFeature("x", "places", "row_positions"), "`row_positions`, and no other role, needs the source"),
        (lambda: ModelFeature("x", "places", "tokens", within="inputs"), "role 'tokens' and within='inputs'"),
        (lambda: TaskFeature("x"), "give along, length or a dtype other than int32"),
        (
            lambda: FeatureSpec(
                (ModelFeature("x", "types", "tokens"),), packable=True, extraordinary=(TaskFeature("types", along="a"),)
            ),
            "'types' runs along 'a', which must be read too",
        ),
        (
            lambda: FeatureSpec(
                (ModelFeature("x", "label", "tokens"),), packable=True, extraordinary=(TaskFeature("label", length=1),)
            ),
            "'label' has a fixed length .*declare packable=False",
        ),
        (
            lambda: FeatureSpec(
                (ModelFeature("x", "label", "weights"),),
                packable=False,
                extraordinary=(TaskFeature("label", length=1),),
            ),
            "'x' can only be the `tokens` of 'label'",
        ),
        (
            lambda: FeatureSpec((ModelFeature("x", "places", "row_positions", within="inputs"),), packable=True),
            "'x' holds places within 'inputs', which is not read",
        ),
    ],
)
def test_specs_that_mean_nothing_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
