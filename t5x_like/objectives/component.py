"""Base class of the objectives that need one forward pass of the model."""

import types
from collections.abc import Mapping

import jax
from jaxtyping import Array

from t5x_like import partitioning
from t5x_like.axis_rules import NO_AXES, Axes, batch_axes
from t5x_like.data.features import FeatureSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Params, Terms

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


class Component:
    """An objective that needs one forward pass over the whole batch, which several objectives can share (`Joint`).

    Subclasses define `terms_of`, `predictions_of` and the rest of `Objective`.
    """

    features: FeatureSpec
    coefficients: Mapping[str, float]
    other_names: Mapping[str, str] = types.MappingProxyType({})

    def terms(self, params: Params, batch: Batch, *, dropout_key: jax.Array | None = None) -> Terms:
        """Runs the model and computes the terms; see `Objective.terms`."""
        rows = flatten_choices(batch, self.features.axes)
        outputs = params["model"](rows, dropout_key=dropout_key)
        head_key = None if dropout_key is None else jax.random.fold_in(dropout_key, _HEADS)
        return self.terms_of(params, outputs, rows, dropout_key=head_key)

    def predict(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Runs the model and predicts the targets; see `Objective.predict`."""
        rows = flatten_choices(batch, self.features.axes)
        return self.predictions_of(params, params["model"](rows, dropout_key=None), rows)

    def terms_of(
        self, params: Params, outputs: Outputs, batch: Batch, *, dropout_key: jax.Array | None = None
    ) -> Terms:
        """Computes the loss terms from the outputs of a forward pass.

        Args:
          params: the model and the heads.
          outputs: result of `params["model"](batch, …)`.
          batch: the features of a batch or a microbatch, in which each choice is a row; see `flatten_choices`.
          dropout_key: random key for dropout in the heads; None disables it.

        Returns:
          The terms and metrics, as `terms` returns them.
        """
        raise NotImplementedError

    def predictions_of(self, params: Params, outputs: Outputs, batch: Batch) -> dict[str, Array]:
        """Predicts the targets from the outputs of a forward pass without dropout.

        Args:
          params: the model and the heads.
          outputs: result of `params["model"](batch)`.
          batch: the features of a batch, in which each choice is a row; see `flatten_choices`.

        Returns:
          The predictions, as `predict` returns them.
        """
        raise NotImplementedError
