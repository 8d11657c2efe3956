"""Feature specs: lengths, aligned and joined features, and the spec of a task."""

import numpy as np
import pytest

from t5x_like.data import specs
from t5x_like.data.features import FeatureSpec, ModelFeature, TaskFeature
from t5x_like.data.specs import ENCODER_DECODER
from t5x_like.errors import UserError

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
        ({"inputs": 9}, "no length for 'targets'. .* the objective reads: 'inputs', 'targets'"),
        ({"inputs": 9, "targets": 0}, "length of 'targets' is not a positive integer"),
        ({"inputs": 9.0, "targets": 5}, "length of 'inputs' is not a positive integer"),
        (32, "=32 is not a dictionary. Give a length in tokens per feature, such as {'inputs': 128"),
        ("inputs", "='inputs' is not a dictionary"),
        (None, "=None is not a dictionary"),
    ],
)
def test_invalid_lengths_raise(lengths, message):
    with pytest.raises(UserError, match="TASK_FEATURE_LENGTHS.*" + message):
        ENCODER_DECODER.model_lengths(lengths)


def test_unknown_role_or_duplicate_name_raises():
    with pytest.raises(ValueError, match="'x': unknown role 'mask'. Give one of tokens, shifted"):
        ModelFeature("x", "inputs", "mask")
    duplicates = (ModelFeature("x", "inputs", "tokens"), ModelFeature("x", "targets", "tokens"))
    with pytest.raises(ValueError, match=r"model features \['x'\]: declared more than once"):
        FeatureSpec(duplicates, packable=False)


def test_task_features_of_each_spec():
    assert specs.CAUSAL_LM.task_features == specs.NEXT_TOKEN.task_features == ("targets",)
    assert specs.PREFIX_LM.task_features == ("inputs", "targets")
    assert specs.MASKED_LM.task_features == ("inputs", "masked_positions", "targets")
    assert set(specs.SENTENCE_PAIRS.task_features) == {
        *specs.MASKED_LM.task_features,
        "token_types",
        "next_sentence_label",
    }
    assert [spec.packable for spec in (specs.PREFIX_LM, specs.MASKED_LM, specs.SENTENCE_PAIRS)] == [
        True,
        True,
        False,
    ]


def test_length_of_joined_features_is_the_sum():
    lengths = specs.PREFIX_LM.model_lengths({"inputs": 9, "targets": 5})
    assert set(lengths.values()) == {14}
    assert set(lengths) == {feature.name for feature in specs.PREFIX_LM.features}


def test_aligned_features_have_the_length_of_their_lead():
    given = {"inputs": 128, "targets": 20}
    assert specs.SENTENCE_PAIRS.task_lengths(given) == {
        "inputs": 128,
        "masked_positions": 20,
        "targets": 20,
        "token_types": 128,
        "next_sentence_label": 1,
    }
    lengths = specs.SENTENCE_PAIRS.model_lengths(given)
    assert lengths["token_types"] == lengths["encoder_input_tokens"] == 128
    assert lengths["masked_positions"] == lengths["masked_targets"] == lengths["masked_weights"] == 20
    assert lengths["next_sentence_label"] == 1
    with pytest.raises(UserError, match=r"no length for 'targets'. .* the objective reads: 'inputs', 'targets'\.$"):
        specs.SENTENCE_PAIRS.task_lengths({"inputs": 128, "masked_positions": 20})


@pytest.mark.parametrize(
    ("names", "spec"),
    [
        (("targets",), specs.CAUSAL_LM),
        (("inputs", "targets"), specs.ENCODER_DECODER),
        (("targets", "masked_positions", "inputs"), specs.MASKED_LM),
        (
            ("inputs", "targets", "masked_positions", "token_types", "next_sentence_label", "url"),
            specs.SENTENCE_PAIRS,
        ),
    ],
)
def test_spec_for_task(names, spec):
    assert specs.spec_for_task(names) is spec


@pytest.mark.parametrize(
    ("targets", "spec"),
    [
        (np.array([2.5], np.float32), specs.SEQUENCE_REGRESSION),
        (np.array([2.5, 1.0], np.float32), specs.with_scores(specs.ENCODER_INPUTS_WITH_TYPES, 2)),
        (np.array([2]), specs.SEQUENCE_CLASSIFICATION),
        (np.array([0, -1, 2]), specs.TOKEN_CLASSIFICATION),
        (np.array([1, 2]), specs.SPAN_EXTRACTION),
    ],
)
def test_targets_of_an_example_tell_tasks_with_token_types_apart(targets, spec):
    names = ("inputs", "token_types", "targets")
    assert specs.spec_for_task(names, lambda: {"inputs": np.array([5, 6, 7]), "targets": targets}) == spec
    assert specs.spec_for_task(names) is specs.SEQUENCE_CLASSIFICATION


def test_spec_for_unreadable_task_raises():
    with pytest.raises(UserError, match="task features 'labels': no objective reads them"):
        specs.spec_for_task(["labels"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelFeature("x", "positions", "row_positions"), "only the role `row_positions` has a source"),
        (lambda: ModelFeature("x", "positions", "tokens", within="inputs"), "role 'tokens' and within='inputs'"),
        (lambda: TaskFeature("x"), "give `aligned_with`, `length`, `length_key`, `inner` or a dtype"),
        (
            lambda: FeatureSpec(
                (ModelFeature("x", "types", "tokens"),),
                packable=True,
                aligned_features=(TaskFeature("types", aligned_with="a"),),
            ),
            "'types': aligned_with='a' is not read",
        ),
        (
            lambda: FeatureSpec(
                (ModelFeature("x", "label", "tokens"),),
                packable=True,
                aligned_features=(TaskFeature("label", length=1),),
            ),
            "'label' has a fixed length .*Declare packable=False",
        ),
        (
            lambda: FeatureSpec(
                (ModelFeature("x", "label", "weights"),),
                packable=False,
                aligned_features=(TaskFeature("label", length=1),),
            ),
            "'x': role 'weights' does not suit 'label', which has a fixed length",
        ),
        (
            lambda: FeatureSpec((ModelFeature("x", "positions", "row_positions", within="inputs"),), packable=True),
            "'x': within='inputs' is not read",
        ),
    ],
)
def test_invalid_spec_raises(make, message):
    with pytest.raises(ValueError, match=message):
        make()
