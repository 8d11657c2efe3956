"""Policy gradients with rewards of groups of samples: GRPO and RLOO."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.data import conversation_specs, specs
from t5x_like.data.roles import make_feature
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import reference, rewards
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Objective, Params, Pass, RunOptions
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import Prediction, Scalar
from t5x_like.objectives.preferences import completion_weights, log_probabilities
from t5x_like.objectives.rewards import Rewards
from t5x_like.objectives.samples import place
from t5x_like.recorded import recorded

NAME = "policy"
# Features of the samples, `[batch, samples, …]`, begin with it.
SAMPLE = "sample/"
ADVANTAGES, REWARDS, SPREAD, TRUNCATED, DIVERGENCES = (
    f"{SAMPLE}{name}" for name in ("advantages", "rewards", "spread", "truncated", "divergences")
)
Normalization = Literal["dapo", "grpo", "dr_grpo"]
# Added to the standard deviation of the rewards of a group, as in TRL.
_EPSILON = 1e-4
Group = Float[Array, "batch samples"]


class PolicyGradient(Objective):
    """Samples completions of prompts within the training step, and raises the probability of those with more reward.

    Each batch of prompts is sampled with the current parameters, rewarded on the host, and used for one update, so that
    the ratio of the probabilities of policy and sampler is 1, and a limit of this ratio has no effect. A sample depends
    on the parameters, the step and the number of its prompt alone. Evaluations reward the most probable completion of
    each prompt, found greedily.

    The only term is `policy`. The metrics are `loss`, `reward`, `reward_std` within a group, `completion_length`,
    `truncated` (the share of completions without EOS), and with a reference `kl`, its mean over tokens in GRPO and over
    completions in RLOO.

    Args:
      rewards: The reward functions.
      samples: Number of completions per prompt, at least 2.
      max_length: Maximum number of tokens of a completion.
      beta: Factor of the divergence from the reference; 0: no reference.
      eos_id: Token that ends a completion; None: EOS of the model's special tokens.

    Raises:
      UserError: An argument is out of range.
    """

    coefficients = {NAME: 1.0}
    # Whether the divergence from the reference is a part of the advantages, which need it before the update.
    penalizes_rewards = False
    features = conversation_specs.PROMPT
    text_features = conversation_specs.CONVERSATION

    def __init__(self, rewards: Rewards, *, samples: int, max_length: int, beta: float, eos_id: int | None):
        if samples < 2 or max_length < 1 or beta < 0:
            raise UserError(
                f"SAMPLES_PER_PROMPT={samples}, SAMPLE_LENGTH={max_length}, BETA={beta}: fewer than two samples, no "
                "token, or a negative factor. Give such as SAMPLES_PER_PROMPT=8, SAMPLE_LENGTH=256, BETA=0.0."
            )
        self.rewards, self.samples, self.max_length, self.beta, self.eos_id = rewards, samples, max_length, beta, eos_id

    def advantages(self, rewards: Group, divergences: Group) -> Group:
        """Returns the advantages of the samples of each prompt.

        Args:
          rewards: Their rewards.
          divergences: log(π / π_ref) of each sample, summed over its tokens; 0 without `penalizes_rewards`.
        """
        raise NotImplementedError

    def networks(self, config: ModelConfig) -> Mapping[str, NetworkSpec]:
        """Returns the network of the reference, if there is one; see `Objective.networks`."""
        return reference.networks(config) if self.beta else {}

    def frozen_names(self, config: ModelConfig) -> frozenset[str]:
        """Returns the parameters of the reference; see `Objective.frozen_names`."""
        return reference.frozen_names(config) if self.beta else frozenset()

    def init(self, key: jax.Array, model: Any) -> dict[str, Any]:
        """Checks that the reward functions exist and that EOS is known, and returns no heads; see `Objective.init`."""
        self.rewards.load()
        self._eos_ids(model.config)
        return {}

    def _eos_ids(self, config: ModelConfig) -> tuple[int, ...]:
        """Returns the tokens that end a completion.

        Raises:
          UserError: It is not known.
        """
        tokens = config.special_tokens
        named = {} if tokens is None else dict(tokens.config) | dict(tokens.generation or ())
        found = named.get("eos_token_id") if self.eos_id is None else self.eos_id
        if found is None:
            raise UserError("SAMPLE_EOS_ID=None: the model has no eos_token_id. Give the id that ends a completion.")
        return found if isinstance(found, tuple) else (found,)

    def prepare(self, params: Params, batch: Batch, *, key: jax.Array | None, step: Scalar | int) -> Batch:
        """Adds the samples of the prompts, with their rewards and advantages; see `Objective.prepare`."""
        params = jax.lax.stop_gradient(params)
        counts, answer_counts = (jnp.sum(batch[name], axis=1) for name in ("decoder_segment_ids", "answer_weights"))
        prompts = {name: batch[name] for name in ("decoder_input_tokens", "decoder_segment_ids")}
        model, number = params["model"], 1 if key is None else self.samples
        eos_ids = self._eos_ids(model.config)
        sampling = Decoding(temperature=0.0 if key is None else 1.0, samples=number).resolve(
            max_length=self.max_length, eos_ids=eos_ids, bos_id=0
        )
        found = generate(model, prompts, sampling, key)
        received = rewards.on_host(
            self.rewards,
            *(prompts["decoder_input_tokens"], counts, found.tokens, found.lengths),
            *(batch["answer_tokens"], answer_counts),
        )
        rows = self._rows(prompts["decoder_input_tokens"], counts, found.tokens, found.lengths)
        divergences = jnp.zeros_like(received)
        if self.beta and key is not None and self.penalizes_rewards:
            outputs = reference.with_outputs(model(rows), params, rows)
            difference = log_probabilities(model, outputs, rows) - _of_reference(params, outputs, rows)
            divergences = jnp.sum(difference * completion_weights(rows), axis=1).reshape(received.shape)
        last = jnp.take_along_axis(found.tokens, jnp.maximum(found.lengths, 1)[..., None] - 1, axis=2)
        values = {
            ADVANTAGES: jnp.zeros_like(received) if number == 1 else self.advantages(received, divergences),
            REWARDS: received,
            SPREAD: jnp.broadcast_to(_spread(received), received.shape),
            TRUNCATED: (~jnp.isin(last[..., 0], jnp.asarray(eos_ids))).astype(jnp.float32),
            DIVERGENCES: divergences,
        }
        stacked = {f"{SAMPLE}{name}": x.reshape(*received.shape, x.shape[-1]) for name, x in rows.items()}
        return {**batch, **stacked, **{name: x[..., None] for name, x in values.items()}}

    def _rows(self, prompts: Array, counts: Array, samples: Array, lengths: Array) -> dict[str, Array]:
        """Returns the features of a decoder with a row per sample: the prompt, and the sample after it."""
        number = samples.shape[1]
        tokens = jnp.repeat(jnp.pad(prompts, ((0, 0), (0, self.max_length))), number, axis=0)
        before = jnp.repeat(counts, number)[:, None].astype(jnp.int32)
        count = jnp.where(before > 0, before + lengths.reshape(-1, 1), 0)
        joined = place(tokens, samples.reshape(-1, samples.shape[2]), before, count)
        return {each.name: make_feature(each.role, joined, count, before, 0) for each in specs.PROMPTED.features}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights of the tokens of samples; of prompts before they are sampled; see `Objective.weights`."""
        samples = _samples(rows)
        if not samples:
            return {NAME: (rows["decoder_segment_ids"][:, :1] != 0).astype(jnp.float32)}
        return {NAME: self.token_weights(completion_weights(samples))}

    def token_weights(self, is_token: Float[Array, "rows length"]) -> Float[Array, "rows length"]:
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

    def _metrics(self, rows: Batch, loss: Scalar) -> dict[str, tuple[Scalar, Scalar]]:
        samples, weights = _samples(rows), self.target_weights(rows)[NAME]
        is_token = completion_weights(samples)
        real = jnp.any(is_token > 0, axis=1).astype(jnp.float32)
        number = jnp.sum(real)
        values = {"completion_length": jnp.sum(is_token, axis=1)}
        for name, feature in (("reward", REWARDS), ("reward_std", SPREAD), ("truncated", TRUNCATED)):
            values[name] = rows[feature][:, 0]
        metrics = {name: (jnp.sum(real * value), number) for name, value in values.items()}
        metrics["loss"] = (jax.lax.stop_gradient(loss), jnp.sum(weights))
        return metrics

    def _pass(self, params: Params, outputs: Outputs, rows: Batch, loss: Scalar, more: Mapping[str, Any]) -> Pass:
        samples, weights = _samples(rows), self.weights(rows)[NAME]
        targets = samples["decoder_target_tokens"]
        predicted = Prediction(outputs.hidden, params["model"].unembed, weights, targets, weights)
        return Pass(rows, outputs, {NAME: predicted}, sums={NAME: loss}, metrics={**self._metrics(rows, loss), **more})


