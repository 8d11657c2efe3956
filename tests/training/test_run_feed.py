"""Batches without targets are refused: by loss weights, by labels, or by tokens if an objective has neither."""

import numpy as np
import pytest

from t5x_like.data import batches, conversation_specs, specs
from t5x_like.data.features import FeatureSpec, ModelFeature, TaskFeature
from t5x_like.errors import UserError
from t5x_like.training.run_feed import TargetCheck, check_targets

pytestmark = pytest.mark.notf

LABELED = FeatureSpec(
    features=(*specs.ENCODER_INPUTS.features, ModelFeature("labels", "labels", "tokens")),
    packable=False,
    aligned_features=(TaskFeature("labels", length=1, num_labels=3),),
)


def batch_of(targets, spec=specs.CAUSAL_LM):
    return batches.from_arrays(spec, {"targets": np.array(targets, np.int32)})


@pytest.mark.parametrize(
    ("targets", "spec"),
    [([[0, 0], [0, 0]], specs.CAUSAL_LM), ([[5, 0], [6, 0]], specs.NEXT_TOKEN)],
    ids=["padding", "too short to have a next token"],
)
def test_batch_without_loss_weights_raises(targets, spec):
    with pytest.raises(UserError, match=r"a_task: a batch has no targets: .*Update\.allow_batches_without_targets"):
        check_targets(batch_of(targets, spec), spec, data="a_task")


def test_one_target_suffices():
    check_targets(batch_of([[0, 0], [5, 0]]), specs.CAUSAL_LM, data="a_task")
    check_targets(batch_of([[5, 0], [5, 6]], specs.NEXT_TOKEN), specs.NEXT_TOKEN, data="a_task")


def test_labels_are_targets_unless_there_are_teachers():
    tokens = np.ones((2, 4), np.int32)
    batch = {name: tokens for name in ("encoder_input_tokens", "encoder_segment_ids", "encoder_positions")}
    unknown, known = batch | {"labels": np.array([[-1], [-1]])}, batch | {"labels": np.array([[-1], [0]])}
    check_targets(known, LABELED, data="a_task")
    with pytest.raises(UserError, match="a_task: a batch has no targets"):
        check_targets(unknown, LABELED, data="a_task")
    check_targets(unknown, LABELED, data="a_task", labels=False)
    with pytest.raises(UserError, match="a_task: a batch has no targets"):
        check_targets({name: 0 * array for name, array in unknown.items()}, LABELED, data="a_task", labels=False)


def test_rows_of_one_process_may_lack_targets_after_the_first_batch():
    empty, full = batch_of([[0, 0], [0, 0]]), batch_of([[0, 0], [5, 6]])
    for is_whole in (True, False):
        with pytest.raises(UserError, match="a_task: a batch has no targets"):
            TargetCheck(data="a_task", labels=True, is_whole=is_whole)(empty, specs.CAUSAL_LM)
    check = TargetCheck(data="a_task", labels=True, is_whole=False)
    check(full, specs.CAUSAL_LM)
    check(empty, specs.CAUSAL_LM)
    check = TargetCheck(data="a_task", labels=True, is_whole=True)
    check(full, specs.CAUSAL_LM)
    with pytest.raises(UserError, match="a batch has no targets"):
        check(empty, specs.CAUSAL_LM)


def test_prompts_need_no_answers():
    spec, empty = conversation_specs.PROMPT, np.zeros((2, 2), np.int32)
    check_targets(
        batches.from_arrays(spec, {"inputs": np.array([[5, 6], [7, 0]]), "targets": empty}), spec, data="prompts"
    )
    with pytest.raises(UserError, match="a batch has no targets"):
        check_targets(batches.from_arrays(spec, {"inputs": empty, "targets": empty}), spec, data="prompts")
