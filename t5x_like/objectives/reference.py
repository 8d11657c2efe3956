"""The reference model of preferences and policy gradients: the model as it was before training.

Without adapters, the reference is a network of the run, `objective/reference`, that starts from the same weights and is
frozen; a checkpoint does not store what equals the pretrained weights. With adapters, it is the model without them,
whose parameters are frozen anyway, so that nothing is kept twice.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import jax
from jaxtyping import Array, Float

from t5x_like import parameters
from t5x_like.data.features import FeatureSpec
from t5x_like.models import build, construct
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Params
from t5x_like.objectives.completions import summed_log_probabilities

NAME = "reference"


class Reference(Protocol):
    """Where the log-probabilities of completions under the reference come from."""

    def features(self, spec: FeatureSpec) -> FeatureSpec:
        """Returns the features of an objective, with the stored numbers that the reference has."""

    def networks(self, config: ModelConfig) -> Mapping[str, NetworkSpec]:
        """Returns the network of the reference, if it has one of its own; see `Objective.networks`."""

    def frozen_names(self, config: ModelConfig) -> frozenset[str]:
        """Returns the stored names of the parameters of the reference, which must not be trained."""

    def with_outputs(self, outputs: Outputs, params: Params, texts: Batch) -> Outputs:
        """Returns the outputs of the model with those of the reference, if it runs.

        Args:
          outputs: What the model computed.
          params: See `model_of`.
          texts: The features of the model.
        """

    def scores(
        self, params: Params, outputs: Outputs, texts: Batch, rows: Batch, side: int | None = None
    ) -> Float[Array, " texts"]:
        """Returns the log-probabilities of completions under the reference, in nats, without gradient.

        Args:
          params: See `model_of`.
          outputs: Result of `with_outputs`.
          texts: The features of the model.
          rows: All features, with a row per text; stored numbers have a row per example, of two texts.
          side: Which text of each example `texts` has; None: both.
        """


def networks(config: ModelConfig) -> dict[str, NetworkSpec]:
    """Returns the network of the reference, or none if the model has adapters; see `Objective.networks`."""
    return {} if config.adapters else {NAME: NetworkSpec(config=config, passes=1.0)}


def frozen_names(config: ModelConfig) -> frozenset[str]:
    """Returns the stored names of the parameters of the reference, which must not be trained."""
    root = "model" if config.adapters else f"objective/{NAME}"
    return frozenset(f"{root}/{name}" for name in parameters.named_leaves(bare_shapes(config)))


def bare_shapes(config: ModelConfig) -> Any:
    """Returns the shapes of the model without adapters, with stacked layers."""
    return build.stacked_shapes(construct.without_adapters(config))


def model_of(params: Params) -> Any:
    """Returns the reference model, without gradient.

    Args:
      params: The model, and the network of the reference if there is one.
    """
    model = params["model"]
    if not model.config.adapters:
        return jax.lax.stop_gradient(params["objective"][NAME])
    bare = jax.eval_shape(construct.without_adapters(model.config).make, jax.random.key(0))
    leaves = parameters.named_leaves(jax.lax.stop_gradient(model))
    return parameters.rebuild(bare, {name: leaves[name] for name in parameters.named_leaves(bare)})


def with_outputs(outputs: Outputs, params: Params, rows: Batch) -> Outputs:
    """Returns the outputs of the model with those of the reference, which runs without dropout and gradient.

    Args:
      outputs: What the model computed.
      params: See `model_of`.
      rows: The features.
    """
    return outputs.replace(networks={**outputs.networks, NAME: jax.lax.stop_gradient(model_of(params)(rows))})


class Live:
    """The reference runs in the training step; see `Reference`."""

    def features(self, spec: FeatureSpec) -> FeatureSpec:
        """Returns the features as they are."""
        return spec

    def networks(self, config: ModelConfig) -> Mapping[str, NetworkSpec]:
        """Returns the network of the reference; see `networks`."""
        return networks(config)

    def frozen_names(self, config: ModelConfig) -> frozenset[str]:
        """Returns the parameters of the reference; see `frozen_names`."""
        return frozen_names(config)

    def with_outputs(self, outputs: Outputs, params: Params, texts: Batch) -> Outputs:
        """Returns the outputs of the model and the reference; see `with_outputs`."""
        return with_outputs(outputs, params, texts)

    def scores(
        self, params: Params, outputs: Outputs, texts: Batch, rows: Batch, side: int | None = None
    ) -> Float[Array, " texts"]:
        """Returns the log-probabilities under the reference; see `Reference.scores`."""
        return summed_log_probabilities(model_of(params), outputs.networks[NAME], texts)
