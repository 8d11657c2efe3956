"""Policy gradients with rewards of groups of samples: GRPO and RLOO."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.data import conversation_specs, specs
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import MODEL, NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import reference
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Objective, Params, Pass, RunOptions
from t5x_like.objectives.clipping import Clipping, finite_exp
from t5x_like.objectives.completions import completion_weights, log_probabilities, probabilities, with_completion
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import Prediction, Scalar
from t5x_like.objectives.reused_batches import FIRST_USE
from t5x_like.objectives.rollouts import Group, Rollout, Rollouts
from t5x_like.recorded import recorded

NAME = "policy"
# Features of the samples, `[batch, samples, …]`, begin with it.
SAMPLE = "sample/"
ADVANTAGES, REWARDS, SPREAD, TRUNCATED, DIVERGENCES, OLD = (
    f"{SAMPLE}{name}" for name in ("advantages", "rewards", "spread", "truncated", "divergences", "log_probabilities")
)
Normalization = Literal["dapo", "grpo", "dr_grpo"]
# Added to the standard deviation of the rewards of a group, as in TRL.
_EPSILON = 1e-4
Rows = Float[Array, "rows positions"]


class PolicyGradient(Objective):
    """Samples completions of prompts within the training step, and raises the probability of those with more reward.

    Each batch of prompts is sampled with the current parameters and rewarded on the host, and used for
    `Rollouts.updates` updates. The log-probabilities of the samples, of the forward pass of the first update, are kept
    for the others, so that the ratio of the probabilities of policy and sampler is 1 in the first one. Evaluations
    reward the most probable completion of each prompt.

    The only term is `policy`. The metrics are `loss`, `reward`, `reward_std` within a group, `completion_length`,
    `truncated` (the share of completions without EOS), `entropy` of the policy, a mean over tokens in nats, with a
    reference `kl`, its mean over tokens in GRPO and over completions in RLOO, and with several updates `clipped`, the
    share of ratios that a limit replaces.

    Args:
      rollouts: How completions are sampled and rewarded.
      beta: Factor of the divergence from the reference; 0: no reference.
      clipping: The limits of the ratio; None for the defaults.

    Raises:
      UserError: An argument is out of range.
    """

    coefficients = {NAME: 1.0}
    # Least number of completions per prompt.
    min_samples = 2
    # Whether ratios compare the probabilities of whole samples, rather than of single tokens.
    ratio_of_samples = False
    features = conversation_specs.PROMPT
    text_features = conversation_specs.CONVERSATION

    def __init__(self, rollouts: Rollouts, *, beta: float, clipping: Clipping | None):
        if beta < 0:
            raise UserError(f"BETA={beta}: negative. Give the factor of the divergence from the reference, or 0.")
        if rollouts.samples < self.min_samples:
            raise UserError(
                f"SAMPLES_PER_PROMPT={rollouts.samples}: {type(self).__name__} compares the completions of a prompt. "
                "Give at least 2."
            )
        self.rollouts, self.beta, self.clipping = rollouts, beta, clipping or Clipping()
        self.updates_per_batch = rollouts.updates

    @property
    def token_features(self) -> tuple[str, ...]:
        """The segment ids of samples and of the prompts before them; see `Objective.token_features`."""
        return (f"{SAMPLE}decoder_segment_ids",)

    def estimate(self, params: Params, rollout: Rollout) -> dict[str, Array]:
        """Returns the advantages of samples, `ADVANTAGES`, and perhaps further features for the updates.

        Args:
          params: The parameters that have sampled.
          rollout: The samples.

        Returns:
          Feature -> `[batch * samples, 1]`, or `[batch * samples, length]` for one value per position.
        """
        raise NotImplementedError

    def networks(self, config: ModelConfig) -> Mapping[str, NetworkSpec]:
        """Returns the network of the reference, if there is one; see `Objective.networks`."""
        return reference.networks(config) if self.beta else {}

    def with_estimate(self, found: Mapping[str, NetworkSpec]) -> dict[str, NetworkSpec]:
        """Returns networks that `estimate` runs once per rollout, the reference in no update.

        Args:
          found: The reference, if there is one.
        """
        per_step = 1.0 / self.updates_per_batch
        others = {name: dataclasses.replace(each, passes=per_step) for name, each in found.items()}
        return {MODEL: NetworkSpec(passes=3.0 + per_step), **others}

    def read_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the samples behind their prompts; see `Objective.read_shapes`."""
        rows, length = shapes["decoder_input_tokens"]
        shape = (rows * self.rollouts.samples, length + self.rollouts.max_length)
        return {each.name: shape for each in specs.PROMPTED.features}

    def frozen_names(self, config: ModelConfig) -> frozenset[str]:
        """Returns the parameters of the reference; see `Objective.frozen_names`."""
        return reference.frozen_names(config) if self.beta else frozenset()

    def init(self, key: jax.Array, model: Any) -> dict[str, Any]:
        """Checks that the reward functions exist and that EOS is known, and returns no heads; see `Objective.init`."""
        self.rollouts.check(model.config)
        return {}

    def prepare(self, params: Params, batch: Batch, *, key: jax.Array | None, step: Scalar | int) -> Batch:
        """Adds the samples of the prompts, with their rewards and advantages; see `Objective.prepare`."""
        params = jax.lax.stop_gradient(params)
        rollout = self.rollouts.sample(params["model"], batch, key)
        received = rollout.rewards
        values = {
            REWARDS: received.reshape(-1, 1),
            SPREAD: jnp.broadcast_to(_spread(received), received.shape).reshape(-1, 1),
            TRUNCATED: rollout.truncated.reshape(-1, 1),
            ADVANTAGES: jnp.zeros((received.size, 1)),
        }
        if key is not None:
            values |= self.estimate(params, rollout)
        if key is not None and self.updates_per_batch > 1:
            values[OLD] = jnp.zeros(rollout.rows["decoder_target_tokens"].shape)
        values |= {f"{SAMPLE}{name}": x for name, x in rollout.rows.items()}
        return {**batch, **{name: x.reshape(*received.shape, x.shape[-1]) for name, x in values.items()}}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights of the tokens of samples; of prompts before they are sampled; see `Objective.weights`."""
        samples = _samples(rows)
        if not samples:
            return {NAME: (rows["decoder_segment_ids"][:, :1] != 0).astype(jnp.float32)}
        return {NAME: self.token_weights(completion_weights(samples))}

    def token_weights(self, is_token: Rows) -> Rows:
        """Returns the weights of tokens: 1 / length, so that samples have equal weight.

        Args:
          is_token: 1 for the tokens of the samples.
        """
        return is_token / jnp.maximum(jnp.sum(is_token, axis=1, keepdims=True), 1.0)

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the model on the samples; see `Objective.run`."""
        return super().run(params, _samples(rows), options)

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the rewards of the samples as `rewards` `[batch]`."""
        return {"rewards": found.rows[REWARDS][:, 0]}

    def penalty(
        self, params: Params, outputs: Outputs, rows: Batch, log_probability: Rows
    ) -> tuple[Rows | float, dict[str, tuple[Scalar, Scalar]]]:
        """Returns a term that is added to the loss of each token, and further metrics.

        Args:
          params: The model and the heads.
          outputs: Result of `run`.
          rows: The features.
          log_probability: Log-probabilities of the next tokens.
        """
        return 0.0, {}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the sampled tokens, and the loss; see `Objective.read`."""
        samples, weights = _samples(rows), self.weights(rows)[NAME]
        found = probabilities(params["model"], outputs, samples)
        now, is_token = found.log_probability, completion_weights(samples)
        old, kept = jax.lax.stop_gradient(now), {}
        if OLD in rows:
            if FIRST_USE not in rows:
                raise UserError(
                    f"UPDATES_PER_ROLLOUT={self.updates_per_batch}: {type(self).__name__} is a part of another "
                    "objective, which updates once per batch. Give UPDATES_PER_ROLLOUT=1."
                )
            old = jnp.where(rows[FIRST_USE][0] > 0, old, rows[OLD])
            prompts = rows["decoder_segment_ids"].shape[0]
            kept[OLD] = old.reshape(prompts, -1, old.shape[-1])
        change = (now - old) * is_token
        if self.ratio_of_samples:
            change = jnp.sum(change, axis=1, keepdims=True)
        losses, clipped = self.clipping.loss(change, rows[ADVANTAGES])
        added, metrics = self.penalty(params, outputs, rows, now)
        loss = jnp.sum((losses + added) * weights)
        metrics |= self._metrics(rows, loss)
        metrics["entropy"] = (jnp.sum(found.entropy * is_token), jnp.sum(is_token))
        if kept:
            metrics["clipped"] = (jnp.sum(clipped * weights), jnp.sum(weights))
        targets = samples["decoder_target_tokens"]
        predicted = Prediction(outputs.hidden, params["model"].unembed, weights, targets, weights)
        sums = {NAME: loss}
        return Pass(rows, outputs, {NAME: predicted}, sums=sums, metrics=metrics, next_stage_features=kept)

    def _metrics(self, rows: Batch, loss: Scalar) -> dict[str, tuple[Scalar, Scalar]]:
        real = with_completion(_samples(rows)).astype(jnp.float32)
        number = jnp.sum(real)
        values = {"completion_length": jnp.sum(completion_weights(_samples(rows)), axis=1)}
        features = (("reward", REWARDS), ("reward_std", SPREAD), ("truncated", TRUNCATED), ("kl", DIVERGENCES))
        for name, feature in features:
            if feature in rows:
                values[name] = rows[feature][:, 0]
        metrics = {name: (jnp.sum(real * value), number) for name, value in values.items()}
        metrics["loss"] = (jax.lax.stop_gradient(loss), jnp.sum(self.target_weights(rows)[NAME]))
        return metrics

    def divergences(self, params: Params, outputs: Outputs, rows: Batch) -> Rows:
        """Returns log(π / π_ref) of the next tokens that belong to samples; 0 elsewhere.

        Args:
          params: The parameters.
          outputs: Outputs of the model and the reference.
          rows: The features of the samples.
        """
        difference = log_probabilities(params["model"], outputs, rows) - log_probabilities(
            reference.model_of(params), outputs.networks[reference.NAME], rows
        )
        return difference * completion_weights(rows)


