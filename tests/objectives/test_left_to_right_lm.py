"""Left-to-right language modeling: the loss by hand, and no look ahead."""

import functools

import jax
import numpy as np
import pytest
from families import FAMILIES
from objective_cases import CASES, terms_of

from t5x_like.data import batches
from t5x_like.objectives.left_to_right_lm import LeftToRightLM

CASE = CASES["left_to_right_lm"]
OBJECTIVE = CASE.objective


def batch_of(inputs):
    rows = {"inputs": np.array(inputs), "token_types": np.zeros_like(inputs)}
    return batches.from_arrays(OBJECTIVE.features, rows)


def test_each_token_but_the_last_predicts_the_next_one():
    batch = batch_of([[2, 7, 8, 3, 0], [2, 9, 3, 0, 0]])
    params = CASE.params()
    head = params["objective"]["masked_lm"]
    logits = head.logits(params["model"], head(params["model"](batch).hidden))
    expected = jax.nn.log_softmax(logits)
    pairs = [(0, 0, 7), (0, 1, 8), (0, 2, 3), (1, 0, 9), (1, 1, 3)]
    found = terms_of(OBJECTIVE, params, batch)
    np.testing.assert_allclose(
        found.sums["left_to_right_lm"], -sum(expected[row, at, token] for row, at, token in pairs), rtol=1e-5
    )
    assert found.metrics["loss"][1] == 5


def test_predictions_do_not_depend_on_later_tokens():
    predict = functools.partial(OBJECTIVE.run, CASE.params())
    hidden, other = (predict(batch_of([[2, 7, token, 9, 3]])).hidden for token in (8, 20))
    np.testing.assert_array_equal(hidden[:, :2], other[:, :2])
    assert np.abs(hidden[:, 2:] - other[:, 2:]).min(axis=(0, 2)).max() > 0


def test_model_that_sees_later_tokens_raises():
    with pytest.raises(ValueError, match="the model is a BertConfig, which sees the tokens that it predicts"):
        OBJECTIVE.networks(FAMILIES["bert"].config)


def test_negative_z_loss_raises():
    with pytest.raises(ValueError, match="z_loss=-1"):
        LeftToRightLM(z_loss=-1)
