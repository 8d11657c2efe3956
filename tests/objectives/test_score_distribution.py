"""Scores as distributions, and the features of two vectors, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.errors import UserError
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import passes
from t5x_like.objectives.heads.compared_texts import ComparedTexts
from t5x_like.objectives.heads.pooled_tokens import PooledTokens
from t5x_like.objectives.score_distribution import ScoreDistribution


def test_features_are_absolute_differences_and_products_of_unit_vectors():
    hidden = np.zeros((4, 3, 2), np.float32)
    hidden[0, 1], hidden[1, 0], hidden[2, 2], hidden[3, 1] = [3, 4], [0, 2], [1, 0], [-1, 0]
    segments = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]])
    found = ComparedTexts().read(jnp.asarray(hidden), {"encoder_segment_ids": segments})
    np.testing.assert_allclose(found, [[[0.6, 0.2, 0, 0.8]], [[2, 0, -1, 0]]], rtol=1e-6)
    means = ComparedTexts(pooling="mean", normalize=False).read(jnp.asarray(hidden), {"encoder_segment_ids": segments})
    np.testing.assert_allclose(means[0, 0], [1.5, 0, 0, 4], rtol=1e-6)


def test_targets_lie_on_the_two_nearest_scores_and_the_prediction_is_the_mean():
    objective = ScoreDistribution(head=ComparedTexts(), lowest=1, highest=4)
    logits = np.random.default_rng(0).normal(size=(4, 1, 4)).astype(np.float32)
    rows = {"label": np.float32([[2.25], [4], [1], [-1]]), "encoder_segment_ids": np.ones((8, 2), np.int32)}
    head = lambda states, key: jnp.asarray(logits)  # noqa: E731
    outputs = Outputs(hidden=jnp.zeros((8, 2, 3)))
    found = objective.read({"objective": {"sequence_classification": head}}, outputs, rows)
    total, terms = passes.loss(found, {"score_distribution": 1.0})
    log_probabilities = np.asarray(jax.nn.log_softmax(logits))[:, 0]
    expected = -(0.75 * log_probabilities[0, 1] + 0.25 * log_probabilities[0, 2])
    expected -= log_probabilities[1, 3] + log_probabilities[2, 0]
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    assert float(terms.metrics["loss"][1]) == 3
    means = np.exp(log_probabilities) @ [1, 2, 3, 4]
    np.testing.assert_allclose(objective.predict(found)["predictions"][:, 0], means, rtol=1e-5)
    np.testing.assert_allclose(terms.metrics["squared_error"][0], np.sum((means[:3] - [2.25, 4, 1]) ** 2), rtol=1e-5)


def test_an_empty_range_of_scores_raises():
    with pytest.raises(UserError, match="lowest=5, highest=5 of ScoreDistribution"):
        ScoreDistribution(head=ComparedTexts(), lowest=5)


def test_pooled_tokens_leave_out_padding():
    hidden = jnp.asarray([[[1.0, -4], [3, -2], [9, 9]], [[5, 5], [5, 5], [5, 5]]])
    segments = {"encoder_segment_ids": np.array([[1, 1, 0], [0, 0, 0]])}
    np.testing.assert_array_equal(PooledTokens().read(hidden, segments), [[[3, -2]], [[0, 0]]])
    np.testing.assert_array_equal(PooledTokens(pooling="mean").read(hidden, segments), [[[2, -3]], [[0, 0]]])
    np.testing.assert_array_equal(PooledTokens(pooling="last").read(hidden, segments)[0], [[3, -2]])
    with pytest.raises(UserError, match="pooling='sum' of PooledTokens"):
        PooledTokens(pooling="sum")
