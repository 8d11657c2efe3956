"""Progressive transfer: the layers of a student learn one after another (MobileBERT, Sun et al. 2020, section 3.6)."""

import dataclasses
from collections.abc import Mapping

from t5x_like.distillation import layer_maps
from t5x_like.distillation.losses.layerwise import LayerLoss
from t5x_like.errors import UserError
from t5x_like.optimizers.schedules import Schedule, piecewise


def per_layer(losses: Mapping[str, LayerLoss], *, num_layers: int) -> dict[str, LayerLoss]:
    """Makes one loss per pair of layers, so that each pair has a coefficient of its own.

    Args:
      losses: Name -> loss, each with a map of `num_layers` pairs.
      num_layers: Number of pairs of layers.

    Returns:
      `NAME_0`, `NAME_1`, … -> the loss of the first pair of its map, of the second, ….
    """
    return {
        f"{name}_{index}": dataclasses.replace(loss, layers=layer_maps.only(loss.layers, index))
        for name, loss in losses.items()
        for index in range(num_layers)
    }


def turns(coefficients: Mapping[str, float], *, num_layers: int, steps_per_layer: int) -> dict[str, float | Schedule]:
    """Makes the coefficients with which the losses of `per_layer` are active one layer after another.

    The losses of layer n are active in the steps from n · steps_per_layer to (n + 1) · steps_per_layer - 1. Those of
    the last layer stay active. Coefficients are divided by the number of layers, as in MobileBERT's released code.

    Args:
      coefficients: Name of a loss before `per_layer` -> its coefficient. `task` is the coefficient of the task's own
        loss at all steps.
      num_layers: Number of pairs of layers.
      steps_per_layer: Number of steps per layer.

    Returns:
      `task` and `NAME_0`, `NAME_1`, … -> coefficient, or its schedule over the steps.

    Raises:
      UserError: A number is not a positive integer.
    """
    for name, value in (("num_layers", num_layers), ("steps_per_layer", steps_per_layer)):
        if not isinstance(value, int) or value < 1:
            raise UserError(f"turns.{name}={value!r} is not a positive integer. Give a positive integer.")
    schedules: dict[str, float | Schedule] = {}
    for name, value in coefficients.items():
        if name == "task":
            schedules[name] = value
            continue
        for index in range(num_layers):
            start, end = index * steps_per_layer, (index + 1) * steps_per_layer
            changes = [(start, value / num_layers)] + [(end, 0.0)] * (index + 1 < num_layers)
            schedules[f"{name}_{index}"] = piecewise(dict([(0, 0.0), *changes]))
    return schedules
