"""AdamW with parts of Adafactor: StableAdamW clips updates; scaled Adam multiplies them by the RMS of parameters."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.optimizers.base import check_rates
from t5x_like.optimizers.from_optax import matrices


class Moments(NamedTuple):
    """State of `stable_adamw`.

    Attributes:
      count: Number of updates.
      mu: First moments.
      nu: Second moments.
    """

    count: Int[Array, ""]
    mu: optax.Updates
    nu: optax.Updates


def stable_adamw(
    *, b1: float = 0.9, b2: float = 0.98, eps: float = 1e-6, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """Returns StableAdamW (Wortsman et al. 2023, arXiv:2304.13013, section 3.5), for `from_optax`.

    Moments are averages with the weights of a bias-corrected Adam: with c(b) = (bᵗ - b) / (bᵗ - 1) in update t,
    m = c(b1) m + (1 - c(b1)) g and v = c(b2) v + (1 - c(b2)) g². The update is -(m / (√v + eps) + weight_decay · p),
    divided by max(1, r) with r² = mean(g² / max(v, eps²)) over a parameter of a layer ("update clipping"), so that
    a matrix whose gradients have grown moves less.

    Args:
      b1: Decay rate of the first moment.
      b2: Decay rate of the second moment.
      eps: Added to the root of the second moment.
      weight_decay: The weight decay of matrices, a part of the clipped update. Give `decay_of_peak` for one that is
        multiplied by the learning rate divided by its peak (ModernBERT).

    Raises:
      UserError: `weight_decay` is negative, or `b1` or `b2` is not in [0, 1).
    """
    check_rates("stable_adamw", weight_decay=weight_decay, b1=b1, b2=b2)

    def init(params):
        zeros = optax.tree.zeros_like(params)
        return Moments(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(updates, state, params):
        count = state.count + 1
        mean, square = (_debiased(decay, count) for decay in (b1, b2))
        mu = jax.tree.map(lambda m, g: mean * m + (1 - mean) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: square * v + (1 - square) * g * g, state.nu, updates)
        is_matrix = matrices(params)
        clipped = {}
        for name, gradient in updates.items():
            v = nu[name]
            scale = jnp.maximum(1.0, jnp.sqrt(jnp.mean(gradient**2 / jnp.maximum(v, eps**2))))
            decay = weight_decay * params[name] if is_matrix[name] else 0.0
            clipped[name] = -(mu[name] / (jnp.sqrt(v) + eps) + decay) / scale
        return clipped, Moments(count, mu, nu)

    return optax.GradientTransformation(init, update)


def scaled_adam(
    *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-6, min_scale: float = 1e-3
) -> optax.GradientTransformation:
    """Returns Adam whose updates are multiplied by the root mean square of the parameter, for `from_optax`.

    The scale is that of Adafactor (Shazeer and Stern 2018, section 8); nanoT5 (Nawrot 2023, arXiv:2309.02373) trains T5
    with it. It is taken over a parameter of a layer.

    Args:
      b1: Decay rate of the first moment.
      b2: Decay rate of the second moment.
      eps: Added to the root of the second moment.
      min_scale: Smallest scale, which new biases have.

    Raises:
      UserError: `b1` or `b2` is not in [0, 1).
    """
    check_rates("scaled_adam", b1=b1, b2=b2)
    adam = optax.scale_by_adam(b1=b1, b2=b2, eps=eps)
    return optax.chain(adam, optax.scale_by_param_block_rms(min_scale), optax.scale(-1.0))


def decay_of_peak(weight_decay: float, *, peak: float) -> float:
    """Returns the weight decay to give an optimizer that multiplies it by the learning rate, so that it is independent.

    Decoupled weight decay has two meanings: optax and PyTorch subtract `learning_rate · weight_decay · p`, Composer
    (MosaicBERT, ModernBERT) and Loshchilov and Hutter `(learning_rate / peak) · weight_decay · p`.

    Args:
      weight_decay: Fraction of a parameter that decays per update at the peak, such as 1e-5.
      peak: The largest learning rate of the schedule.

    Raises:
      UserError: `peak` is not positive.
    """
    if not peak > 0:
        raise UserError(f"peak={peak} of decay_of_peak is not positive. Give the largest learning rate, such as 1e-3.")
    return weight_decay / peak


def _debiased(decay: float, count: Int[Array, ""]) -> Float[Array, ""]:
    """Returns the weight of the earlier average in update `count`, with which an average is bias-corrected."""
    power = decay ** count.astype(jnp.float32)
    return (power - decay) / (power - 1.0)
