"""Makes models from their configurations, with the adapters that these name."""

import dataclasses

import jax

from t5x_like import parameters
from t5x_like.adapters import prompt
from t5x_like.adapters.base import adapt, merged_kernels
from t5x_like.errors import UserError
from t5x_like.models.base import Model, ModelConfig

# Index of the adapters' key among the keys derived from the key of a model, which splits its own.
_ADAPTERS = 2**31
# Index of the prompt's key among the keys derived from the adapters' key.
_PROMPT = 2**31


def make(config: ModelConfig, key: jax.Array) -> Model:
    """Returns a model with newly initialized parameters and adapters.

    Args:
      config: the configuration of the model.
      key: random key of the initialization.

    Raises:
      UserError: an adapter matches no projection of the model, or a prompt does not fit it.
    """
    model = config.make(key)
    if not config.adapters:
        return model
    own, found = jax.random.fold_in(key, _ADAPTERS), prompt.find(config)
    if found is not None:
        prompt.add(model, found, jax.random.fold_in(own, _PROMPT))
    return adapt(model, [each for each in config.adapters if each is not found], own)


def without_adapters(config: ModelConfig) -> ModelConfig:
    """Returns the configuration of the bare model, which files of other libraries have."""
    return dataclasses.replace(config, adapters=()) if config.adapters else config


def merge(model: Model) -> Model:
    """Returns the bare model with the same outputs: the updates of its adapters are added to the kernels.

    Example:
      `merge(open_model("runs/lora").read_model())` is a model without adapters.

    Args:
      model: a model with adapters or without.

    Raises:
      UserError: no kernel has the effect of an adapter.
    """
    if prompt.find(model.config) is not None:
        raise UserError(
            "adapters.prompt.Prompt: a prompt cannot be merged into the parameters. Write it alone (MERGE=False), or "
            "use the run itself: `eval`, `infer` and `open_model` read its prompt."
        )
    leaves = parameters.named_leaves(model) | merged_kernels(model)
    bare = jax.eval_shape(without_adapters(model.config).make, jax.random.key(0))
    return parameters.rebuild(bare, {name: leaves[name] for name in parameters.named_leaves(bare)})
