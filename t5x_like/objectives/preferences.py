"""Preference optimization: a decoder learns which of two completions of a prompt is preferred."""

from collections.abc import Mapping
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.data import conversation_specs
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Objective, Params, Pass, RunOptions
from t5x_like.objectives.completions import completion_weights, log_probabilities, with_completion
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import Prediction, identity
from t5x_like.objectives.preference_losses import Completions, PairLoss
from t5x_like.objectives.reference import Live, Reference
from t5x_like.objectives.token_prediction import TERM
from t5x_like.recorded import recorded

NAME = "preferences"
Tokens = Literal["completion", "all"]


def reward_metrics(
    losses: Float[Array, " pairs"], rewards: Float[Array, "pairs 2"], weights: Float[Array, "pairs 1"]
) -> dict[str, tuple[Array, Array]]:
    """Returns the metrics of pairs.

    Args:
      losses: The loss of each pair.
      rewards: The rewards of the chosen and the rejected completion.
      weights: 1 for real pairs, 0 for padding.

    Returns:
      `loss`, `accuracy`, the share of pairs whose chosen completion has the higher reward, `margin`, the mean
      difference of the rewards, and their means `chosen_reward` and `rejected_reward`, as (sum, weight).
    """
    chosen, rejected = rewards[:, 0], rewards[:, 1]
    values = {
        "loss": losses,
        "accuracy": (chosen > rejected).astype(jnp.float32),
        "margin": chosen - rejected,
        "chosen_reward": chosen,
        "rejected_reward": rejected,
    }
    real, total = weights[:, 0], jnp.sum(weights)
    return {name: (jnp.sum(real * jax.lax.stop_gradient(value)), total) for name, value in values.items()}


def predict_pairs(found: Pass) -> dict[str, Array]:
    """Compares the completions of each pair.

    Args:
      found: A pass whose prediction `preferences` has the rewards of both as logits.

    Returns:
      `predictions` `[batch, 1]`, 0 if the first completion has the higher reward and otherwise 1, `probabilities`
      `[batch, 2]` of the Bradley-Terry model, and `rewards` `[batch, 2]`.
    """
    rewards = found.predictions[NAME].hidden[:, 0]
    return {
        "predictions": jnp.argmax(rewards, axis=1, keepdims=True).astype(jnp.int32),
        "probabilities": jax.nn.softmax(rewards, axis=1),
        "rewards": rewards,
    }


@recorded
class Preferences(Objective):
    """Trains a decoder on pairs of completions: DPO, its variants, ORPO and SimPO, by `loss`.

    A completion has the tokens whose `loss_mask` is 1. The terms are `preferences`, the mean loss of pairs, and
    `targets`, the mean negative log-likelihood of the tokens of the chosen texts. The metrics are those of
    `reward_metrics`, and `chosen_nll` in nats per token.

    Args:
      loss: The loss of pairs; see `preference_losses`.
      nll: Factor of the term `targets`: 1 for ORPO.
      nll_tokens: The tokens of the chosen text that `targets` counts: its `"completion"`, or `"all"`, as in ORPO.
      reference: The reference of a loss that has one; None: the model as it was before training, which runs in the step
        without dropout. See `reference`.

    Raises:
      UserError: An argument is out of range.
    """

    text_features = conversation_specs.CONVERSATION

    def __init__(
        self,
        loss: PairLoss,
        *,
        nll: float = 0.0,
        nll_tokens: Tokens = "completion",
        reference: Reference | None = None,
    ):
        if nll < 0:
            raise UserError(f"NLL={nll}: negative. Give the factor of the negative log-likelihood, or 0.")
        if nll_tokens not in get_args(Tokens):
            raise UserError(f"NLL_TOKENS={nll_tokens!r}: unknown. Give 'completion' or 'all'.")
        self.loss, self._nll_tokens = loss, nll_tokens
        self.coefficients = {NAME: 1.0, TERM: float(nll)}
        if reference is not None and not loss.has_reference:
            raise UserError(f"REFERENCE: {type(loss).__name__} has no reference. Give REFERENCE=None.")
        self.reference = (reference or Live()) if loss.has_reference else None

    @property
    def features(self) -> FeatureSpec:
        """The features of a pair, with what is stored of the reference."""
        spec = conversation_specs.PREFERENCE_PAIR
        return spec if self.reference is None else self.reference.features(spec)

    def networks(self, config: ModelConfig) -> Mapping[str, NetworkSpec]:
        """Returns the network of the reference, if the loss has one; see `Objective.networks`."""
        return {} if self.reference is None else self.reference.networks(config)

    def frozen_names(self, config: ModelConfig) -> frozenset[str]:
        """Returns the parameters of the reference; see `Objective.frozen_names`."""
        return frozenset() if self.reference is None else self.reference.frozen_names(config)

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns 1 for pairs of two completions, and for the tokens of their chosen texts; see `Objective.weights`."""
        both = jnp.all(with_completion(rows).reshape(-1, 2), axis=1, keepdims=True)
        pairs = both.astype(jnp.float32)
        chosen = jnp.stack([pairs[:, 0], jnp.zeros_like(pairs[:, 0])], axis=1).reshape(-1, 1)
        counted = completion_weights(rows)
        if self._nll_tokens == "all":
            is_token = (rows["decoder_segment_ids"] != 0).astype(jnp.float32)
            counted = jnp.pad(is_token[:, 1:], ((0, 0), (0, 1)))
        return {NAME: pairs, TERM: counted * chosen}

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the model, and the reference if the loss has one; see `Objective.run`."""
        outputs = super().run(params, rows, options)
        return outputs if self.reference is None else self.reference.with_outputs(outputs, params, rows)

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distribution over the two completions, and the negative log-likelihood; see `Objective.read`."""
        model, weights = params["model"], self.weights(rows)
        positions, counted = log_probabilities(model, outputs, rows), completion_weights(rows)
        sums = jnp.sum(positions * counted, axis=1)
        frozen = jnp.zeros_like(sums)
        if self.reference is not None:
            frozen = self.reference.scores(params, outputs, rows, rows)
        # A row without a completion, which has no weight, gets a number whose loss is finite.
        scores = [jnp.where(with_completion(rows), each, -1.0) for each in (sums, frozen)]
        tokens = jnp.maximum(jnp.sum(counted, axis=1), 1.0)
        chosen, rejected = (
            Completions(*(each.reshape(-1, 2)[:, side] for each in (*scores, tokens))) for side in (0, 1)
        )
        losses = self.loss(chosen, rejected)
        rewards = jnp.stack([self.loss.reward(chosen), self.loss.reward(rejected)], axis=1)
        nll = -jnp.sum(positions * weights[TERM])
        first = jnp.zeros(weights[NAME].shape, jnp.int32)  # the chosen completion
        predictions = {
            NAME: Prediction(rewards[:, None], identity, weights[NAME], first, weights[NAME]),
            TERM: Prediction(
                outputs.hidden, model.unembed, weights[TERM], rows["decoder_target_tokens"], weights[TERM]
            ),
        }
        metrics = reward_metrics(losses, rewards, weights[NAME])
        metrics["chosen_nll"] = (jax.lax.stop_gradient(nll), jnp.sum(weights[TERM]))
        sums = {NAME: jnp.sum(losses * weights[NAME][:, 0]), TERM: nll}
        return Pass(rows, outputs, predictions, sums=sums, metrics=metrics)

    def predict(self, found: Pass) -> dict[str, Array]:
        """Compares the completions of each pair; see `predict_pairs`."""
        return predict_pairs(found)
