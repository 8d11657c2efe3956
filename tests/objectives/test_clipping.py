"""Limits of ratios: the loss and its gradient in float64, and log-ratios whose exponential is infinite in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.errors import UserError
from t5x_like.objectives.clipping import Clipping, finite_exp

CLIPPING = Clipping(low=0.2, high=0.28)
LOG_RATIOS = np.array([-1000.0, -50.0, -0.3, -0.1, 0.0, 0.1, 0.3, 5.0, 19.0, 100.0, 1000.0], np.float32)[:, None]


def value_and_slope(advantages):
    """Returns the losses, their derivatives by the log-ratios, and where a limit has an effect."""
    advantages = np.full_like(LOG_RATIOS, advantages)
    losses, clipped = jax.jit(CLIPPING.loss)(LOG_RATIOS, advantages)
    slopes = jax.jit(jax.grad(lambda x: jnp.sum(CLIPPING.loss(x, advantages)[0])))(LOG_RATIOS)
    return np.asarray(losses), np.asarray(slopes), np.asarray(clipped)


@pytest.mark.parametrize("advantage", [2.0, 0.0, -2.0])
def test_losses_and_gradients_by_hand(advantage):
    losses, slopes, clipped = value_and_slope(advantage)
    with np.errstate(over="ignore"):
        ratios = np.exp(LOG_RATIOS.astype(np.float64))
    limited = ratios > 1.28 if advantage > 0 else (ratios < 0.8) & (advantage < 0)
    assert np.isfinite(losses).all() and np.isfinite(slopes).all()
    np.testing.assert_array_equal(clipped, limited)
    assert limited.any() == (advantage != 0)
    # Of a negative advantage, the ratio has no upper limit: the last two losses are finite, and large.
    exact = limited | (LOG_RATIOS <= 20) | (advantage == 0)
    value = np.where(limited, 1.28 if advantage > 0 else 0.8, np.minimum(ratios, 1e300))
    np.testing.assert_allclose(losses[exact], (-value * advantage)[exact], rtol=1e-6)
    np.testing.assert_allclose(slopes[exact], np.where(limited, 0, -value * advantage)[exact], rtol=1e-6)
    if not exact.all():
        np.testing.assert_allclose(slopes[~exact], 2 * np.exp(20), rtol=1e-6)
        np.testing.assert_allclose(losses[~exact], 2 * np.exp(20) * (1 + LOG_RATIOS[~exact] - 20), rtol=1e-6)


def test_ratios_are_exponentials_to_the_bit():
    x = np.linspace(-30, 20, 1001, dtype=np.float32)
    np.testing.assert_array_equal(jax.jit(finite_exp)(x), jax.jit(jnp.exp)(x))


def test_invalid_limits_raise():
    with pytest.raises(UserError, match="EPSILON=1.0, EPSILON_HIGH=None: EPSILON is not in"):
        Clipping(low=1.0)
    with pytest.raises(UserError, match="EPSILON=0.2, EPSILON_HIGH=-0.1: .* or EPSILON_HIGH is not positive"):
        Clipping(high=-0.1)
