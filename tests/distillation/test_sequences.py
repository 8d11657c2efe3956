"""MiniLLM: the surrogate by hand, and its expected gradient, which is the reverse KL divergence of whole texts."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from aligned_cases import Config

from t5x_like.distillation import losses
from t5x_like.distillation.loss import ForwardPass, ModelSpec
from t5x_like.distillation.objective import Distillation
from t5x_like.errors import UserError
from t5x_like.kernels.chunks import Readout, sum_over_positions
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.prediction import Prediction

VOCAB = 3


def view(name, logits, targets, weights):
    network = ModelSpec(name, Config(VOCAB), CausalLM())
    prediction = Prediction(logits, lambda x: x, jnp.asarray(weights, jnp.float32), targets)
    return ForwardPass(network, None, {}, lambda: {"targets": prediction})


def value(loss, student, teacher, targets, weights):
    views = [view(name, x, targets, weights) for name, x in (("student", student), ("teacher", teacher))]
    return sum_over_positions(Readout(student, lambda x: x), loss.position_loss(*views))


def log_softmax(x):
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize(("normalized", "mix"), [(True, 0.0), (False, 0.3)])
def test_surrogate_equals_numpy(normalized, mix):
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(2, 2, 5, VOCAB))
    targets, weights = rng.integers(0, VOCAB, (2, 5)), np.array([[0, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    log_q, log_p = log_softmax(student), log_softmax(teacher)

    def reference(student):
        found = 0.0
        new_q = log_softmax(student)
        for row, t in zip(*np.nonzero(weights), strict=True):
            later = [s for s in range(t + 1, 5) if weights[row, s]]
            ratios = [log_p[row, s, targets[row, s]] - log_q[row, s, targets[row, s]] for s in later]
            reward = (np.mean(ratios) if normalized else np.sum(ratios)) if ratios else 0.0
            token = targets[row, t]
            p, q = np.exp(log_p[row, t, token]), np.exp(log_q[row, t, token])
            divergence = np.sum(np.exp(new_q[row, t]) * (new_q[row, t] - log_p[row, t]))
            found += q / (mix * p + (1 - mix) * q) * (divergence - reward * new_q[row, t, token])
        return found

    loss = losses.MiniLLM(length_normalization=normalized, teacher_mix=mix)
    given = [jnp.asarray(x, jnp.float32) for x in (student, teacher)]
    found, gradient = jax.value_and_grad(lambda x: value(loss, x, given[1], jnp.asarray(targets), weights))(given[0])
    assert float(found) == pytest.approx(reference(student), rel=1e-6)
    for index in itertools.islice(np.ndindex(*student.shape), 0, None, 7):
        moved = [student.copy() for _ in range(2)]
        moved[0][index] += 1e-6
        moved[1][index] -= 1e-6
        assert float(gradient[index]) == pytest.approx((reference(moved[0]) - reference(moved[1])) / 2e-6, abs=2e-6)


def test_expected_gradient_is_that_of_the_divergence_of_whole_texts():
    """Over all texts of two tokens, weighted by their probability; the logits of the second depend on the first."""
    rng = np.random.default_rng(1)
    first = [jnp.asarray(x, jnp.float32) for x in rng.normal(size=(2, VOCAB))]
    second = [jnp.asarray(x, jnp.float32) for x in rng.normal(size=(2, VOCAB, VOCAB))]
    texts = jnp.asarray(list(itertools.product(range(VOCAB), repeat=2)))

    def logits(first, second):
        return jnp.stack([jnp.broadcast_to(first, (len(texts), VOCAB)), second[texts[:, 0]]], axis=1)

    def log_p(parameters):
        of_tokens = jax.nn.log_softmax(logits(*parameters))
        return jnp.sum(jnp.take_along_axis(of_tokens, texts[..., None], axis=-1)[..., 0], axis=1)

    teacher = (first[1], second[1])

    def exact(student):
        log_q = log_p(student)
        return jnp.sum(jnp.exp(log_q) * (log_q - log_p(teacher)))

    def expected(student):
        total = 0.0
        for number, probability in enumerate(np.exp(log_p((first[0], second[0])))):
            rows = slice(number, number + 1)
            given = (logits(*student)[rows], logits(*teacher)[rows], texts[rows], np.ones((1, 2)))
            total += float(probability) * value(losses.MiniLLM(), *given)
        return total

    student = (first[0], second[0])
    for found, wanted in zip(jax.grad(expected)(student), jax.grad(exact)(student), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_loss_without_samples_is_refused():
    class Teacher:
        objective, weight, vocabulary = CausalLM(), 1.0, None
        config = type("Config", (), {"reads": ()})()

    with pytest.raises(UserError, match="loss 'minillm' is defined for samples of the student. Add OnPolicy"):
        Distillation(CausalLM(), {"minillm": losses.MiniLLM()}, teachers={"t": Teacher()})
