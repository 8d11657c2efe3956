"""Makes models from their configurations, with the adapters that these name."""

import dataclasses

import jax

from t5x_like import parameters
from t5x_like.adapters import model_adapters
from t5x_like.adapters.base import WeightAdapter, adapt, dense_parameters, merged_parameters
from t5x_like.adapters.model_adapters import ModelAdapter
from t5x_like.kernels.dropout import FIRST_NAMED_KEY
from t5x_like.models.base import Model, ModelConfig

# Index of the adapters' key among the keys derived from the key of a model, which splits its own.
_ADAPTERS = FIRST_NAMED_KEY


def make(config: ModelConfig, key: jax.Array) -> Model:
    """Returns a model with newly initialized parameters and adapters.

    Args:
      config: The configuration of the model.
      key: Random key of the initialization.

    Raises:
      UserError: An adapter matches no module of the model, or does not fit it.
    """
    model = config.make(key)
    if not config.adapters:
        return model
    own = jax.random.fold_in(key, _ADAPTERS)
    for each in model_adapters.find(config):
        each.add(model, own)
    adapt(model, [each for each in config.adapters if not isinstance(each, ModelAdapter | WeightAdapter)], own)
    of_weights = [each for each in config.adapters if isinstance(each, WeightAdapter)]
    for apply in dict.fromkeys(each.apply for each in of_weights):
        apply(model, [each for each in of_weights if each.apply is apply])
    return model


def without_adapters(config: ModelConfig) -> ModelConfig:
    """Returns the configuration of the bare model, which files of other libraries have."""
    return dataclasses.replace(config, adapters=()) if config.adapters else config


def merge(model: Model) -> Model:
    """Returns the bare model with the same outputs: the updates of its adapters are added to the parameters.

    Quantized weights become the numbers that they stand for. Activations are not quantized any more.

    Example:
      `merge(open_model("runs/lora").read_model())` is a model without adapters.

    Args:
      model: A model with adapters or without.

    Raises:
      UserError: No parameters have the effect of an adapter.
    """
    for each in model.config.adapters:
        if (check_merge := getattr(each, "check_merge", None)) is not None:
            check_merge(model)
    leaves = parameters.named_leaves(model) | dense_parameters(model) | merged_parameters(model)
    bare = jax.eval_shape(without_adapters(model.config).make, jax.random.key(0))
    return parameters.rebuild(bare, {name: leaves[name] for name in parameters.named_leaves(bare)})


def collapse(model: Model) -> Model:
    """Returns the model with what its adapters compute from parameters alone in place of these parameters.

    These are the MLPs of a prefix; see `Prefix.hidden_size`. Outputs are the same. Other models are returned as they
    are.

    Example:
      `collapse(open_model("runs/prefix").read_model())` has the keys and values in `ATTENTION/adapter`.
    """
    adapters = tuple(each.collapsed() if isinstance(each, ModelAdapter) else each for each in model.config.adapters)
    if adapters == tuple(model.config.adapters):
        return model
    config = dataclasses.replace(model.config, adapters=adapters)
    made = jax.eval_shape(lambda: make(config, jax.random.key(0)))
    return parameters.rebuild(made, parameters.named_leaves(model_adapters.computed(model)))
