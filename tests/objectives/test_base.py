"""Properties of every objective: the `Objective` protocol, microbatches and devices, padding, predictions."""

import inspect
import re

import jax
import numpy as np
import pytest
from families import FAMILIES, random_model, tokens
from numerics import TOLERANCE, assert_close
from objective_cases import CASES, ROWS

from t5x_like import optimizers, parameters
from t5x_like.data import batches
from t5x_like.data.features import FeatureSpec
from t5x_like.objectives.base import Objective, Terms
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.component import Component, flatten_choices
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.partitioning import Partitioner
from t5x_like.training import step


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request):
    return request.param


def test_objective_implements_the_protocol(case):
    objective = case.objective
    assert isinstance(objective.features, FeatureSpec)
    assert objective.coefficients and all(isinstance(value, float) for value in objective.coefficients.values())
    assert all(isinstance(name, str) for name in objective.other_names.values())
    for method in ("init", "weights", "terms", "predict"):
        expected = inspect.signature(getattr(Objective, method)).parameters
        found = inspect.signature(getattr(type(objective), method)).parameters
        assert [(p.name, p.kind, p.default) for p in found.values()] == [
            (p.name, p.kind, p.default) for p in expected.values()
        ]


def gradient(case, microbatches, devices):
    fsdp = min(devices, 4)  # the small models have an embedding size of 12
    partitioner = Partitioner(
        rules="fsdp", ici={"data": devices // fsdp, "fsdp": fsdp}, devices=jax.devices()[:devices]
    )
    _, frozen = optimizers.split(case.params(), ())

    def run(params, batch):
        normalize = step.normalizers(case.objective, batch, "NUM_REAL_TARGET_TOKENS")
        return step.gradients(case.objective, params, step.Frozen(frozen), batch, None, microbatches, normalize)

    found, metrics = partitioner.jit(run)(case.params(), partitioner.put_batch(case.batch()))
    return parameters.named_leaves(found), {name: np.stack(pair) for name, pair in metrics.items()}


def test_loss_and_gradient_are_equal_on_any_microbatches_and_devices(case):
    expected, expected_metrics = gradient(case, 1, 1)
    for microbatches, devices in ((4, 1), (2, 8)):
        found, metrics = gradient(case, microbatches, devices)
        zero = {name for name in expected if re.search(case.without_effect, name)}
        assert_close(*({n: grad for n, grad in grads.items() if n not in zero} for grads in (found, expected)))
        largest = max(np.max(np.abs(grad)) for grad in expected.values())
        assert all(np.max(np.abs(grads[name])) <= TOLERANCE * largest for name in zero for grads in (found, expected))
        assert_close(metrics, expected_metrics)


def test_rows_of_padding_have_no_weight(case):
    batch = case.batch()
    real = np.any(
        [batch[name].reshape(ROWS, -1).any(axis=1) for name in case.objective.features.segment_features], axis=0
    )
    assert 0 < real.sum() < ROWS
    without = {name: array[real] for name, array in batch.items()}
    np.testing.assert_equal(case.objective.weights(batch), case.objective.weights(without))
    terms = jax.jit(case.objective.terms)
    found, expected = terms(case.params(), batch), terms(case.params(), without)
    for name, value in expected.sums.items():
        np.testing.assert_allclose(found.sums[name], value, rtol=1e-5)


def test_predictions_have_one_entry_per_row_and_agree_with_the_metrics(case):
    predicted = jax.jit(case.objective.predict)(case.params(), case.batch())
    assert {array.shape[0] for array in predicted.values()} == {ROWS}
    if "probabilities" in predicted:
        np.testing.assert_allclose(predicted["probabilities"].sum(-1), 1, rtol=1e-5)
        best = predicted["probabilities"].argmax(-1)
        np.testing.assert_array_equal(predicted["predictions"].reshape(best.shape), best)
    batch = case.batch()
    labels, segments = batch.get("labels", batch.get("label")), batch[case.objective.features.segment_features[0]]
    if labels is not None and "probabilities" in predicted and segments.ndim == 2:
        terms = case.objective.terms(case.params(), case.batch())
        known = (labels >= 0) & (segments[:, : labels.shape[1]] != 0)
        correct = ((predicted["predictions"] == labels) & known).sum()
        assert [float(x) for x in terms.metrics["accuracy"]] == [correct, known.sum()]


def test_predictions_describe_every_term_and_do_not_need_labels(case):
    objective, batch = case.objective, flatten_choices(case.batch(), case.objective.features.axes)

    def describe(params, batch):
        found = objective.predictions(params, objective.forward(params, batch), batch)
        return {name: (each.logits(each.hidden), each.weights, each.target_weights) for name, each in found.items()}

    described = jax.eval_shape(describe, case.params(), batch)
    weights, totals = objective.prediction_weights(batch), objective.weights(case.batch())
    assert totals.keys() == objective.coefficients.keys() <= described.keys() == weights.keys()
    for name, (logits, each, known) in described.items():
        assert logits.dtype == np.float32 and logits.shape[:2] == each.shape == weights[name].shape
        assert (known is None) == (name not in totals) and (known is None or known.shape == each.shape)
        assert name not in totals or 0 < totals[name] <= weights[name].sum()  # positions without a label count as well
    labels = {"label", "labels", "span", "next_sentence_label"}
    unlabeled = {name: array for name, array in batch.items() if name not in labels}
    for name, (logits, _, known) in jax.eval_shape(describe, case.params(), unlabeled).items():
        assert logits.shape == described[name][0].shape
        assert known is None or len(unlabeled) == len(batch) or isinstance(objective, Joint)


def test_scores_are_the_log_probabilities_of_the_targets():
    objective, params = CausalLM(), {"model": random_model(FAMILIES["gpt2"].config), "objective": {}}
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    batch = batches.from_arrays(objective.features, {"targets": tokens(2, 5) * mask})
    scores, terms = jax.jit(objective.predict)(params, batch)["scores"], jax.jit(objective.terms)
    for row in range(2):
        one = {name: array[row : row + 1] for name, array in batch.items()}
        np.testing.assert_allclose(-scores[row], terms(params, one).metrics["loss"][0], rtol=1e-5)


def test_dropout_keys_of_the_model_and_of_each_head_differ():
    keys = []

    class Head(Component):
        features = MaskedLM.features

        def __init__(self, name):
            self.coefficients = {name: 1.0}

        def terms_of(self, params, outputs, batch, *, dropout_key=None):
            keys.append(dropout_key)
            return Terms(sums=dict.fromkeys(self.coefficients, 0.0), metrics={})

    def model(batch, *, dropout_key, capture):
        keys.extend([dropout_key, *jax.random.split(dropout_key, 4)])  # a model splits its key

    Joint([Head("a"), Head("b")]).terms({"model": model}, {}, dropout_key=jax.random.key(0))
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == len(keys) == 7
