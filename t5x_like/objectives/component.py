"""Base class of the objectives that need one forward pass of the model."""

import types
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like import partitioning
from t5x_like.axis_rules import NO_AXES, Axes, batch_axes
from t5x_like.data.features import FeatureSpec
from t5x_like.kernels.chunks import PositionLoss
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Params, Scalar, Terms
from t5x_like.objectives.prediction import Prediction, identity

# Number of the heads' dropout key among the keys derived from that of a microbatch. The model derives its own keys by
# splitting, which numbers them from 0.
_HEADS = 2**31


def flatten_choices(batch: Batch, axes: Axes = NO_AXES) -> dict[str, Array]:
    """Makes each choice a row of its own, because models read rows. The rows of an example stay on its device.

    Args:
      batch: features `[batch, choices, length]`, and others.
      axes: model feature -> logical axes; see `axis_rules.batch_axes`.

    Returns:
      The features with choices as `[batch * choices, length]`, and the others unchanged.
    """
    return {
        name: partitioning.shard(x.reshape(-1, x.shape[-1]), "batch", "length")
        if "choices" in batch_axes(name, x.ndim, axes)
        else x
        for name, x in batch.items()
    }


def key_of_heads(dropout_key: jax.Array | None) -> jax.Array | None:
    """Returns the dropout key of the heads, given that of the model; None if dropout is disabled."""
    return None if dropout_key is None else jax.random.fold_in(dropout_key, _HEADS)


