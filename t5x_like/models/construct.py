"""Makes models from their configurations, with the adapters that these name."""

import dataclasses

import jax

from t5x_like import parameters
from t5x_like.adapters.base import adapt, merged_kernels
from t5x_like.models.base import Model, ModelConfig

# Index of the adapters' key among the keys derived from the key of a model, which splits its own.
_ADAPTERS = 2**31


def make(config: ModelConfig, key: jax.Array) -> Model:
    """Returns a model with newly initialized parameters and adapters.

    Args:
      config: the configuration of the model.
      key: random key of the initialization.

    Raises:
      UserError: an adapter matches no projection of the model.
    """
    model = config.make(key)
    return adapt(model, config.adapters, jax.random.fold_in(key, _ADAPTERS)) if config.adapters else model


def without_adapters(config: ModelConfig) -> ModelConfig:
    """Returns the configuration of the bare model, which files of other libraries have."""
    return dataclasses.replace(config, adapters=()) if config.adapters else config


def merge(model: Model) -> Model:
    """Returns the bare model with the same outputs: the updates of its adapters are added to the kernels.

    Example:
      `merge(open_model("runs/lora").read_model())` is a model without adapters.

    Args:
      model: a model with adapters or without.
    """
    leaves = parameters.named_leaves(model) | merged_kernels(model)
    bare = jax.eval_shape(without_adapters(model.config).make, jax.random.key(0))
    return parameters.rebuild(bare, {name: leaves[name] for name in parameters.named_leaves(bare)})
