"""Ratios of the probabilities of policy and sampler, and their limits."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t5x_like.errors import UserError
from t5x_like.recorded import recorded

Rows = Float[Array, "rows positions"]
# Logs of ratios above it are far from any limit.
_LARGEST_EXPONENT = 20.0


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class Clipping:
    """The limits 1 - low and 1 + high of the ratio ρ of the probabilities of policy and sampler.

    The loss is -min(ρ A, clip(ρ) A) with the advantage A (Schulman et al. 2017, arXiv:1707.06347, equation 7); Yu et
    al. 2025 (DAPO, arXiv:2503.14476, equation 10) give the upper limit a value of its own, such as 0.28.

    Raises:
      UserError: A limit is not positive, or the lower one is not below 1.
    """

    # Largest decrease of the ratio, ε of PPO.
    low: float = 0.2
    # Largest increase of the ratio; None: `low`.
    high: float | None = None

    def __post_init__(self):
        if not 0 < self.low < 1 or (self.high is not None and not self.high > 0):
            raise UserError(
                f"EPSILON={self.low}, EPSILON_HIGH={self.high}: EPSILON is not in (0, 1), or EPSILON_HIGH is not "
                "positive. Give such as EPSILON=0.2 and EPSILON_HIGH=0.28, or None for both equal."
            )

    def loss(self, log_ratios: Rows, advantages: Rows) -> tuple[Rows, Bool[Array, "rows positions"]]:
        """Returns the loss of tokens or samples, and whether a limit has an effect.

        Args:
          log_ratios: log ρ.
          advantages: A.
        """
        high, ratios = self.low if self.high is None else self.high, finite_exp(log_ratios)
        clipped = jnp.clip(ratios, 1 - self.low, 1 + high) * advantages
        return -jnp.minimum(ratios * advantages, clipped), clipped < ratios * advantages


def finite_exp(x: Rows) -> Rows:
    """Returns e^x, and above x = 20 its tangent there, so that values and gradients are finite in float32.

    A limit of a ratio has the gradient 0, which would become NaN by a product with an infinite derivative.

    Args:
      x: Logs of ratios of probabilities.
    """
    limited = jnp.minimum(x, _LARGEST_EXPONENT)
    return jnp.exp(limited) * (1 + (x - limited))
