"""Losses of pairs and their gradients in float64 NumPy, and against TRL's expressions in torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.errors import UserError
from t5x_like.objectives.preference_losses import (
    DPO,
    IPO,
    ORPO,
    Completions,
    Hinge,
    LengthAveragedDPO,
    RobustDPO,
    SimPO,
)

PAIRS = 12


def log_sigmoid(x):
    return -np.log1p(np.exp(-x))


def log_odds(x):
    return x - np.log1p(-np.exp(x))


# Loss -> the loss of the log-probabilities of policy and reference, sums over tokens, and the numbers of tokens, of the
# chosen (c) and the rejected (r) completion.
ORACLES = {
    DPO(beta=0.3): lambda c, r, fc, fr, nc, nr: -log_sigmoid(0.3 * (c - fc - r + fr)),
    LengthAveragedDPO(beta=5.0): lambda c, r, fc, fr, nc, nr: -log_sigmoid(5 * ((c - fc) / nc - (r - fr) / nr)),
    Hinge(beta=0.3): lambda c, r, fc, fr, nc, nr: np.maximum(0, 1 - 0.3 * (c - fc - r + fr)),
    IPO(beta=0.5): lambda c, r, fc, fr, nc, nr: ((c - fc) / nc - (r - fr) / nr - 1) ** 2,
    RobustDPO(beta=0.3, label_smoothing=0.2): lambda c, r, fc, fr, nc, nr: (
        -(0.8 * log_sigmoid(0.3 * (c - fc - r + fr)) - 0.2 * log_sigmoid(-0.3 * (c - fc - r + fr))) / 0.6
    ),
    ORPO(beta=0.7): lambda c, r, fc, fr, nc, nr: -0.7 * log_sigmoid(log_odds(c / nc) - log_odds(r / nr)),
    SimPO(beta=2.0, gamma=0.5): lambda c, r, fc, fr, nc, nr: -log_sigmoid(2 * (c / nc - r / nr) - 0.5),
}


def values():
    """Returns log-probabilities whose differences and means float32 represents exactly, and the numbers of tokens."""
    rng = np.random.default_rng(0)
    tokens = rng.choice([1, 2, 4, 8], (2, PAIRS))
    sums = -rng.integers(4, 200, (4, PAIRS)) / 64 * np.concatenate([tokens, tokens])
    return [*sums, *tokens]


def loss_of(loss, c, r, fc, fr, nc, nr):
    return loss(Completions(c, fc, nc), Completions(r, fr, nr))


@pytest.mark.parametrize("loss", ORACLES, ids=lambda loss: type(loss).__name__)
def test_losses_and_gradients_by_hand(loss):
    given, oracle = values(), ORACLES[loss]
    narrow = [jnp.asarray(each, jnp.float32) for each in given]
    expected = oracle(*given)
    np.testing.assert_allclose(loss_of(loss, *narrow), expected, rtol=1e-6, atol=1e-7)
    found = jax.grad(lambda c, r: jnp.sum(loss_of(loss, c, r, *narrow[2:])), argnums=(0, 1))(*narrow[:2])
    for side in range(2):
        moved = [[x + step * (number == side) for number, x in enumerate(given)] for step in (1e-5, -1e-5)]
        slope = (oracle(*moved[0]) - oracle(*moved[1])) / 2e-5
        np.testing.assert_allclose(found[side], slope, rtol=1e-5, atol=1e-6 * np.abs(slope).max())


def trl(torch, loss, c, r, fc, fr, nc, nr):
    """The losses of TRL 1.16: DPOTrainer._compute_loss, ORPOTrainer.odds_ratio_loss and CPOTrainer.cpo_loss."""
    functional = torch.nn.functional
    delta = (c - fc) - (r - fr)
    per_token = (c - fc) / nc - (r - fr) / nr

    def log1mexp(x):
        return torch.where(x < -0.6931471805599453, torch.log1p(-torch.exp(x)), torch.log(-torch.expm1(x)))

    match loss:
        case RobustDPO():
            clean = -(1 - loss.label_smoothing) * functional.logsigmoid(loss.beta * delta)
            flipped = -loss.label_smoothing * functional.logsigmoid(-loss.beta * delta)
            return (clean - flipped) / (1 - 2 * loss.label_smoothing)
        case DPO():
            return -functional.logsigmoid(loss.beta * delta)
        case LengthAveragedDPO():
            return -functional.logsigmoid(loss.beta * per_token)
        case Hinge():
            return torch.relu(1 - loss.beta * delta)
        case IPO():
            return (per_token - 1 / (2 * loss.beta)) ** 2
        case ORPO():
            odds = (c / nc - r / nr) - (log1mexp(c / nc) - log1mexp(r / nr))
            return -loss.beta * functional.logsigmoid(odds)
        case SimPO():
            return -functional.logsigmoid(loss.beta * (c / nc - r / nr - loss.gamma / loss.beta))


@pytest.mark.parity
@pytest.mark.parametrize("loss", ORACLES, ids=lambda loss: type(loss).__name__)
def test_losses_and_gradients_equal_those_of_torch(loss):
    torch = pytest.importorskip("torch", reason="compares with torch (extra `parity`)")
    given = values()
    wide = [torch.tensor(each, dtype=torch.float64, requires_grad=number < 2) for number, each in enumerate(given)]
    expected = trl(torch, loss, *wide)
    gradients = torch.autograd.grad(expected.sum(), wide[:2])
    narrow = [jnp.asarray(each, jnp.float32) for each in given]
    np.testing.assert_allclose(loss_of(loss, *narrow), expected.detach().numpy(), rtol=1e-6, atol=1e-7)
    found = jax.grad(lambda c, r: jnp.sum(loss_of(loss, c, r, *narrow[2:])), argnums=(0, 1))(*narrow[:2])
    for ours, theirs in zip(found, gradients, strict=True):
        theirs = theirs.numpy()
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * np.abs(theirs).max())


def test_rewards_are_scaled_log_ratios_or_means():
    chosen = Completions(jnp.array([-6.0]), jnp.array([-8.0]), jnp.array([4.0]))
    assert DPO(beta=0.25).reward(chosen) == IPO(beta=0.25).reward(chosen) == 0.5
    assert SimPO(beta=2.0).reward(chosen) == -3.0 and ORPO(beta=2.0).reward(chosen) == -3.0


@pytest.mark.parametrize("pair", [(0.0, -1.0), (-1.0, 0.0), (0.0, 0.0), (1e-7, -2.0)])
def test_orpo_is_finite_for_a_probability_of_one(pair):
    """Float32 rounds the log-probability of a certain completion to 0, or to slightly more."""

    def loss(c, r):
        one = jnp.ones(1)
        return loss_of(ORPO(), c, r, one, one, one, one)[0]

    found, gradients = jax.value_and_grad(loss, argnums=(0, 1))(*(jnp.array([x], jnp.float32) for x in pair))
    assert np.isfinite(found) and np.all(np.isfinite(gradients))
    assert gradients[0] <= 0 <= gradients[1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DPO(beta=0.0), "DPO.beta=0.0: not positive. Give such as 0.1"),
        (lambda: SimPO(beta=-1.0), "SimPO.beta=-1.0: not positive"),
        (lambda: RobustDPO(label_smoothing=0.5), r"RobustDPO.label_smoothing=0.5: not in \[0, 0.5\)"),
    ],
)
def test_invalid_settings_raise(make, message):
    with pytest.raises(UserError, match=message):
        make()
