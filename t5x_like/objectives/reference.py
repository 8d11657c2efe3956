"""The reference model of preference objectives: the model as it was before training.

Without adapters, the reference is a network of the run, `objective/reference`, that starts from the same weights and is
frozen; a checkpoint does not store what equals the pretrained weights. With adapters, it is the model without them,
whose parameters are frozen anyway, so that nothing is kept twice.
"""

from typing import Any

import jax

from t5x_like import parameters
from t5x_like.models import build, construct
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Params

NAME = "reference"


def networks(config: ModelConfig) -> dict[str, NetworkSpec]:
    """Returns the network of the reference, or none if the model has adapters; see `Objective.networks`."""
    return {} if config.adapters else {NAME: NetworkSpec(config=config)}


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