@recorded
class GRPO(PolicyGradient):
    """Group relative policy optimization (Shao et al. 2024, arXiv:2402.03300, equation 3).

    The advantage of a sample is (reward - mean) / (std + 1e-4) over the samples of its prompt, with the unbiased
    standard deviation. The loss of a token is `Clipping.loss` + β (exp(d) - d - 1) with d = log π_ref - log π.
    The sum over the tokens is divided by

    * `"dapo"` (Yu et al. 2025): the number of tokens of the global batch;
    * `"grpo"`: the number of tokens of each sample, and the number of samples;
    * `"dr_grpo"` (Liu et al. 2025): the number of samples times `Rollouts.max_length`.

    Args:
      rollouts: See `PolicyGradient`.
      beta: See `PolicyGradient`.
      clipping: See `PolicyGradient`.
      normalization: What the sum of the losses of tokens is divided by.
      scaled: Whether advantages are divided by the standard deviation; False in Dr. GRPO.

    Raises:
      UserError: See `PolicyGradient`; or the normalization is unknown.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        *,
        beta: float = 0.0,
        clipping: Clipping | None = None,
        normalization: Normalization = "dapo",
        scaled: bool = True,
    ):
        super().__init__(rollouts, beta=beta, clipping=clipping)
        if normalization not in get_args(Normalization):
            raise UserError(
                f"NORMALIZATION={normalization!r}: unknown. Give one of {', '.join(get_args(Normalization))}."
            )
        self.normalization, self.scaled = normalization, scaled

    def estimate(self, params: Params, rollout: Rollout) -> dict[str, Array]:
        """Returns the standardized rewards; see `PolicyGradient.estimate`."""
        received = rollout.rewards
        centered = received - jnp.mean(received, axis=1, keepdims=True)
        advantages = centered / (_spread(received) + _EPSILON) if self.scaled else centered
        return {ADVANTAGES: advantages.reshape(-1, 1)}

    def token_weights(self, is_token: Rows) -> Rows:
        """Returns the weights of tokens; see `PolicyGradient.token_weights`."""
        return super().token_weights(is_token) if self.normalization == "grpo" else is_token

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights by whose sum the loss is divided; see `Objective.target_weights`."""
        weights = self.weights(rows)[NAME]
        if self.normalization != "dr_grpo":
            return {NAME: weights}
        return {NAME: self.rollouts.max_length * jnp.any(weights > 0, axis=1, keepdims=True).astype(jnp.float32)}

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the model and the reference on the samples; see `Objective.run`."""
        outputs = super().run(params, rows, options)
        return reference.with_outputs(outputs, params, _samples(rows)) if self.beta else outputs

    def penalty(
        self, params: Params, outputs: Outputs, rows: Batch, log_probability: Rows
    ) -> tuple[Rows | float, dict[str, tuple[Scalar, Scalar]]]:
        """Returns β times the divergence of tokens, and its mean; see `PolicyGradient.penalty`."""
        if not self.beta:
            return 0.0, {}
        samples = _samples(rows)
        frozen = log_probabilities(reference.model_of(params), outputs.networks[reference.NAME], samples)
        is_token = completion_weights(samples)
        difference = (frozen - log_probability) * is_token  # the exponential of other tokens may be infinite
        divergence = finite_exp(difference) - difference - 1
        return self.beta * divergence, {
            "kl": (jnp.sum(jax.lax.stop_gradient(divergence) * is_token), jnp.sum(is_token))
        }


@recorded
class RLOO(PolicyGradient):
    """REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, arXiv:2402.14740, equation 9).

    The reward of a sample is reduced by β · log(π / π_ref), and its advantage is the difference from the mean of the
    other samples of its prompt. The loss is the mean of `Clipping.loss` over the samples, with the ratio of the
    probabilities of the whole sample.

    Args:
      rollouts: See `PolicyGradient`.
      beta: See `PolicyGradient`.
      clipping: See `PolicyGradient`.

    Raises:
      UserError: See `PolicyGradient`.
    """

    ratio_of_samples = True

    def __init__(self, rollouts: Rollouts, *, beta: float = 0.05, clipping: Clipping | None = None):
        super().__init__(rollouts, beta=beta, clipping=clipping)

    def networks(self, config: ModelConfig) -> Mapping[str, NetworkSpec]:
        """Returns the networks, which run before the updates if there is a reference; see `Objective.networks`."""
        found = super().networks(config)
        return self.with_estimate(found) if self.beta else found

    def estimate(self, params: Params, rollout: Rollout) -> dict[str, Array]:
        """Returns the differences from the mean of the others; see `PolicyGradient.estimate`."""
        reduced, number, found = rollout.rewards, rollout.rewards.shape[1], {}
        if self.beta:
            outputs = reference.with_outputs(params["model"](rollout.rows), params, rollout.rows)
            divergences = jnp.sum(self.divergences(params, outputs, rollout.rows), axis=1, keepdims=True)
            reduced = reduced - self.beta * divergences.reshape(reduced.shape)
            found[DIVERGENCES] = divergences
        advantages = (reduced - jnp.mean(reduced, axis=1, keepdims=True)) * number / (number - 1)
        return {ADVANTAGES: advantages.reshape(-1, 1), **found}


def _spread(rewards: Group) -> Float[Array, "batch 1"]:
    """Returns the unbiased standard deviation of the rewards of each group; 0 for groups of one sample."""
    return jnp.std(rewards, axis=1, ddof=min(1, rewards.shape[1] - 1), keepdims=True)


def _samples(rows: Batch) -> Batch:
    """Returns the features of a decoder for the samples; empty before prompts are sampled."""
    names = [each.name for each in specs.PROMPTED.features]
    return {name: rows[f"{SAMPLE}{name}"] for name in names if f"{SAMPLE}{name}" in rows}
