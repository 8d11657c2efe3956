"""Properties of every objective: the `Objective` protocol, microbatches and devices, padding, predictions."""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, others_are_slow, random_model, tokens
from lanes import others_are_full
from numerics import TOLERANCE, assert_close
from objective_case import ROWS
from objective_cases import CASES, terms_of

from t5x_like import optimizers, parameters
from t5x_like.data import batches
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.layers.captures import Edit
from t5x_like.objectives import gradients
from t5x_like.objectives.base import Objective, Pass
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.keys import Keys, row_keys
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.passes import flatten_choices, forward, forward_at_evaluation, loss, predict, total_weights
from t5x_like.objectives.variables import Frozen
from t5x_like.partitioning import Partitioner

# One case for each way in which objectives run the model.
RUNS = {type(case.objective).run: name for name, case in reversed(CASES.items())}.values()
EACH = pytest.mark.parametrize("name", others_are_full(CASES, set(RUNS)))


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request):
    return request.param


def test_objective_has_the_signatures_of_the_base_class(case):
    objective = case.objective
    assert isinstance(objective.features, FeatureSpec)
    assert objective.coefficients and all(isinstance(value, float) for value in objective.coefficients.values())
    assert all(isinstance(names, tuple) for names in objective.other_names.values())
    for method in ("init", "weights", "target_weights", "run", "read", "predict"):
        expected = inspect.signature(getattr(Objective, method)).parameters
        found = inspect.signature(getattr(type(objective), method)).parameters
        assert [(p.name, p.kind, p.default) for p in found.values()] == [
            (p.name, p.kind, p.default) for p in expected.values()
        ]


def prepared(objective, params, batch):
    """Returns a global batch as the step hands it on."""
    return batch if objective.prepare is None else objective.prepare(params, batch, key=jax.random.key(1), step=0)


