"""Models as shapes, before any array exists."""

import dataclasses
from typing import Any

import jax

from t5x_like.models import construct, networks
from t5x_like.models.base import Model, ModelConfig
from t5x_like.partitioning import Partitioner


def shapes(config: ModelConfig, partitioner: Partitioner | None = None) -> Model:
    """Returns a model whose parameters are shapes.

    Args:
      config: The configuration of the model.
      partitioner: The partitioner that is bound meanwhile; a layer may have other shapes on its mesh.
    """
    evaluate = jax.eval_shape if partitioner is None else partitioner.eval_shape
    return evaluate(lambda key: construct.make(config, key), jax.random.key(0))


def stacked_shapes(config: ModelConfig) -> Model:
    """Returns a model whose parameters are shapes `[layers, …]`, as checkpoints store them.

    Args:
      config: The configuration of the model, stacked or not.
    """
    return shapes(dataclasses.replace(config, scan_layers=True))


def params_shapes(
    config: ModelConfig, objective: networks.HasNetworks, partitioner: Partitioner | None = None
) -> dict[str, Any]:
    """Returns the shapes of the parameters of a model and of the heads and networks of an objective.

    Args:
      config: The configuration of the model.
      objective: Makes the heads and declares further networks.
      partitioner: The partitioner that is bound meanwhile.

    Returns:
      `{"model": …, "objective": …}`.
    """
    evaluate = jax.eval_shape if partitioner is None else partitioner.eval_shape
    return evaluate(lambda key: networks.make(objective, config, key), jax.random.key(0))
