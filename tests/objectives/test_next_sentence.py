"""Next-sentence prediction: features, weights of rows, and the head and loss in NumPy."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from objective_cases import read_terms

from t5x_like import parameters
from t5x_like.models.bert import BertConfig
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.passes import total_weights

CONFIG = BertConfig(vocab_size=8, embed_dim=4, mlp_dim=8, num_heads=2, head_dim=2, num_layers=1, max_length=8)
OBJECTIVE = NextSentence()


def make_params(seed=0):
    model = jax.eval_shape(CONFIG.make, jax.random.key(0))
    like = {"model": model, "objective": jax.eval_shape(OBJECTIVE.init, jax.random.key(0), model)}
    rng = np.random.default_rng(seed)
    return parameters.map_named(lambda name, leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), like)


def batch(labels, real):
    segments = np.array([[1, 1, 0] if each else [0, 0, 0] for each in real], np.int32)
    return {"encoder_segment_ids": segments, "next_sentence_label": np.array(labels, np.int32)[:, None]}


def hidden(rows, seed=1):
    return np.random.default_rng(seed).normal(size=(rows, 3, 4)).astype(np.float32)


def test_features_are_sentence_pairs_without_masks():
    assert OBJECTIVE.features.task_features == ("inputs", "token_types", "next_sentence_label")
    assert not OBJECTIVE.features.packable
    assert OBJECTIVE.features.model_lengths({"inputs": 16})["next_sentence_label"] == 1


def test_loss_equals_numpy():
    params, states = make_params(), hidden(2)
    head = params["objective"]["next_sentence"]
    pooled = np.tanh(states[:, 0] @ head.pooler.kernel[...] + head.pooler.bias[...])
    logits = np.asarray(pooled @ head.classifier.kernel[...] + head.classifier.bias[...], np.float64)
    expected = [math.log(1 + math.exp(logits[row, 1 - label] - logits[row, label])) for row, label in enumerate([0, 1])]
    terms = read_terms(OBJECTIVE, params, Outputs(hidden=states), batch([0, 1], [True, True]))
    assert float(terms.sums["next_sentence"]) == pytest.approx(sum(expected), rel=1e-5)
    correct = sum(float(logits[row].argmax() == label) for row, label in enumerate([0, 1]))
    assert [float(x) for x in terms.metrics["next_sentence_accuracy"]] == [correct, 2.0]
    unlabelled = {name: x for name, x in batch([0, 1], [True, True]).items() if name != "next_sentence_label"}
    predicted = OBJECTIVE.predict(OBJECTIVE.read(params, Outputs(hidden=states), unlabelled))
    np.testing.assert_array_equal(predicted["predictions"], logits.argmax(axis=1)[:, None])
    np.testing.assert_allclose(
        predicted["probabilities"], np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), rtol=1e-5
    )


def test_padding_rows_have_zero_weight():
    params, states = make_params(), hidden(3)
    with_padding = batch([0, 1, 0], [True, True, False])
    terms = read_terms(OBJECTIVE, params, Outputs(hidden=states), with_padding)
    without = read_terms(OBJECTIVE, params, Outputs(hidden=states[:2]), batch([0, 1], [True, True]))
    assert float(total_weights(OBJECTIVE, with_padding)["next_sentence"]) == 2.0
    np.testing.assert_allclose(terms.sums["next_sentence"], without.sums["next_sentence"], rtol=1e-6)
    np.testing.assert_allclose(terms.metrics["next_sentence_loss"], without.metrics["next_sentence_loss"], rtol=1e-6)


def test_only_the_first_token_is_read():
    params = make_params()

    def loss(states):
        return read_terms(OBJECTIVE, params, Outputs(hidden=states), batch([1], [True])).sums["next_sentence"]

    gradient = np.abs(jax.grad(loss)(hidden(1))[0]).max(axis=-1)
    assert gradient[0] > 0 and (gradient[1:] == 0).all()


def test_logits_are_float32_in_a_bfloat16_model():
    model = jax.eval_shape(dataclasses.replace(CONFIG, dtype="bfloat16").make, jax.random.key(0))
    head = jax.eval_shape(OBJECTIVE.init, jax.random.key(0), model)["next_sentence"]
    states = jax.ShapeDtypeStruct((2, 3, 4), jnp.bfloat16)
    assert jax.eval_shape(lambda head, states: head.pooler(states), head, states).dtype == jnp.bfloat16
    assert jax.eval_shape(lambda head, states: head(states), head, states).dtype == jnp.float32