def gradient(case, microbatches, devices):
    fsdp = min(devices, 4)  # the small models have an embedding size of 12
    partitioner = Partitioner(
        rules="fsdp", ici={"data": devices // fsdp, "fsdp": fsdp}, devices=jax.devices()[:devices]
    )
    _, frozen = optimizers.split(case.params(), ())

    def run(params, batch):
        batch = prepared(case.objective, params, batch)
        normalize = gradients.normalizers(case.objective, batch, "NUM_REAL_TARGET_TOKENS")
        keys = gradients.keys_of_step(case.objective, jax.random.key(0), batch, dropout=False)
        options = {"keys": keys, "microbatches": microbatches, "normalize": normalize}
        return gradients.compute(case.objective, params, Frozen(frozen), batch, **options)[:2]

    found, metrics = partitioner.jit(run)(case.params(), partitioner.put_batch(case.batch()))
    return parameters.named_leaves(found), {name: np.stack(pair) for name, pair in metrics.items()}


@pytest.mark.parametrize("name", others_are_slow(CASES, set(RUNS)))
def test_loss_and_gradient_are_equal_in_microbatches_on_eight_devices(name):
    case = CASES[name]
    (expected, expected_metrics), (found, metrics) = gradient(case, 1, 1), gradient(case, 2, 8)
    zero = {name for name in expected if re.search(case.without_effect, name)}
    assert_close(*({n: grad for n, grad in grads.items() if n not in zero} for grads in (found, expected)))
    largest = max(np.max(np.abs(grad)) for grad in expected.values())
    assert all(np.max(np.abs(grads[name])) <= TOLERANCE * largest for name in zero for grads in (found, expected))
    assert_close(metrics, expected_metrics)


@functools.cache
def of_the_batch(name):
    """Returns the terms and the predictions of a case on its whole batch, by one program."""
    case = CASES[name]

    @jax.jit
    def run(params, batch):
        terms = terms_of(case.objective, params, batch)
        return terms.sums, terms.metrics, predict(case.objective, params, batch)

    return run(case.params(), case.batch())


@EACH
def test_rows_of_padding_have_no_weight_and_one_pass_gives_all_terms(name):
    case = CASES[name]
    batch = case.batch()
    real = np.any(
        [batch[name].reshape(ROWS, -1).any(axis=1) for name in case.objective.features.segment_features], axis=0
    )
    assert 0 < real.sum() < ROWS
    without = {name: array[real] for name, array in batch.items()}
    np.testing.assert_equal(total_weights(case.objective, batch), total_weights(case.objective, without))

    @jax.jit
    def terms(params, batch):
        factors = dict.fromkeys(case.objective.coefficients, 0.5)
        return terms_of(case.objective, params, batch).sums, loss(
            forward_at_evaluation(case.objective, params, batch), factors
        )

    found, (expected, (total, in_one_pass)) = of_the_batch(name)[0], terms(case.params(), without)
    assert expected.keys() == case.objective.coefficients.keys()
    np.testing.assert_allclose(total, 0.5 * sum(expected.values()), rtol=1e-5)
    for term, value in expected.items():
        if not case.objective.draws:  # what is drawn for a row depends on its number
            np.testing.assert_allclose(found[term], value, rtol=1e-5)
        np.testing.assert_allclose(in_one_pass.sums[term], value, rtol=1e-5)


@EACH
def test_predictions_have_one_entry_per_row_and_agree_with_the_metrics(name):
    case, (_, metrics, predicted) = CASES[name], of_the_batch(name)
    assert {array.shape[0] for array in predicted.values()} == {ROWS}
    if "probabilities" in predicted:
        np.testing.assert_allclose(predicted["probabilities"].sum(-1), 1, rtol=1e-5)
        best = predicted["probabilities"].argmax(-1)
        chosen = predicted["predictions"].reshape(best.shape)
        is_made = chosen != -1  # rows without anything to choose from
        assert is_made.any()
        np.testing.assert_array_equal(chosen[is_made], best[is_made])
    batch = case.batch()
    labels, segments = batch.get("labels", batch.get("label")), batch[case.objective.features.segment_features[0]]
    if labels is not None and "probabilities" in predicted and segments.ndim == 2:
        known = (labels >= 0) & (segments[:, : labels.shape[1]] != 0)
        correct = ((predicted["predictions"] == labels) & known).sum()
        assert [float(x) for x in metrics["accuracy"]] == [correct, known.sum()]


def test_predictions_describe_every_term_and_do_not_need_labels(case):
    objective, batch = case.objective, case.batch()

    def describe(params, batch):
        found = forward_at_evaluation(objective, params, batch).predictions
        return {name: (each.logits(each.hidden), each.weights, each.target_weights) for name, each in found.items()}

    described = jax.eval_shape(describe, case.params(), batch)
    weights = objective.weights(flatten_choices(batch, objective.features.axes))
    totals = total_weights(objective, batch)
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
    scores = jax.jit(functools.partial(predict, objective))(params, batch)["scores"]
    terms = jax.jit(functools.partial(terms_of, objective))
    for row in range(2):
        one = {name: array[row : row + 1] for name, array in batch.items()}
        np.testing.assert_allclose(-scores[row], terms(params, one).metrics["loss"][0], rtol=1e-5)


def test_dropout_keys_of_the_model_and_of_each_head_differ():
    seen = []

    class Head(Objective):
        features = MaskedLM.features

        def __init__(self, name):
            self.coefficients = {name: 1.0}

        def read(self, params, outputs, rows, *, keys):
            seen.append(keys.dropout)
            return Pass(rows, outputs, {}, sums=dict.fromkeys(self.coefficients, 0.0))

    def model(batch, *, dropout_key, capture, edits):
        seen.extend([dropout_key, *jax.random.split(dropout_key, 4)])  # a model splits its key

    model.config = None
    terms_of(Joint([Head("a"), Head("b")]), {"model": model}, {}, keys=Keys(dropout=jax.random.key(0)))
    assert len({tuple(jax.random.key_data(key).tolist()) for key in seen}) == len(seen) == 7


def test_terms_without_coefficient_or_weights_raise():
    case, objective = CASES["masked_lm"], MaskedLM()
    objective.coefficients = {"another": 1.0}
    with pytest.raises(UserError, match="MaskedLM.coefficients: term 'masked_lm', which `read` returns, is missing"):
        jax.eval_shape(lambda: forward_at_evaluation(objective, case.params(), case.batch()))
    with pytest.raises(UserError, match="MaskedLM.coefficients: term 'another' has no weights. Return them from"):
        total_weights(objective, case.batch())


@pytest.mark.parametrize("case", [CASES[name] for name in RUNS], ids=RUNS)
def test_edits_reach_the_model_and_have_gradients(case):
    objective, params = case.objective, case.params()
    batch = prepared(objective, params, case.batch())
    stack = "decoder" if hasattr(params["model"], "decoder") else "encoder"
    name, keys = f"{stack}/layers/0/hidden", Keys(rows=row_keys(jax.random.key(0), jnp.arange(ROWS)))

    def total(shift):
        edits = (Edit(name, lambda x, y: x + y, (shift,)),)
        found = forward(objective, params, batch, keys=keys, capture=(name,), edits=edits)
        factors = {term: 1.0 for term in objective.coefficients}
        return loss(found, factors)[0], found.outputs.captured[name]

    shift = jnp.full(params["model"].config.embed_dim, 0.1)
    (_, edited), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(shift)
    (_, same), _ = jax.jit(jax.value_and_grad(total, has_aux=True))(jnp.zeros_like(shift))
    np.testing.assert_allclose(edited, same + shift, atol=1e-6)
    assert jnp.any(gradient != 0)
