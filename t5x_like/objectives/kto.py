"""Kahneman-Tversky optimization: a decoder learns from single completions that are desirable or not."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.axis_rules import SHARED
from t5x_like.data import conversation_specs
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Objective, Params, Pass, RunOptions
from t5x_like.objectives.completions import summed_log_probabilities, with_completion
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import Prediction, Scalar, identity
from t5x_like.objectives.reference import Live, Reference
from t5x_like.recorded import recorded

NAME = "kto"
KL = f"{SHARED}kl"


@recorded
class KTO(Objective):
    """Raises the value of desirable completions and lowers that of others (Ethayarajh et al. 2024, arXiv:2402.01306).

    With r = log(π / π_ref) of a completion, the loss of a desirable one is desirable · (1 - σ(β (r - z))), and that of
    another one undesirable · (1 - σ(β (z - r))), as in equation 7 and TRL. z, at least 0, estimates the divergence of
    policy and reference: the mean of r over the global batch for completions of other prompts, without gradient.

    The only term is `kto`, the mean over completions with a token. The metrics are `loss`, `accuracy`, the share of
    completions with r > z if they are desirable and r <= z if not, `kl` (z), and `chosen_reward` and `rejected_reward`,
    the means of β · r of desirable and other completions.

    Args:
      beta: β, the strength of the pull to the reference.
      desirable: Factor of the loss of desirable completions.
      undesirable: Factor of the loss of others.
      reference: See `preferences.Preferences`.

    Raises:
      UserError: An argument is out of range.
    """

    coefficients = {NAME: 1.0}
    text_features = conversation_specs.CONVERSATION

    def __init__(
        self,
        *,
        beta: float = 0.1,
        desirable: float = 1.0,
        undesirable: float = 1.0,
        reference: Reference | None = None,
    ):
        if not beta > 0 or min(desirable, undesirable) < 0:
            raise UserError(
                f"KTO.beta={beta}, desirable={desirable}, undesirable={undesirable}: beta is not positive, or a factor "
                "is negative. Give such as beta=0.1 and factors of 1."
            )
        self.beta, self.desirable, self.undesirable = beta, desirable, undesirable
        self.reference = reference or Live()

    @property
    def features(self) -> FeatureSpec:
        """The features of a labeled completion, with what is stored of the reference."""
        return self.reference.features(conversation_specs.LABELED_COMPLETION)

    def networks(self, config: ModelConfig) -> Mapping[str, NetworkSpec]:
        """Returns the network of the reference; see `Objective.networks`."""
        return self.reference.networks(config)

    def frozen_names(self, config: ModelConfig) -> frozenset[str]:
        """Returns the parameters of the reference; see `Objective.frozen_names`."""
        return self.reference.frozen_names(config)

    def prepare(self, params: Params, batch: Batch, *, key: jax.Array | None, step: Scalar | int) -> Batch:
        """Adds z, computed from the second texts of the global batch; see `Objective.prepare`."""
        second = {name: x[:, 1] for name, x in batch.items() if name in _TOKENS}
        params = jax.lax.stop_gradient(params)
        outputs = self.reference.with_outputs(params["model"](second), params, second)
        ratios = jnp.where(with_completion(second), self._log_ratios(params, outputs, second, batch, side=1), 0.0)
        divergence = jnp.sum(ratios) / jnp.maximum(jnp.sum(with_completion(second)), 1)
        return {**batch, KL: jnp.maximum(divergence, 0.0)[None]}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for completions with a token; see `Objective.weights`."""
        return {NAME: with_completion(_first(rows))[:, None].astype(jnp.float32)}

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the model and the reference on the first texts; see `Objective.run`."""
        first = _first(rows)
        return self.reference.with_outputs(super().run(params, first, options), params, first)

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the probability that each completion is desirable, and the loss; see `Objective.read`."""
        ratios, weights = self._log_ratios(params, outputs, _first(rows), rows, side=0), self.weights(rows)[NAME]
        advantages = self.beta * (ratios - rows[KL][0])
        logits = jnp.stack([jnp.zeros_like(advantages), advantages], axis=1)[:, None]
        labels = rows.get("label")
        predicted = Prediction(logits, identity, weights, labels, None if labels is None else weights)
        if labels is None:
            return Pass(rows, outputs, {NAME: predicted})
        real, desirable = weights[:, 0], labels[:, 0] > 0
        losses = jnp.where(
            desirable,
            self.desirable * (1 - jax.nn.sigmoid(advantages)),
            self.undesirable * (1 - jax.nn.sigmoid(-advantages)),
        )
        values = jax.lax.stop_gradient({"loss": losses, "accuracy": (advantages > 0) == desirable})
        metrics = {name: (jnp.sum(value * real), jnp.sum(real)) for name, value in values.items()}
        metrics["kl"] = (rows[KL][0] * jnp.sum(real), jnp.sum(real))
        rewards = jax.lax.stop_gradient(self.beta * ratios)
        for name, chosen in (("chosen_reward", desirable), ("rejected_reward", ~desirable)):
            metrics[name] = (jnp.sum(rewards * real * chosen), jnp.sum(real * chosen))
        return Pass(rows, outputs, {NAME: predicted}, sums={NAME: jnp.sum(losses * real)}, metrics=metrics)

    def _log_ratios(
        self, params: Params, outputs: Outputs, texts: Batch, rows: Batch, *, side: int
    ) -> Float[Array, " batch"]:
        """Returns the logarithms of the ratios of the probabilities of completions under policy and reference."""
        frozen = self.reference.scores(params, outputs, texts, rows, side)
        return summed_log_probabilities(params["model"], outputs, texts) - frozen

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns `predictions` `[batch, 1]`, 1 if r > z, and `probabilities` `[batch, 2]`."""
        logits = found.predictions[NAME].hidden[:, 0]
        return {
            "predictions": jnp.argmax(logits, axis=1, keepdims=True).astype(jnp.int32),
            "probabilities": jax.nn.softmax(logits, axis=1),
        }


_TOKENS = frozenset(each.name for each in conversation_specs.CONVERSATION.features)


def _first(rows: Batch) -> Batch:
    """Returns the first text of each example, if each text is a row."""
    return {name: x.reshape(-1, 2, x.shape[-1])[:, 0] for name, x in rows.items() if name in _TOKENS}