@recorded
class GRPO(PolicyGradient):
    """Group relative policy optimization (Shao et al. 2024, arXiv:2402.03300, equation 3).

    The advantage of a sample is (reward - mean) / (std + 1e-4) over the samples of its prompt, with the unbiased
    standard deviation. The loss of a token is -advantage · π / π_now + β (exp(d) - d - 1) with d = log π_ref - log π
    and π_now = π without gradient. The sum over the tokens is divided by

    * `"dapo"` (Yu et al. 2025): the number of tokens of the global batch;
    * `"grpo"`: the number of tokens of each sample, and the number of samples;
    * `"dr_grpo"` (Liu et al. 2025): the number of samples times `max_length`.

    Args:
      rewards: See `PolicyGradient`.
      samples: See `PolicyGradient`.
      max_length: See `PolicyGradient`.
      beta: See `PolicyGradient`.
      eos_id: See `PolicyGradient`.
      normalization: What the sum of the losses of tokens is divided by.
      scaled: Whether advantages are divided by the standard deviation; False in Dr. GRPO.

    Raises:
      UserError: See `PolicyGradient`; or the normalization is unknown.
    """

    def __init__(
        self,
        rewards: Rewards,
        *,
        samples: int = 8,
        max_length: int = 256,
        beta: float = 0.0,
        eos_id: int | None = None,
        normalization: Normalization = "dapo",
        scaled: bool = True,
    ):
        super().__init__(rewards, samples=samples, max_length=max_length, beta=beta, eos_id=eos_id)
        if normalization not in get_args(Normalization):
            raise UserError(
                f"NORMALIZATION={normalization!r}: unknown. Give one of {', '.join(get_args(Normalization))}."
            )
        self.normalization, self.scaled = normalization, scaled

    def advantages(self, rewards: Group, divergences: Group) -> Group:
        """Returns the standardized rewards; see `PolicyGradient.advantages`."""
        centered = rewards - jnp.mean(rewards, axis=1, keepdims=True)
        return centered / (_spread(rewards) + _EPSILON) if self.scaled else centered

    def token_weights(self, is_token: Float[Array, "rows length"]) -> Float[Array, "rows length"]:
        """Returns the weights of tokens; see `PolicyGradient.token_weights`."""
        return super().token_weights(is_token) if self.normalization == "grpo" else is_token

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights by whose sum the loss is divided; see `Objective.target_weights`."""
        weights = self.weights(rows)[NAME]
        if self.normalization != "dr_grpo":
            return {NAME: weights}
        return {NAME: self.max_length * jnp.any(weights > 0, axis=1, keepdims=True).astype(jnp.float32)}

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the model and the reference on the samples; see `Objective.run`."""
        outputs = super().run(params, rows, options)
        return reference.with_outputs(outputs, params, _samples(rows)) if self.beta else outputs

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the sampled tokens, and the loss; see `Objective.read`."""
        samples, weights, more = _samples(rows), self.weights(rows)[NAME], {}
        positions = log_probabilities(params["model"], outputs, samples)
        losses = -rows[ADVANTAGES] * jnp.exp(positions - jax.lax.stop_gradient(positions))
        if self.beta:
            difference = _of_reference(params, outputs, samples) - positions
            divergence = jnp.exp(difference) - difference - 1
            losses += self.beta * divergence
            is_token = completion_weights(samples)
            more["kl"] = (jnp.sum(jax.lax.stop_gradient(divergence) * is_token), jnp.sum(is_token))
        return self._pass(params, outputs, rows, jnp.sum(losses * weights), more)


@recorded
class RLOO(PolicyGradient):
    """REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, arXiv:2402.14740, equation 9).

    The reward of a sample is reduced by β · log(π / π_ref), and its advantage is the difference from the mean of the
    other samples of its prompt. The loss is the mean over the samples of -advantage times the ratio of the
    probabilities of the whole sample under π and π without gradient.

    Args:
      rewards: See `PolicyGradient`.
      samples: See `PolicyGradient`.
      max_length: See `PolicyGradient`.
      beta: See `PolicyGradient`.
      eos_id: See `PolicyGradient`.

    Raises:
      UserError: See `PolicyGradient`.
    """

    penalizes_rewards = True

    def __init__(
        self,
        rewards: Rewards,
        *,
        samples: int = 2,
        max_length: int = 256,
        beta: float = 0.05,
        eos_id: int | None = None,
    ):
        super().__init__(rewards, samples=samples, max_length=max_length, beta=beta, eos_id=eos_id)

    def advantages(self, rewards: Group, divergences: Group) -> Group:
        """Returns the differences from the mean of the others; see `PolicyGradient.advantages`."""
        reduced = rewards - self.beta * divergences
        number = rewards.shape[1]
        return (reduced - jnp.mean(reduced, axis=1, keepdims=True)) * number / (number - 1)

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distributions of the sampled tokens, and the loss; see `Objective.read`."""
        samples = _samples(rows)
        is_token = completion_weights(samples)
        sums = jnp.sum(log_probabilities(params["model"], outputs, samples) * is_token, axis=1)
        real = jnp.any(is_token > 0, axis=1).astype(jnp.float32)
        losses = -rows[ADVANTAGES][:, 0] * jnp.exp(sums - jax.lax.stop_gradient(sums)) * real
        more = {"kl": (jnp.sum(rows[DIVERGENCES][:, 0] * real), jnp.sum(real))} if self.beta else {}
        return self._pass(params, outputs, rows, jnp.sum(losses), more)


def _spread(rewards: Group) -> Float[Array, "batch 1"]:
    """Returns the unbiased standard deviation of the rewards of each group; 0 for groups of one sample."""
    return jnp.std(rewards, axis=1, ddof=min(1, rewards.shape[1] - 1), keepdims=True)


def _samples(rows: Batch) -> Batch:
    """Returns the features of a decoder for the samples; empty before prompts are sampled."""
    names = [each.name for each in specs.PROMPTED.features]
    return {name: rows[f"{SAMPLE}{name}"] for name in names if f"{SAMPLE}{name}" in rows}


def _of_reference(params: Params, outputs: Outputs, rows: Batch) -> Float[Array, "rows length"]:
    """Returns the log-probabilities of the next tokens under the reference."""
    return log_probabilities(reference.model_of(params), outputs.networks[reference.NAME], rows)