class Component:
    """An objective that needs one forward pass over the whole batch, which several objectives can share (`Joint`).

    What it predicts is described once, by `predictions`: loss terms, predicted targets and distillation read it.
    Subclasses define `init`, `prediction_weights`, `predictions`, `terms_of` and `predictions_of`, and `target_weights`
    if targets may be unknown.
    """

    features: FeatureSpec
    coefficients: Mapping[str, float]
    other_names: Mapping[str, str] = types.MappingProxyType({})

    def weights(self, batch: Batch) -> dict[str, Scalar]:
        """Sums the weights of the targets; see `Objective.weights`."""
        weights = self.target_weights(flatten_choices(batch, self.features.axes))
        return {term: jnp.sum(weights[term]) for term in self.coefficients}

    def terms(self, params: Params, batch: Batch, *, dropout_key: jax.Array | None = None) -> Terms:
        """Runs the model and computes the terms; see `Objective.terms`."""
        rows = flatten_choices(batch, self.features.axes)
        outputs = self.forward(params, rows, dropout_key=dropout_key)
        return self.terms_of(params, outputs, rows, dropout_key=key_of_heads(dropout_key))

    def loss_and_terms(
        self,
        params: Params,
        batch: Batch,
        factors: Mapping[str, Scalar | float],
        *,
        dropout_key: jax.Array | None = None,
    ) -> tuple[Scalar, Terms]:
        """Computes the loss from the sums of `terms`; see `Objective.loss_and_terms`."""
        terms = self.terms(params, batch, dropout_key=dropout_key)
        return sum(factors[name] * each for name, each in terms.sums.items()), terms

    def predict(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Runs the model and predicts the targets; see `Objective.predict`."""
        rows = flatten_choices(batch, self.features.axes)
        return self.predictions_of(params, self.forward(params, rows), rows)

    def forward(
        self, params: Params, batch: Batch, *, dropout_key: jax.Array | None = None, capture: Sequence[str] = ()
    ) -> Outputs:
        """Runs the model, whose hidden states the other methods read.

        Args:
          params: the model and the heads.
          batch: the features of a batch or a microbatch, in which each choice is a row; see `flatten_choices`.
          dropout_key: random key for dropout in the model; None disables it.
          capture: names of intermediate arrays to return; see `layers.captures`.

        Returns:
          The last hidden states and the captured arrays.
        """
        return params["model"](batch, dropout_key=dropout_key, capture=capture)

    def prediction_weights(self, batch: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Computes `Prediction.weights` from the data alone.

        Args:
          batch: the features of a batch or a microbatch, in which each choice is a row; see `flatten_choices`. Labels
            may be missing.

        Returns:
          The weights by the keys of `predictions`.
        """
        raise NotImplementedError

    def target_weights(self, batch: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Computes `Prediction.target_weights` from the data alone: `prediction_weights` if all targets are known.

        Args:
          batch: the features of a batch or a microbatch, in which each choice is a row; see `flatten_choices`.

        Returns:
          The weights by the keys of `coefficients`, and perhaps by further keys of `predictions`.
        """
        return self.prediction_weights(batch)

    def predictions(
        self, params: Params, outputs: Outputs, batch: Batch, *, dropout_key: jax.Array | None = None
    ) -> dict[str, Prediction]:
        """Returns the distributions that the objective predicts, from the outputs of a forward pass.

        Args:
          params: the model and the heads.
          outputs: result of `forward(params, batch, …)`.
          batch: the features of a batch or a microbatch, in which each choice is a row; see `flatten_choices`. Labels
            may be missing.
          dropout_key: random key for dropout in the heads; None disables it.

        Returns:
          Name of the term, or of a further prediction -> what is predicted.
        """
        raise NotImplementedError

    def of_logits(
        self, logits: Mapping[str, Float[Array, "batch positions classes"]], targets: Mapping[str, Array], batch: Batch
    ) -> dict[str, Prediction]:
        """Returns `predictions` of an objective with few classes, whose logits are held in memory.

        Args:
          logits: term -> float32 logits or scores.
          targets: term -> targets; empty if the batch has no labels.
          batch: see `predictions`.
        """
        weights, known = self.prediction_weights(batch), self.target_weights(batch) if targets else {}
        return {
            term: Prediction(each, identity, weights[term], targets.get(term), known.get(term))
            for term, each in logits.items()
        }

    def terms_of(
        self, params: Params, outputs: Outputs, batch: Batch, *, dropout_key: jax.Array | None = None
    ) -> Terms:
        """Computes the loss terms from the outputs of a forward pass.

        Args:
          params: the model and the heads.
          outputs: result of `forward(params, batch, …)`.
          batch: the features of a batch or a microbatch, in which each choice is a row; see `flatten_choices`.
          dropout_key: random key for dropout in the heads; None disables it.

        Returns:
          The terms and metrics, as `terms` returns them.
        """
        raise NotImplementedError

    def position_losses(self, predictions: Mapping[str, Prediction]) -> dict[str, PositionLoss]:
        """Returns the loss of each prediction whose logits are computed in chunks.

        A caller may sum them together with other losses of the same logits, and give the sums to `terms_of_sums`.

        Args:
          predictions: result of `predictions(…)`.

        Returns:
          Name of a prediction -> its loss; empty if all logits are held in memory.
        """
        return {}

    def terms_of_sums(
        self,
        sums: Mapping[str, Any],
        params: Params,
        outputs: Outputs,
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
    ) -> Terms:
        """Computes the same as `terms_of`, without the logits whose losses are summed already.

        Args:
          sums: name of a prediction -> sum of its loss in `position_losses`, for all of them.
          params: see `terms_of`.
          outputs: see `terms_of`.
          batch: see `terms_of`.
          dropout_key: see `terms_of`.
        """
        return self.terms_of(params, outputs, batch, dropout_key=dropout_key)

    def predictions_of(self, params: Params, outputs: Outputs, batch: Batch) -> dict[str, Array]:
        """Predicts the targets from the outputs of a forward pass without dropout.

        Args:
          params: the model and the heads.
          outputs: result of `forward(params, batch)`.
          batch: the features of a batch, in which each choice is a row; see `flatten_choices`.

        Returns:
          The predictions, as `predict` returns them.
        """
        raise NotImplementedError
