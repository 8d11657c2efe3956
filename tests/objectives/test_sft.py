"""Supervised fine-tuning: which tokens are predicted, and dynamic fine-tuning by hand and against TRL's formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.data import batches
from t5x_like.errors import UserError
from t5x_like.kernels.cross_entropy import cross_entropy
from t5x_like.objectives.sft import SFT

VOCAB, EMBED = 19, 5


def test_a_position_predicts_the_next_token_where_that_token_is_trained():
    arrays = {
        "targets": np.array([[5, 6, 7, 8, 0], [4, 3, 0, 0, 0]]),
        "loss_mask": np.array([[1, 0, 1, 1, 0], [1, 0, 0, 0, 0]]),
    }
    found = batches.from_arrays(SFT.features, arrays)
    assert found["decoder_input_tokens"].tolist() == arrays["targets"].tolist()
    assert found["decoder_target_tokens"][0].tolist() == [6, 7, 8, 0, 0]
    # The first token of a row is never predicted, and the last one predicts nothing.
    assert found["decoder_loss_weights"].tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]


def inputs():
    rng = np.random.default_rng(0)
    hidden, kernel = rng.normal(size=(2, 6, EMBED)), rng.normal(size=(EMBED, VOCAB))
    return hidden, kernel, rng.integers(0, VOCAB, (2, 6)), rng.integers(0, 2, (2, 6))


def dynamic(hidden, kernel, targets, weights, budget=None):
    found = cross_entropy(hidden, lambda h: h @ kernel, targets, weights, dynamic=True, budget_bytes=budget)
    return found.total


@pytest.mark.parametrize("budget", [None, 4 * VOCAB * 2 * 2], ids=["whole", "chunks"])
def test_dynamic_loss_and_gradient_by_hand(budget):
    hidden, kernel, targets, weights = inputs()
    logits = hidden @ kernel
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    of_target = np.take_along_axis(p, targets[..., None], -1)[..., 0]
    expected = -(weights * of_target * np.log(of_target)).sum()
    # The probability is a constant: the gradient of the logits is weight · p(target) · (p - one-hot).
    gradient = ((weights * of_target)[..., None] * (p - np.eye(VOCAB)[targets])) @ kernel.T
    arguments = [jnp.asarray(x, jnp.float32) for x in (hidden, kernel)]
    value, found = jax.value_and_grad(dynamic)(*arguments, targets, jnp.asarray(weights, jnp.float32), budget)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(found, gradient, rtol=1e-5, atol=1e-6 * np.abs(gradient).max())


@pytest.mark.parity
def test_dynamic_loss_and_gradient_equal_those_of_torch():
    """The loss is TRL's: `-(exp(logp).detach() * logp)` over the trained tokens."""
    torch = pytest.importorskip("torch", reason="compares with torch (extra `parity`)")
    hidden, kernel, targets, weights = inputs()
    states = torch.tensor(hidden, requires_grad=True)
    logp = torch.log_softmax(states @ torch.tensor(kernel), -1).gather(-1, torch.tensor(targets)[..., None])[..., 0]
    expected = -(logp.exp().detach() * logp * torch.tensor(weights)).sum()
    expected.backward()
    arguments = [jnp.asarray(x, jnp.float32) for x in (hidden, kernel)]
    value, found = jax.value_and_grad(dynamic)(*arguments, targets, jnp.asarray(weights, jnp.float32))
    np.testing.assert_allclose(value, expected.item(), rtol=1e-6)
    theirs = states.grad.numpy()
    np.testing.assert_allclose(found, theirs, rtol=1e-5, atol=1e-6 * np.abs(theirs).max())


def test_dynamic_with_another_loss_raises():
    with pytest.raises(UserError, match=r"dynamic=True with z_loss=0.1, label_smoothing=0.0: dynamic fine-tuning"):
        SFT(dynamic=True, z_loss=0.1)
