"""Weights in integers: the parameters of a model with quantized projections and tables, from a dense or trained one."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from t5x_like import parameters
from t5x_like.adapters import quantization, ranges
from t5x_like.adapters.base import merged_parameters
from t5x_like.adapters.quantization import Quantized
from t5x_like.errors import UserError
from t5x_like.models import build, construct
from t5x_like.models.base import ModelConfig

_MODEL = "model/"


def quantize(
    config: ModelConfig, leaves: Mapping[str, Any], dtype: str, activations: str | None = None
) -> tuple[ModelConfig, dict[str, Any]]:
    """Quantizes the weights of a model.

    A model of quantization-aware training keeps its patterns, scales and ranges, and its pruned kernels. The updates of
    the adapters of other models are added to the kernels first.

    Args:
      config: configuration of the model.
      leaves: stored name -> array; names of the model begin with `model/`. Layers are stacked.
      dtype: see `Quantized.dtype`.
      activations: see `Quantized.activations`; None for those of the training.

    Returns:
      The configuration and the parameters with integers.

    Raises:
      UserError: the model has integers already, was trained for another type, or has no ranges of its activations.
    """
    found = quantization.find(config.adapters)
    if any(isinstance(each, Quantized) for each in found):
        raise UserError(
            f"QUANTIZATION={dtype!r}: the weights are quantized already. Give the dense model that they "
            "were converted from, or a dense export of this run."
        )
    if trained := sorted({each.dtype for each in found} - {dtype}):
        raise UserError(f"QUANTIZATION={dtype!r}: the model was trained for {trained[0]}. Give {trained[0]!r}.")
    if found and activations is not None:
        raise UserError(f"QUANTIZED_INPUTS={activations!r}: the training has set them. Omit the setting.")
    rest = [each for each in config.adapters if each not in found]
    if found and (unknown := [type(each).__name__ for each in rest if not getattr(each, "is_quantizable", False)]):
        raise UserError(
            f"QUANTIZATION={dtype!r}: the model has the adapter {unknown[0]} beside FakeQuantized, whose update is not "
            "rounded. Use the run itself."
        )
    stored = tuple(each.stored() for each in found) or (Quantized(dtype=dtype, activations=activations),)
    of_model = {name.removeprefix(_MODEL): leaf for name, leaf in leaves.items() if name.startswith(_MODEL)}
    others = {name: leaf for name, leaf in leaves.items() if not name.startswith(_MODEL)}
    model = parameters.rebuild(build.stacked_shapes(config), of_model)
    if not found:
        model, config = construct.merge(model), construct.without_adapters(config)
    elif rest:
        merged = parameters.named_leaves(model) | merged_parameters(model)
        config = dataclasses.replace(config, adapters=found)
        model = parameters.map_named(lambda name, _: merged[name], build.stacked_shapes(config))
    made = jax.jit(lambda model: quantization.apply(model, stored))(model)
    of_model = {name: np.asarray(leaf) for name, leaf in parameters.named_leaves(made).items()}
    _check_ranges(of_model)
    return dataclasses.replace(config, adapters=stored), {
        _MODEL + name: leaf for name, leaf in of_model.items()
    } | others


def _check_ranges(leaves: Mapping[str, Any]) -> None:
    """Checks that each static range has seen a batch."""
    unseen = [name for name, leaf in leaves.items() if ranges.is_range(name) and not np.all(leaf[..., 1] > 0)]
    if unseen:
        raise UserError(
            f"{len(unseen)} ranges of activations have seen no batch, such as {unseen[0]}. Calibrate them on a task "
            "first: t5x_like train --gin_file=RECIPE --gin_file=compression/calibrate.gin, and convert that run; or "
            "give QUANTIZED_INPUTS='dynamic'."
        )


def size(leaves: Mapping[str, Any]) -> int:
    """Returns the bytes of arrays."""
    return sum(np.size(leaf) * np.dtype(leaf.dtype).itemsize for leaf in leaves.values())


def dtypes(config: ModelConfig) -> dict[str, Any]:
    """Returns the stored name of each parameter of a model -> its dtype."""
    return {_MODEL + name: leaf.dtype for name, leaf in parameters.named_leaves(build.stacked_shapes(config)).items()}
