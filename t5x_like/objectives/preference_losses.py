"""Losses of a preferred and a rejected completion, with the conventions of TRL 1.16."""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from t5x_like.errors import UserError

Pairs = Float[Array, " pairs"]


@struct.dataclass
class Completions:
    """The log-probabilities of one completion per pair under a policy and its reference.

    Attributes:
      log_probability: Log-probability of the completion under the policy, summed over its tokens, in nats.
      reference: The same under the reference; zeros for a loss without one.
      tokens: Number of tokens of the completion, at least 1.
    """

    log_probability: Pairs
    reference: Pairs
    tokens: Pairs

    @property
    def log_ratio(self) -> Pairs:
        """Logarithm of the ratio of the probabilities under policy and reference."""
        return self.log_probability - self.reference

    @property
    def mean(self) -> Pairs:
        """Mean log-probability of a token under the policy."""
        return self.log_probability / self.tokens


class PairLoss(Protocol):
    """A loss of pairs.

    Attributes:
      has_reference: Whether it compares the policy with a reference.
    """

    has_reference: bool

    def reward(self, completions: Completions) -> Pairs:
        """Returns the implicit rewards of completions, whose differences are the margins of the metrics."""

    def __call__(self, chosen: Completions, rejected: Completions) -> Pairs:
        """Returns the loss of each pair."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WithBeta:
    """A loss whose rewards are multiplied by β."""

    # β, the factor of rewards; with a reference, the strength of the pull to it.
    beta: float = 0.1

    def __post_init__(self):
        if not self.beta > 0:
            raise UserError(f"{type(self).__name__}.beta={self.beta}: not positive. Give such as 0.1.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WithReference(_WithBeta):
    """The reward β · log(π / π_ref) of a completion (Rafailov et al. 2023, equation 5)."""

    has_reference = True

    def reward(self, completions: Completions) -> Pairs:
        """Returns β times the log-ratios; see `PairLoss.reward`."""
        return self.beta * completions.log_ratio

    def margin(self, chosen: Completions, rejected: Completions) -> Pairs:
        """Returns the differences of the rewards."""
        return self.reward(chosen) - self.reward(rejected)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPO(_WithReference):
    """-log σ(margin), direct preference optimization (Rafailov et al. 2023, arXiv:2305.18290, equation 7)."""

    def __call__(self, chosen: Completions, rejected: Completions) -> Pairs:
        """Returns the loss of each pair."""
        return -jax.nn.log_sigmoid(self.margin(chosen, rejected))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthAveragedDPO(_WithReference):
    """-log σ(β · difference of the log-ratios per token), `sigmoid_norm` in TRL (Tülu 3, arXiv:2411.15124, eq. 6)."""

    def __call__(self, chosen: Completions, rejected: Completions) -> Pairs:
        """Returns the loss of each pair."""
        difference = chosen.log_ratio / chosen.tokens - rejected.log_ratio / rejected.tokens
        return -jax.nn.log_sigmoid(self.beta * difference)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hinge(_WithReference):
    """max(0, 1 - margin), the loss of SLiC (Zhao et al. 2023, arXiv:2305.10425) on the rewards of DPO."""

    def __call__(self, chosen: Completions, rejected: Completions) -> Pairs:
        """Returns the loss of each pair."""
        return jax.nn.relu(1 - self.margin(chosen, rejected))


@dataclasses.dataclass(frozen=True, kw_only=True)
class IPO(_WithReference):
    """(difference of the log-ratios per token - 1 / (2β))² (Azar et al. 2023, arXiv:2310.12036, equation 17)."""

    def __call__(self, chosen: Completions, rejected: Completions) -> Pairs:
        """Returns the loss of each pair."""
        difference = chosen.log_ratio / chosen.tokens - rejected.log_ratio / rejected.tokens
        return jnp.square(difference - 1 / (2 * self.beta))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RobustDPO(_WithReference):
    """DPO for pairs of which some are flipped (Chowdhury et al. 2024, arXiv:2403.00409, equation 12).

    Its mean over them is an unbiased estimate of the mean of DPO over clean pairs.
    """

    # Probability that a pair is flipped, in [0, 0.5).
    label_smoothing: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.label_smoothing < 0.5:
            raise UserError(f"RobustDPO.label_smoothing={self.label_smoothing}: not in [0, 0.5). Give such as 0.1.")

    def __call__(self, chosen: Completions, rejected: Completions) -> Pairs:
        """Returns the loss of each pair, which may be negative."""
        flipped, margin = self.label_smoothing, self.margin(chosen, rejected)
        kept = (1 - flipped) * jax.nn.log_sigmoid(margin) - flipped * jax.nn.log_sigmoid(-margin)
        return -kept / (1 - 2 * flipped)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WithoutReference(_WithBeta):
    """The reward β · mean log-probability of a token."""

    has_reference = False

    def reward(self, completions: Completions) -> Pairs:
        """Returns β times the mean log-probabilities of tokens; see `PairLoss.reward`."""
        return self.beta * completions.mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class ORPO(_WithoutReference):
    """-β · log σ(log odds ratio) of the mean log-probabilities (Hong et al. 2024, arXiv:2403.07691, equation 7).

    The paper adds the negative log-likelihood of the chosen text, the term `targets` of `Preferences`.
    """

    def __call__(self, chosen: Completions, rejected: Completions) -> Pairs:
        """Returns the loss of each pair."""
        odds = chosen.mean - rejected.mean - _log1mexp(chosen.mean) + _log1mexp(rejected.mean)
        return -self.beta * jax.nn.log_sigmoid(odds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimPO(_WithoutReference):
    """-log σ(difference of the rewards - γ) (Meng et al. 2024, arXiv:2405.14734, equation 6)."""

    # β, the factor of rewards.
    beta: float = 2.0
    # γ, the margin between the rewards.
    gamma: float = 1.0

    def __call__(self, chosen: Completions, rejected: Completions) -> Pairs:
        """Returns the loss of each pair."""
        return -jax.nn.log_sigmoid(self.reward(chosen) - self.reward(rejected) - self.gamma)


def _log1mexp(x: Pairs) -> Pairs:
    """Returns log(1 - exp(x)) of log-probabilities (Mächler 2012); value and gradient are finite.

    Those that float32 rounds to 0 or more count as the next smaller number.
    """
    is_small = x < -jnp.log(2.0)
    far = jnp.where(is_small, x, -1.0)
    near = jnp.minimum(jnp.where(is_small, -0.5, x), -jnp.finfo(jnp.float32).epsneg)
    return jnp.where(is_small, jnp.log1p(-jnp.exp(far)), jnp.log(-jnp.expm1(near)))
