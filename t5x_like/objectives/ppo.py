"""Proximal policy optimization with a value head and generalized advantages: PPO as InstructGPT uses it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import heads, reference
from t5x_like.objectives.base import Batch, Params, Pass
from t5x_like.objectives.clipping import Clipping
from t5x_like.objectives.completions import completion_weights
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.policy_gradient import (
    ADVANTAGES,
    DIVERGENCES,
    NAME,
    SAMPLE,
    PolicyGradient,
    Rows,
)
from t5x_like.objectives.rollouts import Rollout, Rollouts
from t5x_like.recorded import recorded

# Name of the term and of the head.
VALUE = "value"
VALUES, RETURNS = (f"{SAMPLE}{name}" for name in ("values", "returns"))
# Added to the variance of advantages, as in the code of Ziegler et al. 2019 (lm-human-preferences).
_EPSILON = 1e-8


@recorded
class PPO(PolicyGradient):
    """PPO (Schulman et al. 2017, arXiv:1707.06347) of texts, as InstructGPT uses it (Ouyang et al. 2022, section 3.5).

    A token of a sample has the reward -β · log(π / π_ref), and the last one the reward of the sample as well. A linear
    head of the model, `value`, predicts the sum of the later rewards before each token. The advantages are those of
    `generalized_advantages`, whitened over all tokens of the global batch; the loss of a token is `Clipping.loss`.

    The terms are `policy` and `value`, 0.5 · max((V - R)², (V' - R)²) with R = advantage + V of the sampler, and V'
    limited to the V of the sampler ± `value_limit`. Both are means over the tokens of the global batch. The metrics are
    those of `PolicyGradient`, `kl` as in RLOO, and `value_loss`. Evaluations compute the first term alone.

    Args:
      rollouts: See `PolicyGradient`. One completion per prompt is enough.
      beta: See `PolicyGradient`.
      clipping: See `PolicyGradient`.
      gamma: γ, the discount of later rewards.
      gae_lambda: λ of the generalized advantages: 1 for sums of rewards, 0 for the differences of neighboring values.
      value_limit: Largest change of a value that has an effect.
      value_factor: Factor of the term `value`.

    Raises:
      UserError: An argument is out of range.
    """

    min_samples = 1

    def __init__(
        self,
        rollouts: Rollouts,
        *,
        beta: float = 0.05,
        clipping: Clipping | None = None,
        gamma: float = 1.0,
        gae_lambda: float = 0.95,
        value_limit: float = 0.2,
        value_factor: float = 0.1,
    ):
        super().__init__(rollouts, beta=beta, clipping=clipping)
        if not (0 <= gamma <= 1 and 0 <= gae_lambda <= 1 and value_limit > 0 and value_factor >= 0):
            raise UserError(
                f"GAMMA={gamma}, GAE_LAMBDA={gae_lambda}, VALUE_LIMIT={value_limit}, VALUE_FACTOR={value_factor}: one "
                "of the first two is not in [0, 1], VALUE_LIMIT is not positive, or VALUE_FACTOR is negative. Give "
                "such as 1.0, 0.95, 0.2 and 0.1."
            )
        self.gamma, self.gae_lambda, self.value_limit = gamma, gae_lambda, value_limit
        self.coefficients = {NAME: 1.0, VALUE: float(value_factor)}
        self._head = heads.EachDecoderToken(dropout_rate=0.0)

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the head `value`; see `PolicyGradient.init`."""
        return {**super().init(key, model), VALUE: self._head.make(model.config, 1, key=key)}

    def networks(self, config: ModelConfig) -> Mapping[str, NetworkSpec]:
        """Returns the networks, which also run before the updates; see `PolicyGradient.networks`."""
        return self.with_estimate(super().networks(config))

    def _values(self, params: Params, outputs: Outputs) -> Rows:
        return params["objective"][VALUE](outputs.hidden)[..., 0]

    def estimate(self, params: Params, rollout: Rollout) -> dict[str, Array]:
        """Returns advantages, values and returns of tokens, and the divergences; see `PolicyGradient.estimate`."""
        rows, is_token = rollout.rows, completion_weights(rollout.rows)
        outputs, found = params["model"](rows), {}
        is_last = is_token * (1 - jnp.pad(is_token[:, 1:], ((0, 0), (0, 1))))
        rewards = rollout.rewards.reshape(-1, 1) * is_last
        if self.beta:
            divergences = self.divergences(params, reference.with_outputs(outputs, params, rows), rows)
            found[DIVERGENCES] = jnp.sum(divergences, axis=1, keepdims=True)
            rewards -= self.beta * divergences
        values = self._values(params, outputs) * is_token
        advantages = generalized_advantages(rewards, values, is_token, gamma=self.gamma, gae_lambda=self.gae_lambda)
        found |= {VALUES: values, RETURNS: advantages + values}
        return {ADVANTAGES: whitened(advantages, is_token), **found}

    def token_weights(self, is_token: Rows) -> Rows:
        """Returns 1 for tokens; see `PolicyGradient.token_weights`."""
        return is_token

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights of tokens for both terms; see `PolicyGradient.weights`."""
        return dict.fromkeys((NAME, VALUE), super().weights(rows)[NAME])

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the sampled tokens, and both losses; see `Objective.read`."""
        found = super().read(params, outputs, rows, keys=keys)
        if RETURNS not in rows:
            return found
        values, old, weights = self._values(params, outputs), rows[VALUES], self.weights(rows)[VALUE]
        limited = old + jnp.clip(values - old, -self.value_limit, self.value_limit)
        errors = [jnp.square(each - rows[RETURNS]) for each in (values, limited)]
        loss = jnp.sum(0.5 * jnp.maximum(*errors) * weights)
        metrics = {**found.metrics, "value_loss": (jax.lax.stop_gradient(loss), jnp.sum(weights))}
        return dataclasses.replace(found, sums={**found.sums, VALUE: loss}, metrics=metrics)


def generalized_advantages(rewards: Rows, values: Rows, is_token: Rows, *, gamma: float, gae_lambda: float) -> Rows:
    """Returns the generalized advantages of the tokens of each row (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    A_t = Σ_l (γ λ)^l δ_(t+l) with δ_t = r_t + γ V_(t+1) - V_t, and V = 0 after the last token.

    Args:
      rewards: r, the reward of each token, at the position that predicts it.
      values: V, the value at that position, and 0 at positions without a token.
      is_token: 1 for positions with a token, which are consecutive.
      gamma: γ.
      gae_lambda: λ.
    """
    later = jnp.pad(values[:, 1:], ((0, 0), (0, 1)))
    errors = (rewards + gamma * later - values) * is_token

    def add(after, error):
        after = error + gamma * gae_lambda * after
        return after, after

    _, found = jax.lax.scan(add, jnp.zeros_like(errors[:, 0]), errors.T, reverse=True)
    return found.T * is_token


def whitened(x: Rows, is_token: Rows) -> Rows:
    """Returns (x - mean) / √(variance + 1e-8) over all tokens, and 0 elsewhere.

    Args:
      x: A number per position.
      is_token: 1 for positions with a token.
    """
    number = jnp.maximum(jnp.sum(is_token), 1.0)
    centered = (x - jnp.sum(x * is_token) / number) * is_token
    return centered * jax.lax.rsqrt(jnp.sum(jnp.square(centered)) / number + _EPSILON)
