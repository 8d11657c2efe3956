"""Models with some of the layers of their stacks."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.errors import UserError
from t5x_like.layers.layer_kinds import shortest
from t5x_like.models.base import ModelConfig
from t5x_like.parameters import LAYERS
from t5x_like.pruning import structures

_MODEL = "model/"


def keep(
    config: ModelConfig, leaves: Mapping[str, np.ndarray], layers: int | Mapping[str, Sequence[int]]
) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """Returns a model with some of its layers. Each layer keeps its attention window, and its random blocks.

    Args:
      config: Configuration of the model.
      leaves: Stored name -> parameter, with stacked layers.
      layers: Stack -> indices of its layers that are kept, in ascending order, or n for the layers 0, n, 2n … of each
        stack, which Fan et al. (2019, section 3.2) find best.

    Raises:
      UserError: A stack or a layer does not exist, no layer is left, layers share their parameters, the model is
        recurrent or has layers outside of its stacks, or the family needs a layer that is not kept.
    """
    structures.check_stacks("LAYERS", config, leaves)
    chosen = _chosen(config, layers)
    found = dict(leaves)
    for stack, indices in chosen.items():
        prefix = f"{_MODEL}{stack}/{LAYERS}/"
        for name in [name for name in leaves if name.startswith(prefix)]:
            found[name] = np.asarray(leaves[name])[list(indices)]
        if (part := config.parts.get(stack)) is None:
            config = _with_layers(config, stack, indices)
        else:
            config = dataclasses.replace(config, **{stack: _with_layers(part, stack, indices)})
    return config, found


def _with_layers(config: Any, stack: str, indices: Sequence[int]) -> Any:
    """Returns the configuration of a model with the given layers of a stack."""
    field = next((each for each in (f"{stack}_{LAYERS}", f"num_{LAYERS}") if hasattr(config, each)), None)
    if field is None:
        raise UserError(f"LAYERS: {type(config).__name__} has no number of layers of {stack}. Omit LAYERS.")
    changes: dict[str, Any] = {field: len(indices)}
    if windows := getattr(config, "attention_windows", ()):
        changes["attention_windows"] = shortest([windows[index % len(windows)] for index in indices])
    if isinstance(config, structures.LayerIndexed):
        changes |= config.keep_layers(indices)
    return dataclasses.replace(config, **changes)


def _chosen(config: ModelConfig, layers: Any) -> dict[str, tuple[int, ...]]:
    stacks = config.stacks
    if recurrent := [name for name, stack in stacks.items() if not stack.num_heads]:
        raise UserError(
            f"LAYERS={layers}: the layers of {recurrent[0]} in {type(config).__name__} are not transformer layers, and "
            "may have different sizes. Omit LAYERS."
        )
    if shared := [name for name, stack in stacks.items() if stack.stored_layers != stack.num_layers]:
        raise UserError(
            f"LAYERS={layers}: the layers of {shared[0]} share their parameters. Give another number of layers to the "
            "model instead."
        )
    if isinstance(layers, int) and not isinstance(layers, bool):
        if layers < 2:
            raise UserError(f"LAYERS={layers}: keeps all layers. Give 2 or more for every n-th layer.")
        return {name: tuple(range(0, stack.num_layers, layers)) for name, stack in stacks.items()}
    if not isinstance(layers, Mapping) or not layers:
        raise UserError(f"LAYERS={layers!r}: neither a number nor layers of a stack. Give 2, or {{'encoder': (0, 2)}}.")
    found = {}
    for name, indices in layers.items():
        if name not in stacks:
            raise UserError(f"LAYERS={layers}: the model has no stack {name!r}. Its stacks are {', '.join(stacks)}.")
        if not isinstance(indices, Sequence) or isinstance(indices, str):
            raise UserError(
                f"LAYERS={layers}: {name!r} needs a list of layers, not {indices!r}. Give one such as (0, 2)."
            )
        last, indices = stacks[name].num_layers - 1, tuple(indices)
        exist = all(type(index) is int and 0 <= index <= last for index in indices)
        if not indices or not exist or list(indices) != sorted(set(indices)):
            raise UserError(
                f"LAYERS={layers}: {name!r} needs layers from 0 to {last} in ascending order. Correct the indices."
            )
        found[name] = indices
    return found
