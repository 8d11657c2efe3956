"""Makes models from their configurations, with the adapters that these name."""

import dataclasses

import jax
from flax import nnx

from t5x_like import parameters
from t5x_like.adapters import prefix, prompt, quantization
from t5x_like.adapters.base import adapt, merged_parameters
from t5x_like.adapters.lora_embedding import EmbeddingLoRA
from t5x_like.errors import UserError
from t5x_like.layers.embeddings import Unembedding
from t5x_like.models.base import Model, ModelConfig

# Index of the adapters' key among the keys derived from the key of a model, which splits its own.
_ADAPTERS = 2**31
# Indices of the keys of a prompt and of a prefix among the keys derived from the adapters' key.
_PROMPT, _PREFIX = 2**31, 2**31 + 1


def make(config: ModelConfig, key: jax.Array) -> Model:
    """Returns a model with newly initialized parameters and adapters.

    Args:
      config: the configuration of the model.
      key: random key of the initialization.

    Raises:
      UserError: an adapter or a quantization matches no module of the model, or a prompt does not fit it.
    """
    model = config.make(key)
    if not config.adapters:
        return model
    own, whole = jax.random.fold_in(key, _ADAPTERS), (prompt.find(config), prefix.find(config))
    for each, add, index in zip(whole, (prompt.add, prefix.add), (_PROMPT, _PREFIX), strict=True):
        if each is not None:
            add(model, each, jax.random.fold_in(own, index))
    quantizations = quantization.find(config.adapters)
    adapt(model, [each for each in config.adapters if each not in (*whole, *quantizations)], own)
    return quantization.apply(model, quantizations)


def without_adapters(config: ModelConfig) -> ModelConfig:
    """Returns the configuration of the bare model, which files of other libraries have."""
    return dataclasses.replace(config, adapters=()) if config.adapters else config


def merge(model: Model) -> Model:
    """Returns the bare model with the same outputs: the updates of its adapters are added to the parameters.

    Quantized weights become the numbers that they stand for. Activations are not quantized any more.

    Example:
      `merge(open_model("runs/lora").read_model())` is a model without adapters.

    Args:
      model: a model with adapters or without.

    Raises:
      UserError: no parameters have the effect of an adapter.
    """
    for kind in (prompt, prefix):
        if (found := kind.find(model.config)) is not None:
            name = type(found).__name__
            raise UserError(
                f"{type(found).__module__.removeprefix('t5x_like.')}.{name}: a {name.lower()} cannot be merged into "
                "the parameters. Write it alone (MERGE=False), or use the run itself: `eval`, `infer` and `open_model` "
                f"read its {name.lower()}."
            )
    is_tied = not any(isinstance(module, Unembedding) for _, module in nnx.iter_modules(model))
    if is_tied and "decoder" in model.config.stacks:
        for adapter in model.config.adapters:
            if isinstance(adapter, EmbeddingLoRA) and not adapter.tied_logits:
                raise UserError(
                    "EmbeddingLoRA.tied_logits=False: the logits are computed from the embeddings without the update, "
                    "so no table has the effect of the adapter. Train with tied_logits=True, or use the run itself."
                )
    leaves = parameters.named_leaves(model) | quantization.dense_parameters(model) | merged_parameters(model)
    bare = jax.eval_shape(without_adapters(model.config).make, jax.random.key(0))
    return parameters.rebuild(bare, {name: leaves[name] for name in parameters.named_leaves(bare)})


def collapse(model: Model) -> Model:
    """Returns the model with the keys and values of its prefix in place of the MLPs that compute them.

    Outputs are the same; see `Prefix.hidden_size`. Other models are returned as they are.

    Example:
      `collapse(open_model("runs/prefix").read_model())` has the keys and values in `ATTENTION/adapter`.
    """
    found = prefix.find(model.config)
    if found is None or found.hidden_size is None:
        return model
    plain = dataclasses.replace(found, hidden_size=None)
    adapters = tuple(plain if each is found else each for each in model.config.adapters)
    config = dataclasses.replace(model.config, adapters=adapters)
    made = jax.eval_shape(lambda: make(config, jax.random.key(0)))
    return parameters.rebuild(made, parameters.named_leaves(prefix.computed(model)))
