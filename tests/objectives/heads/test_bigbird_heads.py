"""Heads of BigBird in transformers: where dropout is applied. test_question_heads_parity.py compares the values."""

import dataclasses

import jax
import numpy as np
from families import FAMILIES

from t5x_like.objectives.heads import bigbird_heads

CONFIG = FAMILIES["bigbird"].config


def test_feed_forward_head_drops_its_input_and_its_update():
    head = bigbird_heads.FeedForwardEachToken().make(CONFIG, 2, key=jax.random.key(0))
    states = np.random.default_rng(0).normal(size=(2, 3, CONFIG.embed_dim)).astype(np.float32)
    plain, dropped = head(states), []

    def record(x, key):
        dropped.append(x)
        return 0 * x

    head.dropout = record
    norm_alone = head.classifier(head.norm(states))
    np.testing.assert_allclose(head(states, jax.random.key(1)), norm_alone, atol=1e-6)
    np.testing.assert_array_equal(dropped[0], states)
    assert np.abs(norm_alone - plain).max() > 1e-4 and len(dropped) == 2


def test_dropout_rate_is_that_of_the_model_unless_it_is_given():
    config = dataclasses.replace(CONFIG, dropout_rate=0.2)
    for form in (bigbird_heads.FeedForwardEachToken, bigbird_heads.ActivatedFirstToken):
        rates = [form(dropout_rate=rate).make(config, 2, key=jax.random.key(0)).dropout.rate for rate in (None, 0.3)]
        assert rates == [0.2, 0.3]
