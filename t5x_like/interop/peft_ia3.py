"""(IA)³ in the files of the library peft: `ia3_l`."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like.adapters.base import ADAPTER
from t5x_like.adapters.ia3 import IA3
from t5x_like.interop import adapted_matrices as matrices
from t5x_like.models.base import ModelConfig

Tensors = dict[str, Float[np.ndarray, "..."]]


def write(
    config: ModelConfig, leaves: Mapping[str, Any], targets: Mapping[str, matrices.Matrix]
) -> tuple[Tensors, dict[str, Any]]:
    """Returns the tensors of (IA)³ by name in transformers, and their settings."""
    tensors, feedforward = {}, []
    for module, matrix in targets.items():
        names = {k: f"{name}/{ADAPTER}/scale" for k, (name, *_) in matrix.projections.items()}
        present = [k for k, name in names.items() if name in leaves]
        if not present:
            continue
        if matrices.adapter_of(config.adapters, matrix.projections[present[0]][0]).of == "inputs":
            feedforward.append(module)
            tensors[module] = matrix.leaf(leaves, names[present[0]]).reshape(1, -1)
        else:
            sizes = {k: math.prod(shape[mapping.input_dims :]) for k, (_, mapping, shape) in matrix.projections.items()}
            parts = [
                matrix.leaf(leaves, names[k]).reshape(-1) if k in present else np.ones(sizes[k], np.float32)
                for k in range(matrix.parts)
            ]
            tensors[module] = np.concatenate(parts)[:, None]
    settings = {"peft_type": "IA3", "target_modules": sorted(tensors), "feedforward_modules": feedforward}
    return {f"{module}.ia3_l": tensor for module, tensor in tensors.items()}, settings


def read(
    targets: Mapping[str, matrices.Matrix], find_tensor: Callable[[str], Float[np.ndarray, "..."] | None]
) -> tuple[tuple[IA3, ...], Tensors]:
    """Returns (IA)³ of outputs, of inputs, or both, and stored name -> their parameters.

    Args:
      targets: name of each matrix in transformers -> its projections.
      find_tensor: returns the tensor of a name in transformers, or None.
    """
    leaves: dict[str, Tensors] = {"outputs": {}, "inputs": {}}
    for module, matrix in targets.items():
        scale = find_tensor(f"{module}.ia3_l")
        if scale is None:
            continue
        of = "inputs" if scale.shape[0] == 1 else "outputs"
        for k, (name, mapping, shape) in matrix.projections.items():
            if of == "inputs":
                own = scale.reshape(shape[: mapping.input_dims])
            else:
                own = np.split(scale.reshape(-1), matrix.parts)[k].reshape(shape[mapping.input_dims :])
            matrix.put(leaves[of], f"{name}/{ADAPTER}/scale", own, fill=1.0)
    adapters = tuple(IA3(pattern=matrices.pattern_of(found), of=of) for of, found in leaves.items() if found)
    return adapters, leaves["outputs"] | leaves["inputs"]
